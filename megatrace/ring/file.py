"""One ring file: made by the traced process, mapped by the recorder.

The file is ordinary shared memory, allocated before it is mapped (a store into a hole
of a full tmpfs is a SIGBUS) and never a :mod:`multiprocessing.shared_memory`, whose
resource tracker removes it under the owner. Where it has no room it points to a memfd:
see :mod:`megatrace.ring.memfd`. Inside: :mod:`megatrace.schema.layout`.
"""

from __future__ import annotations

import contextlib
import errno
import json
import mmap
import os
import stat
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megatrace.errors import RingError, SchemaMismatch, UsageError
from megatrace.paths import RUNTIME_DIR_ENV
from megatrace.ring import memfd as memfds
from megatrace.ring.handover import hand_over
from megatrace.ring.locks import HeldLock, is_held
from megatrace.schema.layout import (
    CAUSE_SLOTS,
    CONTROL_OFFSET,
    HOST_RECORD,
    LINE_BYTES,
    LINE_WORDS,
    META_OFFSET,
    RING_HEADER,
    RING_MAGIC,
    RING_VERSION,
    SUM_BYTES,
)

_CUDA = 1
STATE_MAKING, STATE_LIVE, STATE_CLOSED = 0, 1, 2
SECTION_ALIGN = 4096
UNPINNED_FACT = "unpinned_ring"
"""Name of the fact that says why a GPU's lines do not come by themselves."""
MAX_RING_BYTES = 1 << 40


@dataclass(frozen=True, slots=True)
class RingSpec:
    """What a ring file is made for.

    ``lines`` (of 128 bytes, a warp, not 1) and ``host_capacity`` (records) are powers of two or 0;
    ``blocks * warps`` rings and ``layers`` rows of sums; ``device`` 0 cpu, 1 cuda;
    ``meta`` is JSON: ``roles``, ``kernels``, ``table`` ... Raises UsageError otherwise.
    """

    rank: int
    blocks: int
    warps: int
    lines: int
    layers: int
    host_capacity: int
    device: int
    table_hash: int
    meta: dict[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse numbers that do not fit the header."""
        for name in ("rank", "blocks", "warps", "lines", "layers", "host_capacity", "device"):
            if not 0 <= getattr(self, name) < 1 << 31:
                raise UsageError(f"ring: {name}={getattr(self, name)} is out of range")
        for name in ("lines", "host_capacity"):
            value = getattr(self, name)
            if value & (value - 1):
                raise UsageError(
                    f"ring: {name}={value} is no power of two",
                    hint=f"use {1 << value.bit_length()}",
                )

        if self.lines == 1:
            raise UsageError("ring: one line a warp cannot tell old from new", hint="use 2 or more")

    @property
    def rings(self) -> int:
        """Warp rings in the file."""
        return self.blocks * self.warps


@dataclass(frozen=True, slots=True)
class _Places:
    lines: int
    sums: int
    host: int
    total: int


def _places(meta_bytes: int, rings: int, lines: int, layers: int, host: int) -> _Places:
    def up(value: int) -> int:
        return -(-value // SECTION_ALIGN) * SECTION_ALIGN

    at_lines = up(META_OFFSET + meta_bytes)
    at_sums = up(at_lines + rings * lines * LINE_BYTES)
    at_host = up(at_sums + sums_bytes(layers, rings))
    return _Places(at_lines, at_sums, at_host, up(at_host + host * HOST_RECORD.itemsize))


def sums_bytes(layers: int, rings: int) -> int:
    """Bytes of the running sums of a ring: of its layers, and of its blocks."""
    return (layers + 1) * CAUSE_SLOTS * rings * SUM_BYTES


class RingFile:
    """A mapped ring file, as its owner or as a reader.

    Attributes:
        path: where it is.
        header: RING_HEADER, a copy taken when it was opened.
        meta: the JSON of its maker.
        lines: u4 ``(rings, lines, 32)``, live memory.
        sums: u8 ``(layers, causes, rings)``, live memory; the places of the first SUM_GROUPS
            blocks are those of all.
        block_sums: u8 ``(causes, rings)``, of all layers, likewise.
        host: HOST_RECORD ``(host_capacity,)``, live memory.
        memfd: fd of its memory where ``path`` only points there; -1: the file is the ring.
        why_memfd: why it is so; "" where it is not.

    A reader's arrays are read-only, and are gone after :meth:`close`.
    """

    def __init__(
        self,
        path: Path,
        header: Any,
        memory: mmap.mmap,
        control: memoryview,
        lock: HeldLock | None,
        memfd: tuple[int, str] = (-1, ""),
    ) -> None:
        """Use :meth:`create` or :meth:`attach`."""
        self.path = path
        self.memfd, self.why_memfd = memfd
        self.header = header
        self.control_page = control
        """The 4096 bytes from CONTROL_OFFSET; writable for the owner and on request."""
        self._memory = memory
        self._lock = lock
        end = META_OFFSET + int(header["meta_bytes"])
        self.meta: dict[str, Any] = _parse_meta(path, memory[META_OFFSET:end])
        # Of a mmap itself an array would not keep what it looks at, nor of a view of it.
        held = np.frombuffer(memory, np.uint8)
        self.rings = int(header["blocks"]) * int(header["warps"])
        lines, layers = int(header["lines"]), int(header["layers"])
        self.lines: NDArray[np.uint32] = np.ndarray(
            (self.rings, lines, LINE_WORDS), "<u4", held, int(header["lines_offset"])
        )
        sums: NDArray[np.uint64] = np.ndarray(
            (layers + 1, CAUSE_SLOTS, self.rings), "<u8", held, int(header["sums_offset"])
        )
        self.sums, self.block_sums = sums[:-1], sums[-1]
        self.host: NDArray[Any] = np.ndarray(
            (int(header["host_capacity"]),), HOST_RECORD, held, int(header["host_offset"])
        )

    @classmethod
    def create(cls, path: Path, spec: RingSpec) -> RingFile:
        """Make ``path`` (0600, it must not exist), fully allocated, and hold its lock.

        Where the file system has no room, in a memfd, which the session's recorder gets to
        hold too. Raises RingError where ``path`` exists, where memory is too short as well, or the
        system refuses anything else.
        """
        text = json.dumps(spec.meta, separators=(",", ":")).encode()
        places = _places(len(text), spec.rings, spec.lines, spec.layers, spec.host_capacity)
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except FileExistsError:
            raise RingError(
                f"{path} exists: another ring of this session has that name",
                hint="give every ring its own name, or start a new session",
            ) from None
        except OSError as error:
            raise RingError(f"cannot make {path}: {error.strerror}") from None
        memfd, why = -1, ""
        try:
            lock = HeldLock(path)
            why = _allocate(fd, path, places.total, pinned=spec.device == _CUDA)
            if why:
                memfd = memfds.make(path, places.total, why)
            memory = mmap.mmap(memfd if why else fd, places.total)
            header = _new_header(spec, len(text), places)
            memory[META_OFFSET : META_OFFSET + len(text)] = text
            live = np.ndarray((), RING_HEADER, memory)
            live[...] = header
            live["state"] = STATE_LIVE  # last: until now a reader has refused the file
            header["state"] = STATE_LIVE
            if why:
                _point(fd, memfd, path, places.total, why)
        except BaseException as error:
            path.unlink(missing_ok=True)
            if memfd >= 0:
                os.close(memfd)
            if isinstance(error, OSError):
                raise RingError(f"cannot make {path}: {error.strerror}") from None
            raise
        finally:
            os.close(fd)
        control = memoryview(memory)[CONTROL_OFFSET:META_OFFSET]
        return cls(path, header, memory, control, lock, (memfd, why))

    @classmethod
    def attach(
        cls, path: Path, *, writable_control: bool = False, memfd: int | None = None
    ) -> RingFile:
        """Map ``path`` read-only, all but its control page where that is asked for.

        ``memfd`` is its memory where the caller has been given it; it is the ring's to close
        from then on. Nothing in the file is trusted. Raises RingError where it is not a whole
        ring of this user's (RingGone: where nobody holds its memfd), SchemaMismatch where it
        is of another layout.
        """
        mode = os.O_RDWR if writable_control else os.O_RDONLY
        try:
            fd = os.open(path, mode | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError as error:
            raise RingError(f"cannot open {path}: {error.strerror}") from None
        at = fd
        try:
            _check_private(fd, path)
            pointer = memfds.read_pointer(fd)
            if pointer is not None:
                if memfd is not None and memfds.is_pointed(memfd, pointer):
                    at = memfd
                else:
                    at = memfds.open_pointed(path, pointer, mode)
                _check_private(at, path)
            size = _check_size(at, path)
            memory = mmap.mmap(at, size, prot=mmap.PROT_READ)
            header = np.ndarray((), RING_HEADER, memory).copy()
            _check_header(path, header, size)
            page = _map_control(at, memory, writable=writable_control)
        except BaseException:
            if at not in (fd, memfd):
                os.close(at)
            raise
        finally:
            os.close(fd)
        return cls(path, header, memory, page, None, (at, pointer.why) if pointer else (-1, ""))

    @property
    def rank(self) -> int:
        """The rank this file belongs to."""
        return int(self.header["rank"])

    @property
    def state(self) -> int:
        """STATE_* as it is now: STATE_CLOSED once the owner ended in order."""
        return int(np.ndarray((), RING_HEADER, self._memory)["state"])

    def address(self, offset: int) -> int:
        """Address in this process of byte ``offset``, for registration with a driver."""
        base: int = np.frombuffer(self._memory, np.uint8).ctypes.data
        return base + offset

    def owner_alive(self) -> bool:
        """Whether the process that made the file still holds its lock."""
        return is_held(self.path)

    def mark_closed(self) -> None:
        """Owner only: say that no more will be written."""
        np.ndarray((), RING_HEADER, self._memory)["state"] = STATE_CLOSED

    def close(self) -> None:
        """Unmap, and give up the owner's lock; the file stays. Again is harmless."""
        if self._lock is not None:
            self._lock.release()
        nothing = np.zeros(0, np.uint8)
        self.lines = nothing.view("<u4").reshape(0, 0, LINE_WORDS)
        self.sums = nothing.view("<u8").reshape(0, CAUSE_SLOTS, 0)
        self.block_sums = self.sums.reshape(CAUSE_SLOTS, 0)
        self.host = nothing.view(HOST_RECORD)
        self.control_page.release()
        with contextlib.suppress(BufferError):  # an array of the caller's still looks at it
            self._memory.close()
        if self.memfd >= 0:
            os.close(self.memfd)
            self.memfd = -1

    def __enter__(self) -> RingFile:
        """Return itself; closes on exit."""
        return self

    def __exit__(self, *exc: object) -> None:
        """Close."""
        self.close()


def _new_header(spec: RingSpec, meta_bytes: int, places: _Places) -> Any:
    header = np.zeros((), RING_HEADER)
    header["magic"] = RING_MAGIC
    header["version"] = RING_VERSION
    header["table_hash"] = spec.table_hash
    header["total_bytes"] = places.total
    header["meta_bytes"] = meta_bytes
    header["lines_offset"] = places.lines
    header["sums_offset"] = places.sums
    header["host_offset"] = places.host
    for name in ("rank", "blocks", "warps", "lines", "layers", "host_capacity", "device"):
        header[name] = getattr(spec, name)
    header["pid"] = os.getpid()
    header["created_ns"] = time.time_ns()
    header["created_mono_ns"] = time.monotonic_ns()
    return header


def _allocate(fd: int, path: Path, size: int, *, pinned: bool) -> str:
    """Give the file its bytes; why not, where a memfd has to. Raises RingError."""
    why = memfds.why_not_a_file(path.parent, size, pinned=pinned)
    if why:
        return why
    try:
        os.posix_fallocate(fd, 0, size)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EFBIG, errno.EDQUOT):
            raise RingError(f"cannot allocate {path}: {error.strerror}") from None
        os.ftruncate(fd, 0)  # other ranks were quicker
        return f"{path.parent}: {error.strerror}"
    return ""


def _point(fd: int, memfd: int, path: Path, size: int, why: str) -> None:
    try:
        memfds.write_pointer(fd, memfd, size, why)
    except OSError as error:
        raise RingError(
            f"cannot write {path}: {error.strerror}",
            hint=f"set {RUNTIME_DIR_ENV} to a directory on another file system",
        ) from None
    hand_over(path, memfd)


def _check_private(fd: int, path: Path) -> None:
    facts = os.fstat(fd)
    if not stat.S_ISREG(facts.st_mode):
        raise RingError(f"{path} is not a regular file")
    if facts.st_uid != os.geteuid():
        raise RingError(f"{path} belongs to user {facts.st_uid}", hint="run as that user")
    if facts.st_mode & 0o077:
        raise RingError(f"{path} is open to others", hint=f"chmod 600 {path}")


def _check_size(fd: int, path: Path) -> int:
    facts = os.fstat(fd)
    if not META_OFFSET <= facts.st_size <= MAX_RING_BYTES:
        raise RingError(f"{path} is no ring: {facts.st_size} bytes")
    return facts.st_size


def _check_header(path: Path, header: Any, size: int) -> None:
    if bytes(header["magic"]) != RING_MAGIC or int(header["state"]) == STATE_MAKING:
        raise RingError(
            f"{path} is no ring, or its owner is still making it", hint="try again in a moment"
        )
    if int(header["version"]) != RING_VERSION:
        raise SchemaMismatch(
            f"{path} is a ring of version {int(header['version'])}, "
            f"this megatrace reads version {RING_VERSION}",
            hint="use one megatrace in the traced process and in the recorder",
        )
    fields = ("blocks", "warps", "lines", "layers", "host_capacity")
    blocks, warps, lines, layers, host = (int(header[name]) for name in fields)
    expected = _places(int(header["meta_bytes"]), blocks * warps, lines, layers, host)
    places = ("lines_offset", "sums_offset", "host_offset", "total_bytes")
    found = _Places(*[int(header[name]) for name in places])
    if lines & (lines - 1) or host & (host - 1) or found != expected or found.total != size:
        raise RingError(f"{path} is damaged: its sizes disagree", hint="megatrace sessions --prune")


def _map_control(fd: int, memory: mmap.mmap, *, writable: bool) -> memoryview:
    if not writable:
        return memoryview(memory)[CONTROL_OFFSET:META_OFFSET]
    begin = CONTROL_OFFSET // mmap.ALLOCATIONGRANULARITY * mmap.ALLOCATIONGRANULARITY
    page = mmap.mmap(fd, META_OFFSET - begin, offset=begin)
    return memoryview(page)[CONTROL_OFFSET - begin :]


def _parse_meta(path: Path, text: bytes) -> dict[str, Any]:
    try:
        meta = json.loads(text or b"{}")
    except (ValueError, RecursionError):
        meta = None
    if not isinstance(meta, dict):
        raise RingError(f"{path} is damaged: its meta is no JSON object")
    return meta
