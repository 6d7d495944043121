"""What benches of the layer kernel measure: an engine with weights and a past, timed programs."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from megatrace.agent.memory import TraceParams
from megatrace.jit import Kernel
from megatrace.muse.config import RELEASED
from megatrace.muse.engine import Engine, new_cache
from megatrace.muse.events import ROLES
from megatrace.muse.pack import pack_layer
from megatrace.muse.program import Build, Program, block_count
from megatrace.muse.tensors import random_layer
from megatrace.schema.layout import CAUSE_SLOTS, LINE_WORDS

RANKS = 8
HOLD_CYCLES = 400_000
"""So long a stream is held while the host queues what is timed, whose own time would be in it."""


def copy_bandwidth() -> float:
    """Bytes a second that a copy reads and writes."""
    source = torch.empty(2 << 30, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    times = []
    for _ in range(12):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        target.copy_(source)
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / 1e3)
    return 2 * source.numel() / statistics.median(times)


@dataclass(frozen=True, slots=True)
class OtherBuild(Build):
    """The same build of another checkout's kernel."""

    folder: Path = Path()

    @property
    def kernel(self) -> Kernel:
        """What the compiler is given."""
        return replace(Build.kernel.fget(self), source=self.folder.resolve() / "layer.cu")


class Timed:
    """A program and the time of its replays."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self._stream = torch.cuda.ExternalStream(program.stream)
        self._events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]

    def ms(self) -> float:
        """One replay."""
        begin, end = self._held()
        self.program.replay()
        end.record(self._stream)
        end.synchronize()
        return begin.elapsed_time(end)

    def ms_of(self, words: list[torch.Tensor], control: torch.Tensor | None = None) -> float:
        """A replay for each of ``words``, which goes to ``control`` before it; their mean."""
        begin, end = self._held()
        with torch.cuda.stream(self._stream):
            for word in words:
                if control is not None:
                    control.copy_(word, non_blocking=True)
                self.program.replay()
        end.record(self._stream)
        end.synchronize()
        return begin.elapsed_time(end) / len(words)

    def _held(self) -> list[torch.cuda.Event]:
        """The two events, the first of them recorded."""
        with torch.cuda.stream(self._stream):
            torch.cuda._sleep(HOLD_CYCLES)
            self._events[0].record()
        return self._events


class PrivateTrace:
    """A tracer's memory without an agent: lines in pinned host memory that nobody drains."""

    LINES = 256

    def __init__(self, blocks: int, layers: int, level: int) -> None:
        """Room for a grid of ``blocks``; the control word says ``level``."""
        warps = blocks * len(ROLES)
        self._control = torch.tensor([1, level] + [0] * 14, dtype=torch.int32, device="cuda")
        self.word = self._control[:2]
        self._cursors = torch.zeros(warps, 4, dtype=torch.int32, device="cuda")
        self._sums = torch.zeros(layers + 1, CAUSE_SLOTS, warps, dtype=torch.int64, device="cuda")
        self._lines = torch.zeros(warps, self.LINES, LINE_WORDS, dtype=torch.int32).pin_memory()
        places = (self._control, self._cursors, self._sums, self._lines)
        self.params = TraceParams(*(t.data_ptr() for t in places), self.LINES - 1, 0, warps, layers)


def quantiles(values: list[float]) -> dict[str, float]:
    """Median, 5 and 95 %."""
    ordered = sorted(values)
    at = lambda q: ordered[round(q * (len(ordered) - 1))]  # noqa: E731
    return {"median": at(0.5), "p5": at(0.05), "p95": at(0.95)}


@dataclass
class Setup:
    """An engine with weights and a past."""

    engine: Engine
    layers: int

    @classmethod
    def make(cls, layers: int, rows: int, context: int, build: Build) -> Setup:
        """Random weights of one rank, a random past of ``context`` keys."""
        model = replace(RELEASED, layers=RELEASED.layers[:layers])
        rank = model.shard(0, RANKS, shard_projections=True)
        packed = [
            pack_layer(random_layer(model, rank, i, experts=build.experts, device="cuda"), model)
            for i in range(layers)
        ]
        caches = [
            new_cache(model, rank, i, context + rows, "cuda", build.cache) for i in range(layers)
        ]
        for cache in caches:
            for tensor in (cache.keys, cache.values):
                tensor.copy_(torch.randn(tensor.shape, device="cuda"))
        embedding = torch.randn(4096, model.hidden, device="cuda").bfloat16()
        blocks = block_count(build)
        engine = Engine(
            model,
            rank,
            packed,
            caches,
            blocks,
            rows,
            "cuda",
            embedding=embedding,
        )
        engine.context.fill_(context)
        for rows_of in engine.peers.values():
            rows_of.normal_(0, 0.3)
        engine.tokens.random_(0, 4096)
        engine.keep_routes()
        return cls(engine, layers)

    def distinct(self, rows: int) -> list[int]:
        """Experts of this rank that each layer of the last step hit."""
        engine, counts = self.engine, []
        for ids in engine.routes.values():
            local = ids[:rows] - engine.rank.first_expert
            hit = local[(local >= 0) & (local < engine.rank.local_experts)]
            counts.append(hit.unique().numel())
        return counts
