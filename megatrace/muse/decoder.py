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
from dataclasses import dataclass, replace
from itertools import groupby

import torch

from megatrace.agent.memory import TraceParams
from megatrace.errors import UsageError
from megatrace.muse.config import LayerKind
from megatrace.muse.ends import StepEnds
from megatrace.muse.engine import Cache, Engine
from megatrace.muse.plan import ExpertKind
from megatrace.muse.program import Build, Program

BuildOf = Callable[[ExpertKind], Build]


@dataclass(frozen=True, slots=True)
class Pools:
    """A framework's paged keys and values, in its own memory.

    ``keys`` and ``values``: bf16 or float8_e4m3fn [slots, kv heads, 64] of each layer.
    ``sliding``: the layers that lie in the pool of sliding layers. ``table``: int32 [requests,
    positions], the slot of each position in the pool of all others. ``to_sliding``: from there to
    a slot of the sliding pool; None where both are one.
    """

    keys: Sequence[torch.Tensor]
    values: Sequence[torch.Tensor]
    sliding: Sequence[bool]
    table: torch.Tensor
    to_sliding: torch.Tensor | None = None

    def __post_init__(self) -> None:
        """Raise UsageError where sliding layers have a pool that nothing leads to."""
        if self.to_sliding is None and any(self.sliding):
            raise UsageError("layers in a sliding pool need the way to its slots")


class SlotTables:
    """The slot of every position of the request in progress, in each pool, as steps fill it."""

    def __init__(self, pools: Pools) -> None:
        self.table, self.to_sliding = pools.table, pools.to_sliding
        positions, device = pools.table.shape[1], pools.table.device
        self.full = torch.zeros(positions, dtype=torch.int32, device=device)
        self.sliding = torch.zeros_like(self.full) if self.to_sliding is not None else self.full


def pool_caches(
    kinds: Sequence[LayerKind],
    pools: Pools,
    tables: SlotTables,
    ropes: Sequence[torch.Tensor | None],
) -> list[Cache]:
    """The caches of an engine over ``pools``."""
    return [
        Cache(
            pools.keys[i],
            pools.values[i],
            tables.sliding if pools.sliding[i] else tables.full,
            ropes[i],
            kind.window,
        )
        for i, kind in enumerate(kinds)
    ]


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
            *(tables.table, tables.to_sliding, tables.full, tables.sliding),
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
