"""The program of cases.cu: how it is built and run."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from megatrace.paths import asset_dir, include_dir

HERE = Path(__file__).parent
FLAVOURS = {
    "plain": ["-O2"],
    "ucontext": ["-O1", "-DMEGATRACE_HOST_UCONTEXT"],
    "address": ["-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"],
    "thread": ["-O1", "-g", "-fsanitize=thread", "-Wno-tsan"],
}


@dataclass(frozen=True, slots=True)
class Cases:
    """The built program of kernels."""

    program: Path

    def command(self, *args: object) -> list[str]:
        """The words of a command line."""
        return [str(self.program), *map(str, args)]

    def run(self, *args: object, **env: str) -> subprocess.CompletedProcess[str]:
        """Runs one case to its end."""
        return subprocess.run(
            self.command(*args),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            env={**os.environ, "TSAN_OPTIONS": "atexit_sleep_ms=0", **env},
        )

    def numbers(self, *args: object, **env: str) -> list[int]:
        """Runs one case that prints numbers."""
        done = self.run(*args, **env)
        assert done.returncode == 0, done.stdout + done.stderr
        return [int(word) for word in done.stdout.split()]


Build = Callable[[str], Cases]
"""From a flavour to its program."""


def compiler() -> str:
    """The C++ compiler; skips where there is none."""
    for name in (os.environ.get("CXX"), "g++", "clang++"):
        if name and shutil.which(name):
            return name
    pytest.skip("no C++ compiler on this machine")


def compile_cases(flavour: str, program: Path) -> Cases:
    """Builds cases.cu as a flavour names it."""
    includes = [HERE, include_dir(), asset_dir() / "kernels" / "host"]
    words = [compiler(), "-std=c++17", "-Wall", "-Wextra", "-Werror", "-pthread"]
    words += [*FLAVOURS[flavour], "-DMEGATRACE_HOST_BUILD", *(f"-I{p}" for p in includes)]
    words += ["-x", "c++", str(HERE / "cases.cu"), "-o", str(program)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return Cases(program)
