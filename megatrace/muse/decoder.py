"""Decode and verify steps over the paged pools of a serving framework.

::

    decoder = Decoder(engine, build, tables, taps=(1, 4), trace=agent.params)
    stream = decoder.step(tokens, positions, request, slots)     # may be captured
    stream, decoder.tapped

Every step does the same work on the same addresses, all of it on the current stream, so that a
CUDA graph of one step serves every later one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import groupby

import torch

from megatrace.agent.memory import TraceParams
from megatrace.errors import UsageError
from megatrace.muse.ends import StepEnds
from megatrace.muse.engine import Engine
from megatrace.muse.plan import ExpertKind
from megatrace.muse.pools import SlotTables
from megatrace.muse.program import Build, Program

BuildOf = Callable[[ExpertKind], Build]


class Decoder:
    """The engine's steps of any number of rows, one request at a time."""

    def __init__(
        self,
        engine: Engine,
        build: BuildOf,
        tables: SlotTables,
        *,
        taps: Sequence[int] = (),
        final_gain: torch.Tensor | None = None,
        trace: TraceParams | None = None,
    ) -> None:
        """``taps`` are layers whose output is wanted, ascending; ``trace`` the tracer's memory.

        ``final_gain``: fp32 [hidden], of the norm before the head, where ``normed`` is wanted.
        What ``build`` says of the cache gives way to what the engine has. Raises UsageError where
        a tensor is not what the kernels read, BuildError where they cannot be built.
        """
        if engine.embedding is None:
            raise UsageError("a step begins with the embedding, the engine has none")
        self._engine, self._build, self._trace = engine, build, trace
        self._programs: dict[int, list[Program]] = {}
        self.taps = tuple(taps)
        self.tapped = engine.tap_side_by_side(taps) if taps else None
        """bf16 [max rows, taps * hidden]: bf16(stream) after each tapped layer."""
        self._ends = StepEnds(
            self._build_of(engine.layers[0].kind).library(),
            engine,
            tables,
            final_gain,
        )
        self.normed = self._ends.normed
        """bf16 [max rows, hidden]: the norm before the head, of bf16(stream)."""
        engine.empty()

    def step(
        self,
        tokens: torch.Tensor,
        positions: torch.Tensor,
        request: torch.Tensor,
        slots: torch.Tensor,
    ) -> torch.Tensor:
        """The residual stream fp32 [rows, hidden] after all layers, valid until the next step.

        ``tokens``, ``positions`` (one after the other) and ``slots`` (of the full pool) are of
        each row, ``request`` [1] is the row of the pools' table; int32 or int64, contiguous. A row
        of the table may be written after the step that its new slots are for. The first step of
        a number of rows allocates and must not be captured.
        """
        rows, engine = tokens.shape[0], self._engine
        if rows not in self._programs:
            self._programs[rows] = self._compose(rows)
        stream = torch.cuda.current_stream().cuda_stream if engine.stream.is_cuda else 0
        self._ends.begin(tokens, positions, request, slots, stream)
        for program in self._programs[rows]:
            program.launch(stream)
        self._ends.end(rows, stream)
        return engine.stream[:rows]

    def close(self) -> None:
        """Give the programs back; no graph with their launches may run any more."""
        for programs in self._programs.values():
            for program in programs:
                program.close()
        self._programs.clear()

    def _compose(self, rows: int) -> list[Program]:
        """One program for each stretch of layers with experts of one kind."""
        engine = self._engine
        launches = engine.step(rows, embed=True)
        kinds = [engine.layers[0].kind, *(layer.kind for layer in engine.layers)]
        pairs = zip(kinds, launches, strict=True)
        return [
            Program(
                [launch for _, launch in stretch],
                self._build_of(kind),
                blocks=engine.blocks,
                trace=self._trace,
            )
            for kind, stretch in groupby(pairs, key=lambda pair: pair[0])
        ]

    def _build_of(self, kind: ExpertKind) -> Build:
        return replace(self._build(kind), cache=self._engine.cache_kind)


def lent(every: torch.Tensor | None, rows: int) -> torch.Tensor | None:
    """The first ``rows`` rows, which the next step overwrites.

    So is what a graph returns by its next replay, and SGLang's own graphs share what they give to
    a DFLASH draft. An eager caller may still hold the last ones.
    """
    if every is None:
        return None
    captured = every.is_cuda and torch.cuda.is_current_stream_capturing()
    return every[:rows] if captured else every[:rows].clone()
