"""One source, two machines: builds a kernel file into a shared library, once.

The cache (``$MEGATRACE_CACHE``, else ``$XDG_CACHE_HOME/megatrace``) is keyed by what goes
in: the source, every header it can reach, the tables of events, the flags, the compiler's
version. Of several processes that want the same library one builds it and the others
wait for its lock.
"""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from megatrace.errors import BuildError, SchemaMismatch
from megatrace.jit.compilers import HOST, Compiler, cuda_compiler, host_compiler
from megatrace.paths import asset_dir, include_dir
from megatrace.schema import EventTable
from megatrace.schema.emit import table_header
from megatrace.schema.layout import TRACER_VERSION

CACHE_ENV = "MEGATRACE_CACHE"
_HEADERS = ("*.cuh", "*.hpp", "*.h")


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel file with its tables of events and its macros.

    Each table becomes ``<name>_events.cuh`` on the include path; none need lie beside the source.
    """

    source: Path
    tables: tuple[EventTable, ...] = ()
    defines: dict[str, str] = field(default_factory=dict)

    def includes(self, target: str) -> tuple[Path, ...]:
        """Folders the compiler searches, and the cache key covers."""
        folders = (self.source.parent, include_dir())
        return (*folders, asset_dir() / "kernels" / "host") if target == HOST else folders


def build(kernel: Kernel, target: str) -> Path:
    """The shared library of ``kernel`` for ``target`` (a chip or HOST), from the cache or new.

    Raises BuildError with the compiler's words, or where an old header of a table lies beside
    the source.
    """
    _refuse_stale_headers(kernel)
    compiler = host_compiler() if target == HOST else cuda_compiler()
    flags = _flags(kernel, target, compiler)
    folder = cache_dir() / f"{kernel.source.stem}-{target}-{_key(kernel, target, compiler, flags)}"
    library = folder / "kernel.so"
    if library.exists():
        return library
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / "lock").open("w")
    except OSError as error:
        raise BuildError(
            f"cannot write the cache of kernels, {folder.parent}: {error.strerror}",
            hint=f"set {CACHE_ENV} to a folder that can be written",
        ) from None
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not library.exists():
            _compile(kernel, target, compiler, flags, library)
    return library


def load(library: Path, table: EventTable) -> ctypes.CDLL:
    """Loads ``library`` after checking that it was compiled with ``table`` and this tracer.

    Raises SchemaMismatch naming both versions where it was not, BuildError where it cannot
    be loaded or does not say (``megatrace_table_hash``).
    """
    try:
        loaded = ctypes.CDLL(str(library))
        compiled = loaded.megatrace_table_hash
    except (OSError, AttributeError) as error:
        raise BuildError(
            f"{library} is no traced kernel: {error}",
            hint="export uint64_t megatrace_table_hash() from it",
        ) from None
    compiled.restype = ctypes.c_uint64
    if compiled() != table.build_hash:
        raise SchemaMismatch(
            f"{library} was compiled with table and tracer {compiled():016x}, "
            f"this process has {table.build_hash:016x}, of table {table.version} "
            f"and tracer version {TRACER_VERSION}",
            hint="build the kernel again",
        )
    return loaded


def _refuse_stale_headers(kernel: Kernel) -> None:
    # The compiler takes what lies beside the source before it looks at the include path.
    for table in kernel.tables:
        beside = kernel.source.with_name(f"{table.name}_events.cuh")
        if beside.is_file() and beside.read_text() != table_header(table):
            raise BuildError(
                f"{beside} is not the header of today's table {table.name!r}",
                hint=f"rm {beside}: a build makes its own",
            )


def _flags(kernel: Kernel, target: str, compiler: Compiler) -> list[str]:
    defines = [f"-D{name}={value}" for name, value in sorted(kernel.defines.items())]
    if target == HOST:
        own = [
            "-x",
            "c++",
            "-O2",
            "-g",
            "-fno-strict-aliasing",
            "-fPIC",
            "-pthread",
            "-DMEGATRACE_HOST_BUILD",
        ]
    else:
        arch = target.removeprefix("sm_")
        own = [
            "-O3",
            "-lineinfo",
            f"-gencode=arch=compute_{arch},code=sm_{arch}",
            "-Xcompiler=-fPIC",
            *_library_folder(compiler),
        ]
    return ["-std=c++17", "-shared", *own, *defines]


def _library_folder(compiler: Compiler) -> list[str]:
    """An nvcc from a wheel does not know where its own runtime library is."""
    folder = compiler.path.resolve().parent.parent / "lib"
    return [f"-L{folder}"] if folder.is_dir() else []


def _key(kernel: Kernel, target: str, compiler: Compiler, flags: list[str]) -> str:
    digest = hashlib.sha256()
    for text in (compiler.version, target, *flags, *(t.to_json() for t in kernel.tables)):
        digest.update(text.encode() + b"\0")
    files = [kernel.source]
    for folder in kernel.includes(target):
        files += [p for pattern in _HEADERS for p in folder.rglob(pattern)]
    for path in sorted(set(files)):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def _compile(
    kernel: Kernel, target: str, compiler: Compiler, flags: list[str], library: Path
) -> None:
    with tempfile.TemporaryDirectory(dir=library.parent) as scratch:
        work = Path(scratch)
        for table in kernel.tables:
            (work / f"{table.name}_events.cuh").write_text(table_header(table))
        folders = [f"-I{p}" for p in (work, *kernel.includes(target))]
        made = work / library.name
        compiler.run([*flags, *folders, "-o", str(made), str(kernel.source.resolve())], cwd=work)
        os.replace(made, library)


def cache_dir() -> Path:
    """Where built kernels are kept; it need not exist."""
    given = os.environ.get(CACHE_ENV)
    if given:
        return Path(given)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "megatrace"
