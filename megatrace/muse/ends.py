"""What a step begins and ends with: a framework's tensors, read and made by a launch each.

In torch's own operators the two are sixteen launches.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch

from megatrace.errors import UsageError
from megatrace.muse.engine import Engine
from megatrace.muse.params import Integers, StepInputs, StepOutput, address_of
from megatrace.muse.pools import SlotTables


class StepEnds:
    """The launches before those of the layers, and after them.

    They fill ``tables``. ``gain``: fp32 [hidden], of the norm before the head; None: the caller
    norms.
    """

    def __init__(
        self,
        library: Any,
        engine: Engine,
        tables: SlotTables,
        gain: torch.Tensor | None,
    ) -> None:
        """Raise UsageError where a tensor is not what the launches read."""
        self._library, self._engine = library, engine
        table, to_sliding = tables.table, tables.to_sliding
        self._check("table of slots", table, torch.int32)
        self._inputs = StepInputs(
            table=address_of(table),
            to_sliding=self._integers("slots of the sliding pool", to_sliding),
            to_tokens=address_of(engine.tokens),
            context=address_of(engine.context),
            full=address_of(tables.full),
            sliding=None if to_sliding is None else address_of(tables.sliding),
            requests=table.shape[0],
            width=table.shape[1],
        )
        self._kept = tables, gain
        self.normed: torch.Tensor | None = None
        """bf16 [max rows, hidden]: the norm of bf16(stream), after :meth:`end`."""
        if gain is not None:
            self._check("gain of the norm before the head", gain, torch.float32)
            self.normed = torch.zeros_like(engine.stream, dtype=torch.bfloat16)
            self._output = StepOutput(
                stream=address_of(engine.stream),
                gain=address_of(gain),
                normed=address_of(self.normed),
                hidden=engine.model.hidden,
                eps=engine.model.eps_norm,
            )

    def begin(
        self,
        tokens: torch.Tensor,
        positions: torch.Tensor,
        request: torch.Tensor,
        slots: torch.Tensor,
        stream: int,
    ) -> None:
        """Take a step's rows into the engine and the slots of its request into the tables.

        All are int32 or int64, contiguous, where the engine is. Raises UsageError where they are
        not, RuntimeError with the driver's words.
        """
        inputs, rows = self._inputs, tokens.shape[0]
        inputs.rows = rows
        inputs.tokens = self._integers("tokens", tokens, rows)
        inputs.positions = self._integers("positions", positions, rows)
        inputs.slots = self._integers("slots", slots, rows)
        inputs.request = self._integers("request", request, 1)
        self._call(self._library.muse_begin, inputs, stream)

    def end(self, rows: int, stream: int) -> None:
        """Norm the stream of the first ``rows`` rows; raises RuntimeError as :meth:`begin`."""
        if self.normed is not None:
            self._output.rows = rows
            self._call(self._library.muse_end, self._output, stream)

    def _call(self, function: Any, told: ctypes.Structure, stream: int) -> None:
        if function(ctypes.byref(told), ctypes.c_void_p(stream)):
            raise RuntimeError(self._library.megatrace_last_error().decode())

    def _integers(self, name: str, tensor: torch.Tensor | None, least: int = 0) -> Integers:
        if tensor is None:
            return Integers()
        self._check(name, tensor, torch.int32, torch.int64)
        count = tensor.numel()
        if count < least:
            raise UsageError(f"{name}: {count} of them for {least} rows")
        return Integers(at=address_of(tensor), bytes=tensor.element_size(), count=count)

    def _check(self, name: str, tensor: torch.Tensor, *covered: torch.dtype) -> None:
        if tensor.dtype not in covered or not tensor.is_contiguous():
            how = "contiguous" if tensor.is_contiguous() else "not contiguous"
            wanted = " or ".join(str(dtype) for dtype in covered)
            raise UsageError(
                f"{name}: {tensor.dtype}, {how}; the megakernel reads contiguous {wanted}"
            )
        here = self._engine.stream.device
        if tensor.device != here:
            raise UsageError(f"{name} is on {tensor.device}, the megakernel runs on {here}")
