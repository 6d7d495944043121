"""Facts of the machine and of the call that a capture keeps: no imports of what it names."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from importlib import metadata

PACKAGES = (
    "megatrace",
    "numpy",
    "pyarrow",
    "torch",
    "triton",
    "sglang",
    "sglang-kernel",
    "sgl-kernel",
    "transformers",
    "flashinfer-python",
)
_KEPT_ENV = re.compile(r"(MEGATRACE|SGLANG|SGL|CUDA|NCCL)_\w+")
_SECRET_ENV = re.compile(r"KEY|TOKEN|SECRET|PASSWORD", re.IGNORECASE)

GPU_FIELDS = (
    "index",
    "name",
    "uuid",
    "driver_version",
    "memory.total",
    "clocks.max.sm",
    "clocks.sm",
)
_GPU_TIMEOUT_S = 5.0


def gather(env: Mapping[str, str] | None = None) -> dict[str, object]:
    """Host, kernel, Python, package versions, clock source and kept variables."""
    env = os.environ if env is None else env
    return {
        "host": platform.node(),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "cpus": os.cpu_count() or 0,
        "python": platform.python_version(),
        "python_path": sys.executable,
        "packages": package_versions(),
        "clock_source": _clock_source(),
        "cwd": _cwd(),
        "env": kept_variables(env),
    }


def kept_variables(env: Mapping[str, str]) -> dict[str, str]:
    """The variables that steer what is recorded; the values of secrets are left out."""
    return {
        name: "***" if _SECRET_ENV.search(name) else value
        for name, value in sorted(env.items())
        if _KEPT_ENV.fullmatch(name)
    }


def package_versions() -> dict[str, str]:
    """Versions of PACKAGES as installed beside this Python, absent ones left out."""
    found: dict[str, str] = {}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


class GpuQuery:
    """``nvidia-smi`` in the background: its start can take seconds, the child's must not."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        program = shutil.which("nvidia-smi")
        if program is None:
            return
        query = f"--query-gpu={','.join(GPU_FIELDS)}"
        try:
            self._process = subprocess.Popen(
                [program, query, "--format=csv,noheader,nounits"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                start_new_session=True,
            )
        except OSError:
            return
        self._deadline = time.monotonic() + _GPU_TIMEOUT_S

    def poll(self) -> list[dict[str, str]] | None:
        """The GPUs, once; None while it runs, after that, and where there is no answer."""
        process = self._process
        if process is None:
            return None
        if process.poll() is None:
            if time.monotonic() > self._deadline:
                self.close()
            return None
        self._process = None
        text, _ = process.communicate()
        return parse_gpus(text) if process.returncode == 0 else None

    def close(self) -> None:
        """End it if it still runs."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


def parse_gpus(text: str) -> list[dict[str, str]]:
    """Rows of ``nvidia-smi --query-gpu=GPU_FIELDS --format=csv,noheader,nounits``."""
    rows = (line.split(", ") for line in text.splitlines())
    return [dict(zip(GPU_FIELDS, row, strict=True)) for row in rows if len(row) == len(GPU_FIELDS)]


def _cwd() -> str:
    try:
        return os.getcwd()
    except OSError:
        return ""


def _clock_source() -> str:
    path = "/sys/devices/system/clocksource/clocksource0/current_clocksource"
    try:
        with open(path, encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""
