"""Time and memory of a report: python tests/bench/bench_report.py [millions] [--bytes].

Makes a capture of a GPU's worth of rings in a temporary folder, in the order in which a
recorder drains them, reports it in a fresh process and removes it; with --bytes its program
says the bytes of its launches, so that the report has a floor.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from megatrace.capture.writer import CaptureWriter
from megatrace.schema import Arg, Cause, Event, EventTable, Kind
from megatrace.schema.layout import (
    ARG_BIT,
    ARG_BITS,
    ARG_MASK,
    HALF_WORDS,
    KERNEL_SHIFT,
    LINE_WORDS,
    RECORDS_PER_HALF,
    RECORDS_PER_LINE,
    TIME_BITS,
)
from megatrace.schema.traffic import COPY_BANDWIDTH, LAUNCH_BYTES, LaunchBytes

BLOCKS, WARPS, LAYERS = 132, 12, 62
TILES = 100
RECORDS = 3 * TILES
LAUNCH_NS, GHZ = 100_000, 1.98
TABLE = EventTable(
    "bench",
    (
        Event(16, "tile", Kind.SPAN, "A tile.", args=(Arg("index"),)),
        Event(18, "full", Kind.STALL, "No data.", cause=Cause.DATA),
    ),
)


def launch_lines(number: int, rng: np.random.Generator, state: dict[str, int]) -> np.ndarray:
    """Lines of launch ``number`` of all warps, [rings, lines, 32]."""
    rings = BLOCKS * WARPS
    begin = 10**9 + number * (LAUNCH_NS + 1000) + rng.integers(0, 900, rings)
    t0 = (begin * GHZ).astype(np.int64) + np.repeat(np.arange(BLOCKS) * 10**9, WARPS)
    gt = begin // 32 * 32
    sm = np.repeat(np.arange(BLOCKS), WARPS)
    step, layer = number // LAYERS + 1, number % LAYERS
    arg = [number, step, 1 << KERNEL_SHIFT | layer, gt, gt >> ARG_BITS, t0, t0 >> ARG_BITS]
    words = [(1 << TIME_BITS) | sm, *arg, state["words"]]
    every = int(LAUNCH_NS * GHZ) // TILES
    at = np.arange(TILES) * every
    blocked = rng.lognormal(5.5, 0.8, (rings, TILES)).astype(np.int64) % (every // 2)
    dense = np.zeros((rings, TILES, 5), np.int64)
    dense[:, :, 0] = (18 << TIME_BITS) | (at + 50)
    dense[:, :, 1] = ARG_BIT | blocked
    dense[:, :, 2] = (16 << TIME_BITS) | (at + 50 + blocked)
    dense[:, :, 3] = ARG_BIT | np.arange(TILES)
    dense[:, :, 4] = (17 << TIME_BITS) | (at + every - 20)
    count = 9 + 5 * TILES + 3
    ran = int(LAUNCH_NS * GHZ)
    close = [(2 << TIME_BITS) | ran, t0 + ran, state["words"] + count]
    lines = -(-count // RECORDS_PER_LINE)
    flat = np.zeros((rings, lines * RECORDS_PER_LINE), np.int64)
    for i, word in enumerate(words):
        flat[:, i] = word if i == 0 else ARG_BIT | (np.asarray(word) & ARG_MASK)
    flat[:, 9 : count - 3] = dense.reshape(rings, -1)
    for i, word in enumerate(close):
        flat[:, count - 3 + i] = word if i == 0 else ARG_BIT | (np.asarray(word) & ARG_MASK)
    out = np.zeros((rings, lines, LINE_WORDS), np.uint32)
    body = flat.reshape(rings, lines, RECORDS_PER_LINE)
    out[:, :, 1:HALF_WORDS] = body[:, :, :RECORDS_PER_HALF]
    out[:, :, HALF_WORDS + 1 :] = body[:, :, RECORDS_PER_HALF:]
    out[:, :, 0] = out[:, :, HALF_WORDS] = state["lines"] + 1 + np.arange(lines)
    state["words"] += count
    state["lines"] += lines
    return out


def make(path: Path, records: int, *, says_bytes: bool = False) -> int:
    """Write a capture of about so many records; returns how many there are."""
    rng = np.random.default_rng(1)
    rings = BLOCKS * WARPS
    launches = max(1, records // (RECORDS * rings))
    state = {"words": 0, "lines": 0}
    writer = CaptureWriter(path)
    writer.write_meta(
        "ring", 0, name="rank0", blocks=BLOCKS, warps=WARPS, lines=1 << 20, layers=LAYERS,
        device=1, table=TABLE.to_json(), roles=["load"] + ["math"] * (WARPS - 1),
        kernels={"1": "layer"},
    )  # fmt: skip
    if says_bytes:
        said = LaunchBytes("layer", (400_000_000,) * LAYERS, (0,) * LAYERS)
        writer.write_meta("fact", 0, name=LAUNCH_BYTES, process="rank0000", value=said.to_fact())
        rate = {"bytes_per_s": 4.2e12, "how": "a copy"}
        writer.write_meta("fact", 0, name=COPY_BANDWIDTH, process="rank0000", value=rate)
    for number in range(launches):
        lines = launch_lines(number, rng, state)
        ring = np.repeat(np.arange(rings, dtype=np.uint32), lines.shape[1])
        writer.write_lines(0, ring, lines.reshape(-1, LINE_WORDS), number)
    writer.finish()
    return launches * rings * RECORDS


def measure(path: str) -> None:
    """Report ``path`` in this process; prints seconds, CPU seconds, peak bytes, records."""
    from megatrace.analysis.floors import reported
    from megatrace.capture.reader import open_capture

    begin, cpu_begin = time.perf_counter(), time.process_time()
    with open_capture(path) as capture:
        report = reported(capture)
    seconds, cpu = time.perf_counter() - begin, time.process_time() - cpu_begin
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    assert report.loss[0].words_lost == 0
    assert not report.loss[0].malformed, report.loss
    print(seconds, cpu, peak, sum(row.records for row in report.overhead))


def main() -> None:
    """Print time, memory, their spread and the ratio to the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("millions", nargs="?", type=float, default=100.0)
    parser.add_argument("--bytes", action="store_true", help="the program says its bytes")
    parser.add_argument("--runs", type=int, default=2)
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        measure(options.measure)
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "bench.mtr"
        begin = time.perf_counter()
        records = make(path, int(options.millions * 1e6), says_bytes=options.bytes)
        size = path.stat().st_size
        print(f"{records / 1e6:.1f} M records, {size / 1e6:,.0f} MB, "
              f"made in {time.perf_counter() - begin:.0f} s")  # fmt: skip
        runs = []
        for _ in range(options.runs):
            command = [sys.executable, __file__, "--measure", str(path)]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            seconds, cpu, peak, found = map(float, done.stdout.split())
            assert found == records, (found, records)
            runs.append((seconds, cpu, peak))
    for i, name in enumerate(("wall", "CPU")):
        times = sorted(run[i] for run in runs)
        middle = statistics.median(times)
        print(f"{name}: {middle:.1f} s ({times[0]:.1f} to {times[-1]:.1f}), "
              f"{middle / records * 1e9:.0f} ns a record")  # fmt: skip
    peak = max(run[2] for run in runs)
    print(f"peak memory: {peak / 1e6:,.0f} MB, {peak / size:.2f} of the file; "
          "the file's own pages, which it maps, count")  # fmt: skip


if __name__ == "__main__":
    main()
