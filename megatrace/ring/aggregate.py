"""The aggregate page: running sums of one session, for any number of viewers.

``aggregate.page`` in the session directory holds one header, one row a rank, and sums of
stall cycles and counts ``[rank][layer][role][cause]``, under one sequence lock. The
recorder is its only writer. A change of shape makes a new page of the same name and
marks the old one, so that viewers open it again.
"""

from __future__ import annotations

import json
import mmap
import os
import stat
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megatrace.errors import RingError, SchemaMismatch
from megatrace.ring.seqlock import read_consistent
from megatrace.schema.layout import CAUSE_SLOTS

PAGE_NAME = "aggregate.page"
PAGE_VERSION = 1
_MAGIC = b"MEGAGGRE"
_ROLES_BYTES = 3072
_MAX_CELLS = 1 << 24

_HEADER = np.dtype(
    [
        ("magic", "S8"),
        ("version", "<u4"),
        ("seq", "<u4"),  # odd while being written
        ("replaced", "<u4"),
        ("ranks", "<u4"),
        ("layers", "<u4"),
        ("roles", "<u4"),
        ("updated_ns", "<i8"),  # CLOCK_MONOTONIC
        ("started_ns", "<i8"),
        ("file_bytes", "<u8"),
        ("clock_error_ns", "<f8"),  # the worst of the ranks; nan: not known
        ("roles_bytes", "<u4"),
        ("pad", "<u4"),
        ("role_names", f"V{_ROLES_BYTES}"),
    ]
)

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
    ]
)
"""What the page says of one rank; ``clock_error_ns`` is nan while it is not known."""


@dataclass(frozen=True, slots=True)
class Aggregate:
    """One consistent reading of the page.

    Attributes:
        roles: names of the warp roles, the third axis.
        ranks: RANK_ROW ``(ranks,)``.
        cycles: u8 ``(ranks, layers, roles, 4)``, stalled cycles by cause, running sums.
        count: u8, same shape, stalls.
        updated_ns: CLOCK_MONOTONIC when it was written.
        started_ns: CLOCK_MONOTONIC when the recording began.
        file_bytes: size of the capture so far.
        clock_error_ns: worst clock error of the ranks; nan while not known.
    """

    roles: tuple[str, ...]
    ranks: NDArray[Any]
    cycles: NDArray[np.uint64]
    count: NDArray[np.uint64]
    updated_ns: int
    started_ns: int
    file_bytes: int
    clock_error_ns: float


class AggregatePage:
    """The page, mapped by its writer (:meth:`create`) or by a viewer (:meth:`attach`).

    Attributes:
        path: the file.
        shape: ``(ranks, layers, roles, causes)`` of its sums.
        roles: names of the roles.
    """

    def __init__(self, path: Path, memory: mmap.mmap) -> None:
        """Use :meth:`create` or :meth:`attach`."""
        self.path = path
        self._memory = memory
        self._header = np.ndarray((), _HEADER, memory)
        ranks, layers, roles = (int(self._header[n]) for n in ("ranks", "layers", "roles"))
        self.shape = (ranks, layers, roles, CAUSE_SLOTS)
        self.roles = _roles(self._header)
        at_rows, at_cycles, at_count, _ = _offsets(ranks, layers, roles)
        self._rows: NDArray[Any] = np.ndarray((ranks,), RANK_ROW, memory, at_rows)
        self._cycles: NDArray[np.uint64] = np.ndarray(self.shape, "<u8", memory, at_cycles)
        self._count: NDArray[np.uint64] = np.ndarray(self.shape, "<u8", memory, at_count)

    @classmethod
    def create(
        cls, session: Path, *, ranks: int, layers: int, roles: Sequence[str]
    ) -> AggregatePage:
        """Make the page of this shape in ``session``, in place of one of another shape.

        Raises RingError where there is no room for it.
        """
        path = session / PAGE_NAME
        names = json.dumps(list(roles)).encode()
        if len(names) > _ROLES_BYTES:
            raise RingError("the names of the roles are too long for the aggregate page")
        size = _offsets(ranks, layers, len(roles))[3]
        made = path.with_name(f".{PAGE_NAME}.{os.getpid()}")
        made.unlink(missing_ok=True)
        fd = os.open(made, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(fd, 0, size)
            memory = mmap.mmap(fd, size)
        except OSError as error:
            made.unlink(missing_ok=True)
            raise RingError(
                f"no room for {path}: {error.strerror}", hint="use a larger --shm-size"
            ) from None
        finally:
            os.close(fd)
        header = np.ndarray((), _HEADER, memory)
        header["version"], header["ranks"], header["layers"] = PAGE_VERSION, ranks, layers
        header["roles"], header["roles_bytes"] = len(roles), len(names)
        header["role_names"] = np.frombuffer(names.ljust(_ROLES_BYTES), header["role_names"].dtype)[
            0
        ]
        header["clock_error_ns"] = np.nan
        header["started_ns"] = header["updated_ns"] = time.monotonic_ns()
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
            if not (stat.S_ISREG(facts.st_mode) and private and facts.st_size >= _HEADER.itemsize):
                raise RingError(f"{path} is no aggregate page of this user")
            memory = mmap.mmap(fd, facts.st_size, prot=mmap.PROT_READ)
        finally:
            os.close(fd)
        _check(path, np.ndarray((), _HEADER, memory), facts.st_size)
        return cls(path, memory)

    @property
    def replaced(self) -> bool:
        """Whether a page of another shape has taken its place: attach again."""
        return bool(self._header["replaced"])

    def publish(
        self,
        *,
        ranks: NDArray[Any],
        cycles: NDArray[np.uint64],
        count: NDArray[np.uint64],
        file_bytes: int = 0,
        clock_error_ns: float = float("nan"),
    ) -> None:
        """Writer only: put a new state in place of the old. Arrays have the page's shape."""
        header = self._header
        header["seq"] |= 1
        self._rows[...] = ranks
        self._cycles[...] = cycles
        self._count[...] = count
        header["file_bytes"] = file_bytes
        header["clock_error_ns"] = clock_error_ns
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
            cycles=self._cycles.copy(),
            count=self._count.copy(),
            updated_ns=int(header["updated_ns"]),
            started_ns=int(header["started_ns"]),
            file_bytes=int(header["file_bytes"]),
            clock_error_ns=float(header["clock_error_ns"]),
        )

    def close(self) -> None:
        """Unmap; the file stays."""
        nothing = np.zeros(0, np.uint8)
        self._header = np.zeros((), _HEADER)
        self._rows = nothing.view(RANK_ROW)
        self._cycles = self._count = nothing.view("<u8").reshape(0, 0, 0, 0)
        self._memory.close()


def _offsets(ranks: int, layers: int, roles: int) -> tuple[int, int, int, int]:
    at_rows = _HEADER.itemsize
    at_cycles = at_rows + ranks * RANK_ROW.itemsize
    table = 8 * ranks * layers * roles * CAUSE_SLOTS
    return at_rows, at_cycles, at_cycles + table, at_cycles + 2 * table


def _check(path: Path, header: Any, size: int) -> None:
    if bytes(header["magic"]) != _MAGIC:
        raise RingError(f"{path} is no aggregate page")
    if int(header["version"]) != PAGE_VERSION:
        raise SchemaMismatch(
            f"{path} is of version {int(header['version'])}, this megatrace reads {PAGE_VERSION}",
            hint="use the megatrace that records this session",
        )
    ranks, layers, roles = (int(header[name]) for name in ("ranks", "layers", "roles"))
    if ranks * layers * roles > _MAX_CELLS or _offsets(ranks, layers, roles)[3] != size:
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
        if os.fstat(fd).st_size >= _HEADER.itemsize:
            with mmap.mmap(fd, _HEADER.itemsize) as memory:
                np.ndarray((), _HEADER, memory)["replaced"] = 1
    finally:
        os.close(fd)
