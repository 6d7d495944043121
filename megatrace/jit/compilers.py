"""Finds the compilers: nvcc on PATH or from the nvidia wheels, else a host C++ compiler."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from megatrace.errors import BuildError

HOST = "host"
"""The target of the host build; any other target is a chip: ``sm_90a``, ``sm_103a``."""

_CC_MAJOR, _CC_MINOR = 75, 76
_FIRST_MAJOR = 9
"""Dependent launches and mbarrier waits begin here."""


@dataclass(frozen=True, slots=True)
class Compiler:
    """A compiler and the words it says of its version, which the cache is keyed on."""

    path: Path
    version: str

    def run(self, args: list[str], *, cwd: Path) -> None:
        """Compile; raises BuildError with the compiler's own errors."""
        done = subprocess.run(
            [str(self.path), *args], cwd=cwd, capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise BuildError(
                f"{self.path.name} failed:\n{_first_errors(done.stderr or done.stdout)}",
                hint="the whole command: " + " ".join([str(self.path), *args]),
            )


def _first_errors(text: str, most: int = 20) -> str:
    lines = text.splitlines()
    first = next((i for i, line in enumerate(lines) if "error" in line), 0)
    return "\n".join(lines[first : first + most])


def _compiler(path: str) -> Compiler:
    said = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)
    return Compiler(Path(path), said.stdout.strip())


def cuda_compiler() -> Compiler:
    """nvcc: ``$MEGATRACE_NVCC``, on PATH, in /usr/local/cuda, or from the nvidia wheels.

    Raises BuildError where there is none.
    """
    candidates = [
        os.environ.get("MEGATRACE_NVCC"),
        shutil.which("nvcc"),
        "/usr/local/cuda/bin/nvcc",
    ]
    spec = importlib.util.find_spec("nvidia")
    for root in (spec.submodule_search_locations or []) if spec else []:
        candidates += [str(p) for p in sorted(Path(root).glob("*/bin/nvcc"), reverse=True)]
    for path in candidates:
        if path and os.access(path, os.X_OK):
            return _compiler(path)
    raise BuildError("no nvcc found", hint="pip install 'megatrace[cuda]' or put nvcc on PATH")


def host_compiler() -> Compiler:
    """``$CXX``, g++ or clang++. Raises BuildError where there is none."""
    for name in (os.environ.get("CXX"), "g++", "clang++", "c++"):
        path = shutil.which(name) if name else None
        if path:
            return _compiler(path)
    raise BuildError("no C++ compiler found", hint="apt-get install g++ (or set CXX)")


def gpu_chip() -> str | None:
    """The first GPU's chip as nvcc names it (``sm_90a``), None where there is none of sm_90 on."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    device, major, minor = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    if driver.cuInit(0) or driver.cuDeviceGet(ctypes.byref(device), 0):
        return None
    for value, attribute in ((major, _CC_MAJOR), (minor, _CC_MINOR)):
        if driver.cuDeviceGetAttribute(ctypes.byref(value), attribute, device):
            return None
    if major.value < _FIRST_MAJOR:
        return None
    return f"sm_{major.value}{minor.value}a"


def default_target() -> str:
    """The GPU's chip where there is a GPU and an nvcc, else the host build.

    ``$MEGATRACE_TARGET`` overrides.
    """
    given = os.environ.get("MEGATRACE_TARGET")
    if given:
        return given
    chip = gpu_chip()
    if chip is None:
        return HOST
    try:
        cuda_compiler()
    except BuildError:
        return HOST
    return chip
