"""The preconditions ``megatrace doctor`` looks at."""

from __future__ import annotations

import ctypes
import os
import re
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from megatrace.errors import MegatraceError
from megatrace.sizes import size_text

SHM = Path("/dev/shm")
SHM_WANTED_BYTES = 2 << 30
"""A step of eight ranks at three records a microsecond and warp, with room to spare."""

PLUGIN_GROUP = "sglang.srt.plugins"


@dataclass(frozen=True, slots=True)
class Check:
    """One precondition: ``state`` is ok, warn or fail; ``fix`` is empty where ok."""

    name: str
    state: str
    found: str
    fix: str = ""


def run_checks() -> list[Check]:
    """Every check, in the order a recording meets them."""
    checks: tuple[Callable[[], Check], ...] = (
        _python,
        _shm,
        _runtime_dir,
        _memlock,
        _driver,
        _nvcc,
        _compiler,
        _cache,
        _sglang,
        _plugin,
    )
    return [check() for check in checks]


def _python() -> Check:
    found = f"{sys.version.split()[0]} {sys.executable}"
    if sys.platform != "linux":
        return Check("python", "fail", f"{found} on {sys.platform}", "record on Linux")
    return Check("python", "ok", found)


def _shm() -> Check:
    try:
        stat = os.statvfs(SHM)
    except OSError as error:
        return Check("/dev/shm", "warn", f"{error.strerror}; {_memfd()}", "mount a tmpfs there")
    free = stat.f_bavail * stat.f_frsize
    found = f"{size_text(free)} free of {size_text(stat.f_blocks * stat.f_frsize)}"
    if not os.access(SHM, os.W_OK | os.X_OK):
        found = f"{found}, not writable; {_memfd()}"
        return Check("/dev/shm", "warn", found, f"chmod 1777 {SHM}")
    if free < SHM_WANTED_BYTES:
        fix = "container: --shm-size=8g; host: remount larger"
        return Check("/dev/shm", "warn", f"{found}; {_memfd()}", fix)
    return Check("/dev/shm", "ok", found)


def _memfd() -> str:
    """What becomes of rings that do not fit."""
    from megatrace.ring.memfd import free_memory_bytes

    return f"larger rings go to a memfd, {size_text(free_memory_bytes())} of memory free"


def _runtime_dir() -> Check:
    from megatrace.paths import runtime_root

    try:
        root = runtime_root(create=True)
    except MegatraceError as error:
        return Check("runtime dir", "fail", str(error), error.hint)
    if not os.access(root, os.W_OK | os.X_OK):
        return Check("runtime dir", "fail", f"{root} is not writable", "set MEGATRACE_RUNTIME_DIR")
    return Check("runtime dir", "ok", str(root))


def _memlock() -> Check:
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if soft == resource.RLIM_INFINITY:
        return Check("memlock limit", "ok", "unlimited")
    if soft >= SHM_WANTED_BYTES:
        return Check("memlock limit", "ok", size_text(soft))
    fix = "if CUDA refuses to pin a ring: ulimit -l unlimited; container: --ulimit memlock=-1"
    return Check("memlock limit", "warn", size_text(soft), fix)


def _driver() -> Check:
    fix = "to record a GPU, install the NVIDIA driver; container: --gpus all"
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return Check("driver", "warn", "no libcuda.so.1", fix)
    version = ctypes.c_int(0)
    if library.cuDriverGetVersion(ctypes.byref(version)) != 0 or version.value == 0:
        return Check("driver", "warn", "libcuda.so.1 finds no driver", fix)
    cuda = f"{version.value // 1000}.{version.value % 1000 // 10}"
    gpus = _output("nvidia-smi", "--query-gpu=name", "--format=csv,noheader").splitlines()
    if not gpus:
        return Check("driver", "warn", f"CUDA {cuda}, no GPU seen", fix)
    return Check("driver", "ok", f"CUDA {cuda}, {len(gpus)} x {gpus[0].strip()}")


def _nvcc() -> Check:
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH") or "/usr/local/cuda"
    path = shutil.which("nvcc") or shutil.which("nvcc", path=f"{home}/bin")
    if path is None:
        fix = "to build GPU kernels, install the CUDA toolkit or set CUDA_HOME"
        return Check("nvcc", "warn", "not found", fix)
    release = re.search(r"release ([\d.]+)", _output(path, "--version"))
    return Check("nvcc", "ok", f"{release[1] if release else '?'} {path}")


def _compiler() -> Check:
    names = (os.environ.get("CXX") or "", "c++", "g++", "clang++")
    path = next((found for name in names if name and (found := shutil.which(name))), None)
    if path is None:
        fix = "to build kernels, install g++ or clang++, or set CXX"
        return Check("host compiler", "warn", "not found", fix)
    first = _output(path, "--version").partition("\n")[0]
    return Check("host compiler", "ok", f"{first} {path}")


def _cache() -> Check:
    from megatrace.jit import cache_dir

    folder = cache_dir()
    there = next((p for p in (folder, *folder.absolute().parents) if p.exists()), Path("/"))
    if there.is_dir() and os.access(there, os.W_OK | os.X_OK):
        return Check("build cache", "ok", str(folder))
    why = "cannot be written" if there == folder else f"cannot be made in {there}"
    fix = "to build kernels, set MEGATRACE_CACHE to a folder that can be written"
    return Check("build cache", "warn", f"{folder} {why}", fix)


def _sglang() -> Check:
    try:
        return Check("sglang", "ok", metadata.version("sglang"))
    except metadata.PackageNotFoundError:
        fix = "to record SGLang, install it beside megatrace, or set MEGATRACE_PYTHON"
        return Check("sglang", "warn", "not installed in this Python", fix)


def _plugin() -> Check:
    names = sorted(
        point.name
        for point in metadata.entry_points(group=PLUGIN_GROUP)
        if point.value.startswith("megatrace.")
    )
    if not names:
        fix = "install megatrace (pip install) in the Python that runs sglang"
        return Check("sglang plugin", "warn", "no entry point of megatrace is visible", fix)
    allowed = os.environ.get("SGLANG_PLUGINS")
    if allowed is not None:
        kept = {name.strip() for name in allowed.split(",")}
        left_out = [name for name in names if name not in kept]
        if left_out:
            found = f"SGLANG_PLUGINS leaves out {', '.join(left_out)}"
            return Check("sglang plugin", "warn", found, "add it to SGLANG_PLUGINS, or unset that")
    return Check("sglang plugin", "ok", ", ".join(names))


def _output(*command: str) -> str:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=5, check=False, errors="replace"
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""
