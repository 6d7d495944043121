"""The Muse Spark layer kernel at released sizes on this GPU: fused against its twin.

    python -m tests.bench.bench_layer [--layers 8] [--rows 16 8 1] [--rounds 24] [-o figures.json]
                                      [--against OTHER/kernels/sm103 ...]

One rank of TP8/EP8 with its peers emulated; random weights, routing by the real router. Prints
for every number of rows the time of a layer, the experts of this rank that a layer's rows hit
(mean of all layers), the fraction of the floor (bytes that must be read, at the copy bandwidth of
this run), and the ratio of twin to fused in turn (ABBA) with its spread and that of fused to
itself (A/A). ``--against`` puts the kernels of other checkouts into the same turns, over the same
memory: so a change is judged. ``--levels`` adds what the tracer costs at each level, ``--phases``
what each launch of the twin takes. Where a launch's time goes: ``python -m
tests.bench.layer_phases``.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from megatrace.agent.memory import TraceParams
from megatrace.jit import Kernel
from megatrace.muse.config import RELEASED
from megatrace.muse.engine import Engine, new_cache
from megatrace.muse.events import ROLES
from megatrace.muse.pack import pack_layer
from megatrace.muse.params import Phase
from megatrace.muse.plan import step_floor
from megatrace.muse.program import Build, Level, Program, block_count
from megatrace.muse.tensors import random_layer
from megatrace.schema.layout import CAUSE_SLOTS, LEVEL_COUNTERS, LEVEL_TIMELINE, LINE_WORDS

RANKS = 8


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
        begin, end = self._events
        begin.record(self._stream)
        self.program.replay()
        end.record(self._stream)
        end.synchronize()
        return begin.elapsed_time(end)


class PrivateTrace:
    """A tracer's memory without an agent: lines in pinned host memory that nobody drains."""

    LINES = 256

    def __init__(self, blocks: int, layers: int, level: int) -> None:
        """Room for a grid of ``blocks``; the control word says ``level``."""
        warps = blocks * len(ROLES)
        self._control = torch.tensor([1, level] + [0] * 14, dtype=torch.int32, device="cuda")
        self._cursors = torch.zeros(warps, 4, dtype=torch.int32, device="cuda")
        self._sums = torch.zeros(layers, CAUSE_SLOTS, warps, dtype=torch.int64, device="cuda")
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


def measure(options: argparse.Namespace, rows: int, bandwidth: float) -> dict[str, Any]:
    """Figures of one number of rows."""
    torch.manual_seed(0)
    build = Build.here(options.experts, cache=options.cache)
    setup = Setup.make(options.layers, rows, options.context, build)
    engine = setup.engine
    programs = {
        "fused": Timed(Program(engine.step(rows, "fused", embed=True), build)),
        "again": Timed(Program(engine.step(rows, "fused", embed=True), build)),
        "twin": Timed(Program(engine.step(rows, "twin", embed=True), build)),
    }
    for folder in options.against:
        other = OtherBuild(**asdict(build), folder=folder)
        programs[str(folder)] = Timed(Program(engine.step(rows, "fused", embed=True), other))
    engine.empty()
    torch.cuda.synchronize()
    names = list(programs)
    times: dict[str, list[float]] = {name: [] for name in names}
    distinct = []
    for round_ in range(options.rounds + 4):
        engine.tokens.random_(0, 4096)
        torch.cuda.synchronize()
        order = names if round_ % 2 == 0 else names[::-1]
        for name in order:
            ms = programs[name].ms()
            if round_ >= 4:
                times[name].append(ms)
        distinct.append(setup.distinct(rows))
    fused_us = statistics.median(times["fused"]) * 1e3 / options.layers
    hit = [statistics.mean(layer) for layer in zip(*distinct, strict=True)]
    floor = step_floor(
        engine.model,
        engine.rank,
        kinds=[options.experts] * options.layers,
        distinct=hit,
        context=options.context,
        rows=rows,
        cache=options.cache,
    )
    floor_us = floor.total / bandwidth * 1e6 / options.layers
    figures = {
        "rows": rows,
        "layers": options.layers,
        "us_a_layer": fused_us,
        "twin_us_a_layer": statistics.median(times["twin"]) * 1e3 / options.layers,
        "distinct_experts": statistics.mean(hit),
        "distinct_experts_by_layer": hit,
        "floor_bytes_a_step": asdict(floor),
        "floor_us": floor_us,
        "fraction_of_floor": floor_us / fused_us,
        "twin_to_fused": quantiles(
            [b / a for a, b in zip(times["fused"], times["twin"], strict=True)]
        ),
        "fused_to_fused": quantiles(
            [b / a for a, b in zip(times["fused"], times["again"], strict=True)]
        ),
    }
    figures["against"] = {
        str(folder): quantiles(
            [a / b for a, b in zip(times["fused"], times[str(folder)], strict=True)]
        )
        for folder in options.against
    }
    if options.levels:
        figures["overhead"] = level_overhead(setup, rows, build, options.rounds)
    if options.phases:
        figures["phase_us"] = phase_times(setup, rows, build)
    return figures


def level_overhead(setup: Setup, rows: int, build: Build, rounds: int) -> dict[str, Any]:
    """Percent over level off, in turn with it: of each level and of off itself."""
    engine = setup.engine
    cases: dict[str, tuple[Level, int]] = {
        "off": ("off", 0),
        "off again": ("off", 0),
        "counters": ("counters", LEVEL_COUNTERS),
        "timeline": ("timeline", LEVEL_TIMELINE),
        "timeline built, counters on": ("timeline", LEVEL_COUNTERS),
        "timeline built, switched off": ("timeline", 0),
    }
    launches = engine.step(rows, "fused", embed=True)
    traces = {
        name: PrivateTrace(engine.blocks, setup.layers, level) for name, (_, level) in cases.items()
    }
    timed = {
        name: Timed(Program(launches, replace(build, level=level), trace=traces[name].params))
        for name, (level, _) in cases.items()
    }
    engine.empty()
    torch.cuda.synchronize()
    ratios: dict[str, list[float]] = {name: [] for name in cases if name != "off"}
    for round_ in range(rounds + 4):
        engine.tokens.random_(0, 4096)
        torch.cuda.synchronize()
        order = list(cases) if round_ % 2 == 0 else list(cases)[::-1]
        ms = {name: timed[name].ms() for name in order}
        if round_ >= 4:
            for name in ratios:
                ratios[name].append(100 * (ms[name] / ms["off"] - 1))
    return {name: quantiles(values) for name, values in ratios.items()}


def phase_times(setup: Setup, rows: int, build: Build) -> dict[str, float]:
    """Microseconds of each launch of the twin in the middle layer: differences of prefixes."""
    engine = setup.engine
    launches = engine.step(rows, "twin", embed=True)
    middle = [i for i, p in enumerate(launches) if p.layer == setup.layers // 2]
    ends = {}
    for i in [middle[0] - 1, *middle]:
        with Program(launches[: i + 1], build) as program:
            timed, values = Timed(program), []
            for _ in range(7):
                engine.empty()
                torch.cuda.synchronize()
                values.append(timed.ms())
        ends[i] = statistics.median(values) * 1e3
    engine.empty()
    torch.cuda.synchronize()
    return {
        Phase(launches[i].phases.bit_length() - 1).name.lower(): ends[i] - ends[i - 1]
        for i in middle
    }


def say(figures: dict[str, Any]) -> None:
    """One number of rows, for a reader."""
    spread = "{median:.3f} ({p5:.3f} to {p95:.3f})".format
    print(f"{figures['rows']} rows, {figures['layers']} layers:")
    print(
        f"  a layer   fused {figures['us_a_layer']:.1f} us, twin {figures['twin_us_a_layer']:.1f}"
    )
    print(
        f"  the floor {figures['floor_us']:.1f} us with {figures['distinct_experts']:.1f} experts "
        f"hit a layer: {100 * figures['fraction_of_floor']:.0f} % of it reached"
    )
    print(f"  twin to fused {spread(**figures['twin_to_fused'])}")
    print(f"  fused to itself (A/A) {spread(**figures['fused_to_fused'])}")
    for folder, ratio in figures["against"].items():
        print(f"  fused to that of {folder} {spread(**ratio)}")
    percent = "{median:+.2f} % ({p5:+.2f} to {p95:+.2f})".format
    for name, overhead in figures.get("overhead", {}).items():
        print(f"  {name:<29} {percent(**overhead)}")
    for name, us in figures.get("phase_us", {}).items():
        print(f"  twin's {name:<22} {us:7.1f} us")
    sys.stdout.flush()


def main() -> int:
    """Measure and print; 0 without a GPU, having said so."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--rows", type=int, nargs="+", default=[16, 8, 1])
    parser.add_argument("--rounds", type=int, default=24)
    parser.add_argument("--context", type=int, default=4096)
    parser.add_argument("--experts", choices=("nvfp4", "bf16"), default="nvfp4")
    parser.add_argument("--cache", choices=("bf16", "e4m3"), default="bf16")
    parser.add_argument(
        "--against",
        type=Path,
        nargs="+",
        default=[],
        help="folders of other kernels, whose hand-offs are no larger",
    )
    parser.add_argument("--phases", action="store_true")
    parser.add_argument("--levels", action="store_true")
    parser.add_argument("-o", "--out", type=Path)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("no NVIDIA GPU here: nothing to measure")
        return 0
    bandwidth = copy_bandwidth()
    print(f"{torch.cuda.get_device_name()}, copy {bandwidth / 1e12:.2f} TB/s", flush=True)
    results = []
    for rows in options.rows:
        figures = measure(options, rows, bandwidth)
        results.append(figures)
        say(figures)
        torch.cuda.empty_cache()
    if options.out:
        options.out.write_text(
            json.dumps({"copy_tb_s": bandwidth / 1e12, "runs": results}, indent=1)
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
