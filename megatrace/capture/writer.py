"""Writes a capture: ``<path>.part`` while it grows, ``<path>`` once it is whole."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import time
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from megatrace import __version__
from megatrace.capture.batch import Batch
from megatrace.capture.layout import (
    BATCH_ROWS,
    CRC_KEY,
    FIXED_COLUMNS,
    FORMAT_KEY,
    FORMAT_VERSION,
    HEAD_CRC_KEY,
    META_KINDS,
    PART_SUFFIX,
    ROW_BYTES,
    TableId,
)
from megatrace.errors import RecordError, UsageError

_ARROW_TYPES = {"<u1": pa.uint8(), "<u2": pa.uint16(), "<u4": pa.uint32(), "<i8": pa.int64()}
_DIRECT_ROWS = BATCH_ROWS // 8
"""Rows that make a batch of their own rather than be copied into one."""


def arrow_schema() -> pa.Schema:
    """The schema of every capture."""
    fields = [
        pa.field(name, _ARROW_TYPES[kind.str.replace("|", "<")], nullable=False)
        for name, kind in FIXED_COLUMNS
    ]
    fields += [
        pa.field("data", pa.large_binary(), nullable=False),
        pa.field("meta", pa.string(), nullable=False),
    ]
    return pa.schema(fields, metadata={FORMAT_KEY: str(FORMAT_VERSION)})


class CaptureWriter:
    """Appends rows to a capture. Not for several threads at once.

    Lines are held back until they make a batch or :meth:`flush`: what is flushed
    survives a kill of this process. When the disk is full, or fails, one RecordError is
    raised and all later rows are dropped; the file stays a valid beginning.

    Attributes:
        path: where :meth:`finish` puts it.
        part_path: where it grows.
        failed: a RecordError has been raised; nothing is written any more.
        lines_written: lines in the file or held back.
    """

    def __init__(self, path: Path, *, force: bool = False, part_suffix: str = PART_SUFFIX) -> None:
        """Open ``<path>.part`` (0600). Raises RecordError where either exists, unless ``force``."""
        self.path = Path(path)
        self.part_path = self.path.with_name(self.path.name + part_suffix)
        self.failed = False
        self.lines_written = 0
        self._schema = arrow_schema()
        self._force = force
        self._begun = False
        self._rows = dict.fromkeys(TableId, 0)
        self._pending: list[tuple[int, NDArray[np.uint32], NDArray[np.uint32], int]] = []
        self._pending_rows = 0
        self._fd = _open_part(self.path, self.part_path, force=force)
        self._good_bytes = 0
        try:
            self._sink = pa.OSFile(str(self.part_path), "wb")
            options = pa.ipc.IpcWriteOptions(compression=None)
            self._stream = pa.ipc.new_stream(self._sink, self._schema, options=options)
            self._good_bytes = self._sink.tell()
        except OSError as error:
            self._fail(error)

    @property
    def size_bytes(self) -> int:
        """Bytes in the file so far."""
        return self._good_bytes

    def write_meta(self, kind: str, rank: int = 0, **fields: Any) -> None:
        """Add one meta row at once. ``fields`` are JSON, numpy scalars and arrays too."""
        if kind not in META_KINDS:
            raise UsageError(f"meta kind {kind!r} is none of {', '.join(META_KINDS)}")
        if not self._begun:
            self._begun = True
            if kind != "capture":
                self.write_meta("capture")
        if kind == "capture":
            fields = {"format": FORMAT_VERSION, "version": __version__, **fields}
        self.flush()
        text = json.dumps({"kind": kind, "rank": rank, **fields}, default=_plain)
        self._write(
            TableId.META,
            _full(rank, 1),
            np.zeros(1, "u4"),
            np.zeros(1, "u4"),
            _full_ns(None, 1),
            np.zeros(0, "u1"),
            text,
        )

    def write_lines(
        self, rank: int, ring_idx: NDArray[np.uint32], lines: NDArray[np.uint32], t_ns: int
    ) -> None:
        """Add lines: ``ring_idx`` u4 ``(n,)``, ``lines`` u4 ``(n, 32)``, drained at ``t_ns``.

        The arrays are kept until they are written; do not change them.
        """
        if not len(lines):
            return
        self._begin()
        self.lines_written += len(lines)
        if len(lines) >= _DIRECT_ROWS:
            self.flush()
        for at in range(0, len(lines), BATCH_ROWS):
            piece = slice(at, at + BATCH_ROWS)
            if self._pending_rows + len(lines[piece]) > BATCH_ROWS:
                self.flush()
            self._pending.append((rank, ring_idx[piece], lines[piece], t_ns))
            self._pending_rows += len(lines[piece])
        alone = len(self._pending) == 1 and self._pending_rows >= _DIRECT_ROWS
        if alone or self._pending_rows >= BATCH_ROWS:
            self.flush()

    def write_counters(
        self, rank: int, slots: NDArray[np.uint32], records: NDArray[Any], t_ns: int
    ) -> None:
        """Add counters: ``slots`` u4 ``(n,)`` of layer * rings + ring, COUNTERS ``(n,)``."""
        self._write_small(TableId.COUNTERS, rank, slots, records["seq"], t_ns, records)

    def write_host(self, rank: int, records: NDArray[Any], t_ns: int | None = None) -> None:
        """Add host records, HOST_RECORD ``(n,)``, drained now or at ``t_ns``."""
        zeros = np.zeros(len(records), np.uint32)
        self._write_small(TableId.HOST, rank, zeros, records["number"], t_ns, records)

    def copy_batch(self, batch: Batch) -> None:
        """Add a batch of another capture."""
        self._begun = True
        self.flush()
        self._write(
            batch.table,
            batch.rank,
            batch.ring,
            batch.seq,
            batch.t_ns,
            batch.data,
            batch.text.decode(),
        )

    def flush(self) -> None:
        """Write what is held back."""
        pending, self._pending, self._pending_rows = self._pending, [], 0
        if not pending:
            return
        counts = [len(lines) for _, _, lines, _ in pending]
        ranks = np.repeat(np.array([p[0] for p in pending], np.uint16), counts)
        times = np.repeat(np.array([p[3] for p in pending], np.int64), counts)
        one = len(pending) == 1
        rings = pending[0][1] if one else np.concatenate([p[1] for p in pending])
        lines = pending[0][2] if one else np.concatenate([p[2] for p in pending])
        lines = np.ascontiguousarray(lines, np.uint32)
        self._write(TableId.LINES, ranks, rings, lines[:, 0], times, lines.reshape(-1), "")

    def sync(self) -> None:
        """Flush, and have the disk keep it."""
        self.flush()
        if not self.failed:
            try:
                os.fsync(self._fd)
            except OSError as error:
                self._fail(error)

    def finish(self, **totals: Any) -> Path:
        """Write the ``end`` row, fsync, rename; returns the path of the file.

        After a failure the file keeps its ``.part`` name, for ``megatrace recover``.
        Raises RecordError where the end cannot be written.
        """
        try:
            self.flush()
            counts = {table.name.lower(): rows for table, rows in self._rows.items()}
            self.write_meta("end", rows=counts, **totals)
            if not self.failed:
                self._complete()
        finally:
            done = not self.failed
            self._close()
        return self.path if done else self.part_path

    def abandon(self) -> None:
        """Close without an end; the ``.part`` file stays."""
        with contextlib.suppress(RecordError):
            self.flush()
        self._close()

    def _begin(self) -> None:
        if not self._begun:
            self.write_meta("capture")

    def _write_small(
        self,
        table: TableId,
        rank: int,
        rings: NDArray[np.uint32],
        seqs: NDArray[np.uint32],
        t_ns: int | None,
        records: NDArray[Any],
    ) -> None:
        if not len(records):
            return
        self._begin()
        for at in range(0, len(records), BATCH_ROWS):
            piece = slice(at, at + BATCH_ROWS)
            data = np.ascontiguousarray(records[piece])
            rows = len(data)
            self._write(
                table, _full(rank, rows), rings[piece], seqs[piece], _full_ns(t_ns, rows), data, ""
            )

    def _write(
        self,
        table: TableId,
        ranks: NDArray[np.uint16],
        rings: NDArray[np.uint32],
        seqs: NDArray[np.uint32],
        times: NDArray[np.int64],
        data: NDArray[Any],
        text: str,
    ) -> None:
        if self.failed:
            return
        rows = len(ranks)
        values = {
            "table": np.full(rows, table, np.uint8),
            "rank": ranks,
            "ring": rings,
            "seq": seqs,
            "t_ns": times,
        }
        fixed = [np.ascontiguousarray(values[name], kind) for name, kind in FIXED_COLUMNS]
        offsets = np.arange(rows + 1, dtype=np.int64) * ROW_BYTES[table]
        utf8 = text.encode()
        data = data.reshape(-1).view(np.uint8)
        ends = np.zeros(rows + 1, np.int32)
        ends[1:] = len(utf8)
        head = _crc(0, *fixed, offsets, ends, utf8)
        crcs = {HEAD_CRC_KEY: f"{head:08x}", CRC_KEY: f"{_crc(head, data):08x}"}
        arrays = [
            pa.Array.from_buffers(
                _ARROW_TYPES[kind.str.replace("|", "<")], rows, [None, pa.py_buffer(column)]
            )
            for column, (_, kind) in zip(fixed, FIXED_COLUMNS, strict=True)
        ]
        arrays.append(_binary(pa.large_binary(), rows, offsets, data))
        arrays.append(_binary(pa.string(), rows, ends, utf8))
        batch = pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        try:
            self._stream.write_batch(batch, custom_metadata=crcs)
            self._good_bytes = self._sink.tell()
        except OSError as error:
            self._fail(error)
        self._rows[table] += rows

    def _fail(self, error: OSError) -> None:
        """Cut the file after its last whole batch, and say so once."""
        already, self.failed = self.failed, True
        self._pending, self._pending_rows = [], 0
        with contextlib.suppress(OSError):
            os.ftruncate(self._fd, self._good_bytes)
        if already:
            return
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        reason = "the disk is full" if full else (error.strerror or str(error))
        raise RecordError(
            f"cannot write {self.part_path}: {reason}; it ends after {self._good_bytes} bytes",
            hint=f"free some space, then: megatrace recover {self.part_path}",
        ) from None

    def _complete(self) -> None:
        try:
            self._stream.close()
            self._good_bytes = self._sink.tell()
            os.fsync(self._fd)
            self._rename()
        except OSError as error:
            self._fail(error)

    def _rename(self) -> None:
        if not self._force and self.path.exists():
            raise FileExistsError(errno.EEXIST, f"{self.path} has appeared meanwhile")
        self.part_path.rename(self.path)
        folder = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def _close(self) -> None:
        self.failed = True
        with contextlib.suppress(OSError):
            self._sink.close()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def is_locked(path: Path) -> bool:
    """Whether a writer has ``path`` open."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def _open_part(path: Path, part: Path, *, force: bool) -> int:
    if path.exists() and not force:
        raise RecordError(f"{path} exists", hint="choose another -o, or overwrite it with --force")
    if path.is_dir():
        raise RecordError(f"{path} is a directory", hint="give the name of a file")
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | (0 if force else os.O_EXCL)
    try:
        fd = os.open(part, flags, 0o600)
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileExistsError:
        raise RecordError(
            f"{part} exists: a recording that was cut short, or still runs",
            hint=f"megatrace recover {part}, or overwrite it with --force",
        ) from None
    except BlockingIOError:
        os.close(fd)
        raise RecordError(f"{part} is being written", hint="choose another -o") from None
    except OSError as error:
        raise RecordError(
            f"cannot write {part}: {error.strerror}", hint="choose another -o"
        ) from None
    os.fchmod(fd, 0o600)
    return fd


def _binary(kind: pa.DataType, rows: int, offsets: NDArray[Any], data: Any) -> pa.Array:
    return pa.Array.from_buffers(kind, rows, [None, pa.py_buffer(offsets), pa.py_buffer(data)])


def _crc(start: int, *parts: Any) -> int:
    for part in parts:
        start = zlib.crc32(memoryview(part).cast("B") if len(part) else b"", start)
    return start


def _full(value: int, rows: int) -> NDArray[np.uint16]:
    return np.full(rows, value, np.uint16)


def _full_ns(t_ns: int | None, rows: int) -> NDArray[np.int64]:
    return np.full(rows, time.monotonic_ns() if t_ns is None else t_ns, np.int64)


def _plain(value: object) -> object:
    """JSON of what numpy makes, and of paths."""
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{type(value).__name__} is not JSON")
