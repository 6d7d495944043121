"""The Muse Spark layer kernel at released sizes on this GPU: fused against its twin.

    python -m tests.bench.bench_layer [--layers 8] [--rows 16 8 1] [--rounds 24] [-o figures.json]
                                      [--against OTHER/kernels/sm103 ...]

One rank of TP8/EP8 with its peers emulated; random weights, routing by the real router. Prints
for every number of rows the time of a layer, the experts of this rank that a layer's rows hit
(mean of all layers), the fraction of the floor (bytes that must be read, at the copy bandwidth of
this run), and the ratio of twin to fused in turn (ABBA) with its spread and that of fused to
itself (A/A). ``--against`` puts the kernels of other checkouts into the same turns, over the same
memory: so a change is judged. ``--levels`` adds what the tracer costs: of a step at each level, and
of the mean step of a recording that keeps one timeline and one step of counters in 32
(``megatrace record`` counts as often by itself, and chooses how often it keeps a timeline by what
the host drains). ``--phases`` adds what each launch of the twin takes. Where a launch's time goes:
``python -m tests.bench.layer_phases``.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from megatrace.muse.params import Phase
from megatrace.muse.plan import step_floor
from megatrace.muse.program import Build, Program
from tests.bench.layer_levels import level_overhead, recorded_overhead
from tests.bench.layer_setup import OtherBuild, Setup, Timed, copy_bandwidth, quantiles


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
        figures["recorded"] = recorded_overhead(setup, rows, build, options.rounds)
    if options.phases:
        figures["phase_us"] = phase_times(setup, rows, build)
    return figures


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
    for name, overhead in figures.get("recorded", {}).items():
        print(f"  mean step {name:<29} {percent(**overhead)}")
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
