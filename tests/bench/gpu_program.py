"""Builds a CUDA program that lies beside the benches, for this GPU, and runs it."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

from megatrace.errors import MegatraceError
from megatrace.jit.compilers import cuda_compiler, gpu_chip
from megatrace.paths import include_dir


def run_program(name: str, *arguments: str) -> bytes | None:
    """What ``name``.cu prints on stdout; None without a GPU, having said so.

    Ends with 1 and the compiler's words where it cannot be built.
    """
    chip = gpu_chip()
    if chip is None:
        print("no NVIDIA GPU here: nothing to measure")
        return None
    arch = chip.removeprefix("sm_")
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / name
        flags = ["-std=c++17", "-O3", f"-gencode=arch=compute_{arch},code=sm_{arch}"]
        source = Path(__file__).with_name(f"{name}.cu")
        try:
            cuda_compiler().run(
                [*flags, f"-I{include_dir()}", "-o", str(program), str(source)], cwd=Path(folder)
            )
        except MegatraceError as error:
            raise SystemExit(f"{error}\n{error.hint}") from None
        done = subprocess.run([str(program), *arguments], stdout=subprocess.PIPE, check=True)
    return done.stdout
