"""The aggregate page: running sums of one session, for any number of viewers.

``aggregate.page`` in the session directory holds one header, one row a rank and the
tables of :class:`Sums`, under one sequence lock. The recorder is its only writer. A change
of shape makes a new page of the same name and marks the old one, so that viewers open it
again.
"""

from __future__ import annotations

import json
import mmap
import os
import stat
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megatrace.errors import RingError, SchemaMismatch
from megatrace.ring.seqlock import read_consistent
from megatrace.ring.sums import TABLES, Shape, Sums

PAGE_NAME = "aggregate.page"
PAGE_VERSION = 2
_MAGIC = b"MEGAGGRE"
_ROLES_BYTES = 3072
NOTE_BYTES = 8192

_HEADER = np.dtype(
    [
        ("magic", "S8"),
        ("version", "<u4"),
        ("seq", "<u4"),  # odd while being written
        ("replaced", "<u4"),
        ("ranks", "<u4"),
        ("layers", "<u4"),
        ("roles", "<u4"),
        ("blocks", "<u4"),
        ("note_bytes", "<u4"),
        ("updated_ns", "<i8"),  # CLOCK_MONOTONIC
        ("started_ns", "<i8"),
        ("file_bytes", "<u8"),
        ("clock_error_ns", "<f8"),  # the worst of the ranks; nan: not known
        ("roles_bytes", "<u4"),
        ("pad", "<u4"),
        ("role_names", f"V{_ROLES_BYTES}"),
        ("note", f"V{NOTE_BYTES}"),  # JSON
    ]
)

_OPENING = np.dtype(_HEADER.descr[:4])
"""The same in every version."""

RANK_ROW = np.dtype(
    [
        ("rank", "<u4"),
        ("alive", "<u4"),
        ("level", "<u4"),
        ("window_open", "<u4"),
        ("step", "<u8"),
        ("timeline_steps", "<u8"),
        ("lines_read", "<u8"),
        ("lines_lost", "<u8"),
        ("host_records", "<u8"),
        ("host_lost", "<u8"),
        ("clock_error_ns", "<f8"),
        ("ns_per_cycle", "<f8"),  # from the launches seen; nan: not known
        ("device", "<u4"),  # 0 cpu (host build), 1 cuda; NO_DEVICE: no traced kernel
        ("every_n", "<u4"),
        ("tokens", "<u8"),  # that the host's steps gave out, as far as they say
        ("verified", "<u8"),  # requests of verifies whose accept length is known
        ("accepted", "<u8"),  # tokens they accepted, bonus included
    ]
)
"""What the page says of one rank; ``clock_error_ns`` is nan while it is not known."""

NO_DEVICE = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class Aggregate:
    """One consistent reading of the page.

    Attributes:
        roles: names of the warp roles.
        ranks: RANK_ROW ``(ranks,)``.
        sums: the tables.
        updated_ns: CLOCK_MONOTONIC when it was written.
        started_ns: CLOCK_MONOTONIC when the recording began.
        file_bytes: size of the capture so far.
        clock_error_ns: worst clock error of the ranks; nan while not known.
        note: what the recorder says of itself: ``asked``, ``answers``, ``burst``, ``capture``.
    """

    roles: tuple[str, ...]
    ranks: NDArray[Any]
    sums: Sums
    updated_ns: int
    started_ns: int
    file_bytes: int
    clock_error_ns: float
    note: Mapping[str, Any]


class AggregatePage:
    """The page, mapped by its writer (:meth:`create`) or by a viewer (:meth:`attach`).

    Attributes:
        path: the file.
        shape: the sizes of its tables.
        roles: names of the roles.
    """

    def __init__(self, path: Path, memory: mmap.mmap) -> None:
        """Use :meth:`create` or :meth:`attach`."""
        self.path = path
        self._memory = memory
        self._header = np.ndarray((), _HEADER, memory)
        self.shape = _shape(self._header)
        self.roles = _roles(self._header)
        self._rows: NDArray[Any] = np.ndarray(
            (self.shape.ranks,), RANK_ROW, memory, _HEADER.itemsize
        )
        self._sums = _map_sums(memory, self.shape)

    @classmethod
    def create(
        cls,
        session: Path,
        *,
        ranks: int,
        layers: int,
        roles: Sequence[str],
        blocks: int = 0,
        started_ns: int = 0,
    ) -> AggregatePage:
        """Make the page of this shape in ``session``, in place of one of another shape.

        ``started_ns`` is when the recording began; 0: now. Raises RingError where there is
        no room for it.
        """
        path = session / PAGE_NAME
        names = json.dumps(list(roles)).encode()
        if len(names) > _ROLES_BYTES:
            raise RingError("the names of the roles are too long for the aggregate page")
        shape = Shape(ranks, layers, len(roles), blocks)
        size = _size(shape)
        made = path.with_name(f".{PAGE_NAME}.{os.getpid()}")
        made.unlink(missing_ok=True)
        try:
            fd = os.open(made, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                os.posix_fallocate(fd, 0, size)
                memory = mmap.mmap(fd, size)
            finally:
                os.close(fd)
        except OSError as error:
            made.unlink(missing_ok=True)
            raise RingError(
                f"cannot make {path}: {error.strerror}",
                hint=f"it needs {size / 1024:,.0f} KiB of {session.parent}; in a container use a "
                "larger --shm-size",
            ) from None
        header = np.ndarray((), _HEADER, memory)
        header["version"], header["ranks"], header["layers"] = PAGE_VERSION, ranks, layers
        header["roles"], header["blocks"] = len(roles), blocks
        header["roles_bytes"] = len(names)
        header["role_names"] = _field(names, "role_names")
        header["clock_error_ns"] = np.nan
        header["updated_ns"] = time.monotonic_ns()
        header["started_ns"] = started_ns or header["updated_ns"]
        header["magic"] = _MAGIC
        _mark_replaced(path)
        made.rename(path)
        return cls(path, memory)

    @classmethod
    def attach(cls, session: Path) -> AggregatePage:
        """Map the page of ``session`` read-only.

        Raises RingError where there is none or it cannot be trusted, SchemaMismatch where
        another version wrote it.
        """
        path = session / PAGE_NAME
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError as error:
            raise RingError(
                f"no aggregate page in {session}: {error.strerror}",
                hint="its recorder has not started yet, or has ended",
            ) from None
        try:
            facts = os.fstat(fd)
            private = facts.st_uid == os.geteuid() and not facts.st_mode & 0o077
            if not (stat.S_ISREG(facts.st_mode) and private and facts.st_size >= _OPENING.itemsize):
                raise RingError(f"{path} is no aggregate page of this user")
            memory = mmap.mmap(fd, facts.st_size, prot=mmap.PROT_READ)
        finally:
            os.close(fd)
        _check(path, memory)
        return cls(path, memory)

    @property
    def replaced(self) -> bool:
        """Whether a page of another shape has taken its place: attach again."""
        return bool(self._header["replaced"])

    def publish(
        self,
        *,
        ranks: NDArray[Any],
        sums: Sums,
        file_bytes: int = 0,
        clock_error_ns: float = float("nan"),
        note: Mapping[str, Any] | None = None,
    ) -> None:
        """Writer only: put a new state in place of the old. Tables have the page's shape.

        A ``note`` too long for the page is left out.
        """
        text = json.dumps(note or {}, separators=(",", ":"), default=str).encode()
        if len(text) > NOTE_BYTES:
            text = b"{}"
        header = self._header
        header["seq"] |= 1
        self._rows[...] = ranks
        for name in TABLES:
            getattr(self._sums, name)[...] = getattr(sums, name)
        header["file_bytes"] = file_bytes
        header["clock_error_ns"] = clock_error_ns
        header["note_bytes"] = len(text)
        header["note"] = _field(text, "note")
        header["updated_ns"] = time.monotonic_ns()
        header["seq"] += np.uint32(1)

    def read(self, *, timeout_s: float = 0.2) -> Aggregate:
        """One consistent reading. Raises RingError where its writer died in mid-write."""
        return read_consistent(
            lambda: int(self._header["seq"]), self._copy, timeout_s=timeout_s, what=str(self.path)
        )

    def _copy(self) -> Aggregate:
        header = self._header.copy()
        return Aggregate(
            roles=self.roles,
            ranks=self._rows.copy(),
            sums=self._sums.copy(),
            updated_ns=int(header["updated_ns"]),
            started_ns=int(header["started_ns"]),
            file_bytes=int(header["file_bytes"]),
            clock_error_ns=float(header["clock_error_ns"]),
            note=_note(header),
        )

    def close(self) -> None:
        """Unmap; the file stays."""
        self._header = np.zeros((), _HEADER)
        self._rows = np.zeros(0, RANK_ROW)
        self._sums = Sums.zeros(Shape(0, 0, 0, 0))
        self._memory.close()


def _field(text: bytes, name: str) -> Any:
    kind = _HEADER[name]
    return np.frombuffer(text.ljust(kind.itemsize), kind)[0]


def _shape(header: Any) -> Shape:
    return Shape(*(int(header[name]) for name in ("ranks", "layers", "roles", "blocks")))


def _size(shape: Shape) -> int:
    return _HEADER.itemsize + shape.ranks * RANK_ROW.itemsize + shape.nbytes


def _map_sums(memory: mmap.mmap, shape: Shape) -> Sums:
    at = _HEADER.itemsize + shape.ranks * RANK_ROW.itemsize
    tables = {}
    for name in TABLES:
        size = shape.of(name)
        tables[name] = np.ndarray(size, "<u8", memory, at)
        at += tables[name].nbytes
    return Sums(**tables)


def _note(header: Any) -> dict[str, Any]:
    text = header["note"].tobytes()[: int(header["note_bytes"])]
    try:
        note = json.loads(text or b"{}")
    except (ValueError, RecursionError):
        note = None
    return note if isinstance(note, dict) else {}


def _check(path: Path, memory: mmap.mmap) -> None:
    opening = np.ndarray((), _OPENING, memory)
    if bytes(opening["magic"]) != _MAGIC:
        raise RingError(f"{path} is no aggregate page")
    if int(opening["version"]) != PAGE_VERSION:
        raise SchemaMismatch(
            f"{path} is of version {int(opening['version'])}, this megatrace reads {PAGE_VERSION}",
            hint="use the megatrace that records this session",
        )
    if len(memory) >= _HEADER.itemsize:
        shape = _shape(np.ndarray((), _HEADER, memory))
        if shape.sane and _size(shape) == len(memory):
            return
    raise RingError(f"{path} is damaged: its sizes disagree")


def _roles(header: Any) -> tuple[str, ...]:
    text = header["role_names"].tobytes()[: int(header["roles_bytes"])]
    try:
        names = tuple(str(name) for name in json.loads(text))
    except (ValueError, TypeError, RecursionError):
        names = ()
    if len(names) != int(header["roles"]):
        raise RingError("the aggregate page is damaged: its roles disagree")
    return names


def _mark_replaced(path: Path) -> None:
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return
    try:
        if os.fstat(fd).st_size >= _OPENING.itemsize:
            with mmap.mmap(fd, _OPENING.itemsize) as memory:
                np.ndarray((), _OPENING, memory)["replaced"] = 1
    finally:
        os.close(fd)
