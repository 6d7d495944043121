"""What the tracer costs a memory-bound kernel on this GPU: builds and runs overhead.cu.

    python -m tests.bench.bench_overhead [ROUNDS] [-o figures.json]

Prints, for three lengths of launch, the ratio of each level to the kernel without a tracer
and of that kernel to itself (A/A): median, 5 and 95 % of the rounds. A round is each of them in
turn, there and back; its time is that of the GPU, which has the graph before it begins.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.bench.gpu_program import run_program


def main() -> int:
    """Build, run, print; 0 without a GPU, having said so."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rounds", nargs="?", type=int, default=64)
    parser.add_argument("-o", "--out", type=Path, help="the figures as JSON")
    options = parser.parse_args()
    figures = run_program("overhead", str(options.rounds))
    if figures is not None and options.out:
        options.out.write_bytes(figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
