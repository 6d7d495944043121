"""How much code an SM keeps from launch to launch on this GPU: builds and runs code_cache.cu.

    python -m tests.bench.bench_code_cache [-o figures.json]

Prints, for straight code of several sizes, cycles an instruction where one warp runs it: in the
first launch, in a launch behind the same one, in one behind a kernel that streams 400 MB, and a
second time in one launch. A kernel's code, and what a tracer adds to it, wants to fit.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.bench.gpu_program import run_program


def main() -> int:
    """Build, run, print; 0 without a GPU, having said so."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--out", type=Path, help="the figures as JSON")
    options = parser.parse_args()
    figures = run_program("code_cache")
    if figures is not None and options.out:
        options.out.write_bytes(figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
