"""What the tracer costs a memory-bound kernel on this GPU: builds and runs overhead.cu.

    python -m tests.bench.bench_overhead [ROUNDS] [-o figures.json]

Prints, for three lengths of launch, the ratio of each level to the kernel without a tracer
and of that kernel to itself (A/A): median, 5 and 95 % of the rounds.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from megatrace.errors import MegatraceError
from megatrace.jit.compilers import cuda_compiler, gpu_chip
from megatrace.paths import include_dir


def main() -> int:
    """Build, run, print; 0 without a GPU, having said so."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rounds", nargs="?", type=int, default=64)
    parser.add_argument("-o", "--out", type=Path, help="the figures as JSON")
    options = parser.parse_args()
    chip = gpu_chip()
    if chip is None:
        print("no NVIDIA GPU here: nothing to measure")
        return 0
    arch = chip.removeprefix("sm_")
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "overhead"
        flags = ["-std=c++17", "-O3", f"-gencode=arch=compute_{arch},code=sm_{arch}"]
        source = Path(__file__).with_name("overhead.cu")
        try:
            cuda_compiler().run(
                [*flags, f"-I{include_dir()}", "-o", str(program), str(source)], cwd=Path(folder)
            )
        except MegatraceError as error:
            print(f"{error}\n{error.hint}", file=sys.stderr)
            return 1
        done = subprocess.run(
            [str(program), str(options.rounds)], stdout=subprocess.PIPE, check=True
        )
    if options.out:
        options.out.write_bytes(done.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
