"""How many words a second of one core the drain moves out of live rings.

A writer process fills the rings of 132 blocks of 12 warps while this one drains them.
Rounds alternate between two readers that differ in nothing (A/A); every line is
counted and nothing may be lost. Run: ``python tests/bench/bench_drain.py [rounds]``.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from megatrace.paths import SHARED_MEMORY
from megatrace.ring.drain import LineReader
from megatrace.ring.file import RingFile, RingSpec

BLOCKS, WARPS, LINES, BURST = 132, 12, 512, 128
WORDS_A_LINE = 30
TARGET_WORDS_PER_S = 250e6


def fill(ring: RingFile, burst: int) -> None:
    """Write one burst of lines into every ring, both numbers last."""
    at = burst * BURST % LINES
    numbers = np.arange(burst * BURST + 1, (burst + 1) * BURST + 1, dtype=np.uint32)
    block = ring.lines[:, at : at + BURST]
    block[:, :, 1:16] = 1 << 23
    block[:, :, 17:] = 1 << 23
    block[:, :, 16] = numbers
    block[:, :, 0] = numbers


def writer(ring: RingFile, bursts: int, done: int, wanted: int) -> None:
    """Stay one burst ahead of the reader."""
    for burst in range(bursts):
        os.read(wanted, 1)
        fill(ring, burst)
        os.write(done, b".")


def drain_until(reader: LineReader, total: int) -> tuple[float, int]:
    """CPU seconds and lines until ``total`` lines were read in all rounds."""
    lines = 0
    begin = time.process_time()
    while reader.stats.read < total:
        lines += len(reader.drain())
    return time.process_time() - begin, lines


def run(path: Path, rounds: int) -> list[float]:
    """Words a CPU second of each round."""
    spec = RingSpec(0, BLOCKS, WARPS, LINES, 0, 0, 0, 1)
    with RingFile.create(path, spec) as owned:
        done, wanted = os.pipe(), os.pipe()
        os.write(wanted[1], b"..")
        child = os.fork()
        if child == 0:
            writer(owned, rounds, done[1], wanted[0])
            os._exit(0)
        with RingFile.attach(path) as ring:
            reader = LineReader(ring)
            rates = []
            for burst in range(rounds):
                os.read(done[0], 1)
                seconds, lines = drain_until(reader, (burst + 1) * BURST * BLOCKS * WARPS)
                os.write(wanted[1], b".")
                rates.append(lines * WORDS_A_LINE / seconds)
            assert reader.stats.lost == 0, reader.stats
        os.waitpid(child, 0)
    return rates


def main() -> None:
    """Print the rate, its spread, and the A/A ratio."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 40
    with tempfile.TemporaryDirectory(dir=SHARED_MEMORY) as folder:
        rates = run(Path(folder) / "bench.ring", rounds + 4)[4:]  # the first touch each page
    low, *_, high = statistics.quantiles(rates, n=20)
    median = statistics.median(rates)
    a, b = statistics.median(rates[::2]), statistics.median(rates[1::2])
    print(f"{BLOCKS * WARPS} rings, {rounds} rounds of {BURST * BLOCKS * WARPS} lines")
    print(
        f"drained {median / 1e6:.0f} M words a CPU second, p5 {low / 1e6:.0f}, p95 {high / 1e6:.0f}"
    )
    print(f"target {TARGET_WORDS_PER_S / 1e6:.0f} M, reached {median / TARGET_WORDS_PER_S:.2f}x")
    print(f"A/A: {a / b:.3f}")


if __name__ == "__main__":
    main()
