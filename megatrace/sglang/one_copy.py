"""One copy of the experts: SGLang's own forward gets a layer's unpacked when it comes to it.

SGLang keeps the experts in an order of its own, for prefills and for several requests at once:
with the megakernel's packing that is twice the memory. ``MEGATRACE_ONE_COPY=1`` gives SGLang's
up but for one layer's place, which every layer's forward fills before it reads. A prefill then
reads and writes the experts of all layers once more, and so does every step of several requests.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakKeyDictionary

from megatrace.muse.config import MuseConfig
from megatrace.muse.layout import Fp4Layout
from megatrace.muse.pack import PackedLayer, unpack_experts
from megatrace.muse.plan import ExpertKind

ENV = "MEGATRACE_ONE_COPY"
_MUSE = "sglang.srt.layers.muse_spark"
FORWARDS = (
    f"{_MUSE}.muse_spark_bf16_moe.MuseSpark1xBf16Experts.forward",
    f"{_MUSE}.muse_spark_fp4_moe.MuseSpark1xFp4Experts.forward",
)
_OWN: dict[ExpertKind, tuple[str, str]] = {
    "bf16": ("gate_up_proj", "down_proj"),
    "nvfp4": ("w13_weight", "w2_weight"),
}
"""SGLang's names of what is given up: Marlin's scales, a ninth of it, stay where they are."""


@dataclass(frozen=True, slots=True)
class _Loan:
    """What a layer's place is filled from."""

    packed: PackedLayer
    model: MuseConfig
    fp4: Fp4Layout


_loans: WeakKeyDictionary[Any, _Loan] = WeakKeyDictionary()
"""Module of a layer's experts -> what it runs from."""


def wanted() -> bool:
    """Whether the environment asks for it."""
    return os.environ.get(ENV, "0") not in ("", "0")


def uncovered(module: Any) -> str | None:
    """Why a layer's experts cannot be given up; None: they can."""
    marlin = hasattr(module, "w13_weight")
    as_loaded = hasattr(module, "gate_up_proj") and not getattr(module, "use_trtllm", True)
    if marlin or as_loaded:
        return None
    return f"{ENV}=1 with experts in an order of TRT-LLM: those of Marlin and Triton are covered"


def savings(modules: list[Any]) -> int:
    """Bytes that giving up saves: all but the place of one layer of each kind."""
    places: dict[ExpertKind, int] = {}
    total = 0
    for module in modules:
        kind: ExpertKind = "nvfp4" if hasattr(module, "w13_weight") else "bf16"
        size = sum(int(getattr(module, name).nbytes) for name in _OWN[kind])
        total += size
        places[kind] = size
    return total - sum(places.values())


class Places:
    """One layer's place for each kind of experts: that of the first layer given up."""

    def __init__(self, model: MuseConfig, fp4: Fp4Layout, modules: list[Any]) -> None:
        """``modules`` hold SGLang's experts, in the order in which their packs come."""
        self._model, self._fp4, self._modules = model, fp4, iter(modules)
        self._places: dict[ExpertKind, list[Any]] = {}
        self.saved = 0
        """Bytes given up."""

    def give_up(self, packed: PackedLayer) -> None:
        """Have SGLang's next module run from ``packed``."""
        module = next(self._modules)
        own = [getattr(module, name) for name in _OWN[packed.kind]]
        places = self._places.setdefault(packed.kind, [parameter.data for parameter in own])
        for parameter, place in zip(own, places, strict=True):
            if parameter.data_ptr() != place.data_ptr():
                self.saved += int(parameter.nbytes)
                parameter.data = place
        _loans[module] = _Loan(packed, self._model, self._fp4)


def around_forward(original: Callable[..., Any], module: Any, *args: Any, **kwargs: Any) -> Any:
    """AROUND ``forward`` of a layer's experts: its own weights are in place before it."""
    loan = _loans.get(module)
    if loan is not None:
        _fill(module, loan)
    return original(module, *args, **kwargs)


def _fill(module: Any, loan: _Loan) -> None:
    """An expert at a time: nothing larger is made beside the place."""
    packed = loan.packed
    up, down = (getattr(module, name).data for name in _OWN[packed.kind])
    for i in range(len(packed.experts_up)):
        both = packed.experts_up[i : i + 1], packed.experts_down[i : i + 1]
        one = replace(packed, experts_up=both[0], experts_down=both[1])
        experts = unpack_experts(one, loan.model, loan.fp4)
        for place, matrix in ((up, experts.up), (down, experts.down)):
            place[i] = (matrix if packed.kind == "bf16" else _marlin(matrix))[0]


def _marlin(codes: Any) -> Any:
    """Codes as SGLang itself repacks them when it loads a model."""
    from sglang.srt.layers.quantization import marlin_utils_fp4

    experts, rows, half_columns = codes.shape
    return marlin_utils_fp4._repack_moe_fp4_weight_for_marlin(
        codes,
        num_experts=experts,
        size_n=rows,
        size_k=2 * half_columns,
        perm=codes.new_empty(0).int(),
    )
