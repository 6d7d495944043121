"""Time and memory of the tables, a step at a time: python tests/bench/bench_tables.py [steps].

Makes a capture of a GPU's worth of rings in a temporary folder, as bench_report.py does, with
so many steps of a few layers, and reads it in fresh processes: the decoding, then each table.
The decoding begins at the open file: clocks, the look at every line and all that is made once
are in it. A record is a record of the capture, a begin and an end of a span one each.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from megatrace.capture.writer import CaptureWriter
from megatrace.schema.layout import LINE_WORDS
from tests.bench import bench_report
from tests.bench.bench_report import BLOCKS, RECORDS, TABLE, WARPS, launch_lines

TABLES = ("launch_times", "stall_classes", "phase_times", "imbalance", "prefetch_timing",
          "sync_waits", "step_times")  # fmt: skip


def make(path: Path, *, steps: int, layers: int) -> int:
    """Write a capture of so many steps; returns how many records it has."""
    rng = np.random.default_rng(1)
    rings = BLOCKS * WARPS
    state = {"words": 0, "lines": 0}
    writer = CaptureWriter(path)
    writer.write_meta(
        "ring", 0, name="rank0", blocks=BLOCKS, warps=WARPS, lines=1 << 20,
        layers=bench_report.LAYERS, device=1, table=TABLE.to_json(),
        roles=["load"] + ["math"] * (WARPS - 1), kernels={"1": "layer"},
    )  # fmt: skip
    for number in range(steps * layers):
        # That file's steps are of 62 layers: take the first few of each.
        at = number // layers * bench_report.LAYERS + number % layers
        lines = launch_lines(at, rng, state)
        ring = np.repeat(np.arange(rings, dtype=np.uint32), lines.shape[1])
        writer.write_lines(0, ring, lines.reshape(-1, LINE_WORDS), number)
    writer.finish()
    return steps * layers * rings * RECORDS


def measure(path: str, *, streamed: bool) -> None:
    """Read ``path`` in this process; prints seconds by part, wall and CPU, and the peak."""
    from megatrace.analysis import views
    from megatrace.capture.reader import open_capture

    wall: Counter[str] = Counter()
    cpu: Counter[str] = Counter()
    steps = 0
    with open_capture(path) as capture:
        options = {"indexed_lines": 0} if streamed else {}
        traces = views.by_step(capture, lean=True, **options)
        while True:
            begin, cpu_begin = time.perf_counter(), time.process_time()
            trace = next(traces, None)
            wall["decode"] += time.perf_counter() - begin
            cpu["decode"] += time.process_time() - cpu_begin
            if trace is None:
                break
            steps += 1
            for name in TABLES:
                begin, cpu_begin = time.perf_counter(), time.process_time()
                getattr(views, name)(trace)
                wall[name] += time.perf_counter() - begin
                cpu[name] += time.process_time() - cpu_begin
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    for part in wall:
        print(part, wall[part], cpu[part])
    print("peak", peak, steps)


def main() -> None:
    """Print records a second and ns a record for the decoding and each table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("steps", nargs="?", type=int, default=8)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--runs", type=int, default=3, help="fresh processes: median and range")
    parser.add_argument(
        "--streamed", action="store_true", help="as captures that are too big for an index"
    )
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        measure(options.measure, streamed=options.streamed)
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "bench.mtr"
        records = make(path, steps=options.steps, layers=options.layers)
        size = path.stat().st_size
        print(f"{records / 1e6:.1f} M records in {options.steps} steps, {size / 1e6:,.0f} MB")
        command = [sys.executable, "-m", "tests.bench.bench_tables", "--measure", str(path)]
        command += ["--streamed"] * options.streamed
        runs = [_run(command) for _ in range(options.runs)]
    parts = list(runs[0].times)
    for name, summed in (
        *((part, [part]) for part in parts),
        ("decode + stall_classes", ["decode", "stall_classes"]),
        ("everything", parts),
    ):
        print(f"{name:24} {_speed(records, [run.sum_of(summed) for run in runs])}")
    assert all(run.steps == options.steps for run in runs)
    print(
        f"peak memory: {max(run.peak for run in runs) / 1e6:,.0f} MB, the file's own pages, which "
        f"it maps, counted; a step's records are {records / options.steps / 1e6:.1f} M"
    )


@dataclass(frozen=True, slots=True)
class _Run:
    """What one process says: seconds of each part, wall and CPU; bytes at its peak; steps."""

    times: dict[str, tuple[float, float]]
    peak: int
    steps: int

    def sum_of(self, parts: list[str]) -> tuple[float, float]:
        wall, cpu = (sum(self.times[part][i] for part in parts) for i in range(2))
        return wall, cpu


def _run(command: list[str]) -> _Run:
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    *rows, (_, peak, steps) = [line.split() for line in done.stdout.splitlines()]
    times = {part: (float(wall), float(cpu)) for part, wall, cpu in rows}
    return _Run(times, int(peak), int(steps))


def _speed(records: int, times: list[tuple[float, float]]) -> str:
    wall, cpu = (sorted(time[i] for time in times) for i in range(2))
    middle = statistics.median(wall)
    return (
        f"{records / middle / 1e6:6.1f} M records/s wall "
        f"({records / wall[-1] / 1e6:.1f} to {records / wall[0] / 1e6:.1f}), "
        f"{records / statistics.median(cpu) / 1e6:6.1f} M/s a core "
        f"({middle / records * 1e9:5.1f} ns a record)"
    )


if __name__ == "__main__":
    main()
