"""One batch of a mapped capture: its columns as views of the file."""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megatrace.capture.frames import FlatTable, Frame, FrameKind
from megatrace.capture.layout import (
    COLUMNS,
    CRC_KEY,
    FIXED_COLUMNS,
    FORMAT_KEY,
    FORMAT_VERSION,
    HEAD_CRC_KEY,
    MAX_BATCH_ROWS,
    ROW_BYTES,
    TableId,
)
from megatrace.errors import FormatError, SchemaMismatch

_BUFFERS = 2 * len(FIXED_COLUMNS) + 3 + 3
_ARROW_INT, _ARROW_UTF8, _ARROW_LARGE_BINARY = 2, 5, 19
_TYPES = (*(_ARROW_INT for _ in FIXED_COLUMNS), _ARROW_LARGE_BINARY, _ARROW_UTF8)


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows of one table. All arrays are views of the mapped file.

    Attributes:
        begin: first byte of the frame.
        data_at: byte of the file where ``data`` begins.
        data: u1 ``(rows * row bytes,)``.
        crc: of all buffers; ``head_crc`` of all but ``data``.
    """

    begin: int
    table: TableId
    rows: int
    rank: NDArray[np.uint16]
    ring: NDArray[np.uint32]
    seq: NDArray[np.uint32]
    t_ns: NDArray[np.int64]
    data_at: int
    data: NDArray[np.uint8]
    text: bytes
    crc: int
    head_crc: int

    def whole(self) -> bool:
        """Whether ``data`` is what was written: reads all of it once."""
        return zlib.crc32(self.data.data, self.head_crc) == self.crc

    def meta(self) -> dict[str, Any]:
        """The JSON of a meta row. Raises FormatError."""
        try:
            fields = json.loads(self.text)
        except (ValueError, RecursionError):
            fields = None
        if not isinstance(fields, dict) or not isinstance(fields.get("kind"), str):
            raise FormatError(f"the meta row at byte {self.begin} is no JSON object with a kind")
        return fields


def check_schema(frame: Frame) -> None:
    """Raise FormatError unless ``frame`` is the schema of a capture, SchemaMismatch of another."""
    header = frame.message.table(2) if frame.message else None
    if frame.kind is not FrameKind.SCHEMA or header is None:
        raise FormatError("it does not begin with a schema")
    version = header.metadata(2).get(FORMAT_KEY)
    if version is None:
        raise FormatError("it is an Arrow stream, but no capture")
    if version != str(FORMAT_VERSION):
        raise SchemaMismatch(
            f"a capture of format {version}, this megatrace reads format {FORMAT_VERSION}",
            hint="read it with the megatrace version that wrote it",
        )
    fields = [(field.text(0), field.scalar(2, "<B")) for field in header.tables(1)]
    if fields != list(zip(COLUMNS, _TYPES, strict=True)) or header.scalar(0, "<h"):
        raise FormatError("its columns are not those of a capture")


def read_batch(file: memoryview, frame: Frame) -> Batch:
    """The batch of ``frame``, its small columns checked. Raises FormatError."""
    message = frame.message
    header = message.table(2) if message is not None else None
    if message is None or header is None or frame.kind is not FrameKind.BATCH:
        raise FormatError(f"no batch is at byte {frame.begin}")
    rows = header.scalar(0, "<q")
    nodes, buffers = header.pairs(1), header.pairs(2)
    if not 0 < rows <= MAX_BATCH_ROWS or header.table(3) is not None or len(buffers) != _BUFFERS:
        raise FormatError(f"the batch at byte {frame.begin} is not one of a capture")
    if nodes != [(rows, 0)] * len(COLUMNS):
        raise FormatError(f"the batch at byte {frame.begin} has columns of several lengths")
    for offset, size in buffers:
        if offset < 0 or size < 0 or offset % 8 or frame.body + offset + size > frame.end:
            raise FormatError(f"a column of the batch at byte {frame.begin} leaves it")
    return _Columns(file, frame, rows, buffers).batch(message)


class _Columns:
    """Takes a batch apart, buffer by buffer."""

    def __init__(
        self, file: memoryview, frame: Frame, rows: int, buffers: list[tuple[int, int]]
    ) -> None:
        self.file, self.frame, self.rows, self.buffers = file, frame, rows, buffers

    def batch(self, message: FlatTable) -> Batch:
        fixed = [
            self._array(2 * i + 1, kind, self.rows) for i, (_, kind) in enumerate(FIXED_COLUMNS)
        ]
        offsets = self._array(11, np.dtype("<i8"), self.rows + 1)
        ends = self._array(14, np.dtype("<i4"), self.rows + 1)
        table = self._table(fixed[0])
        size = self.rows * ROW_BYTES[table]
        text_size = int(ends[-1])
        if offsets[0] or offsets[-1] != size or ends[0] or text_size < 0:
            raise self._wrong("rows of another size")
        if table is TableId.META and self.rows != 1:
            raise self._wrong("several meta rows")
        text = self._array(15, np.dtype("u1"), text_size)
        crc, head_crc = self._crcs(message)
        found = 0
        for part in (*fixed, offsets, ends, text):
            found = zlib.crc32(part.data, found)
        if found != head_crc:
            raise self._wrong("a checksum that does not fit")
        data = self._array(12, np.dtype("u1"), size)
        return Batch(
            self.frame.begin,
            table,
            self.rows,
            fixed[1],
            fixed[2],
            fixed[3],
            fixed[4],
            self.frame.body + self.buffers[12][0],
            data,
            text.tobytes(),
            crc,
            head_crc,
        )

    def _array(self, buffer: int, kind: np.dtype[Any], count: int) -> NDArray[Any]:
        offset, size = self.buffers[buffer]
        if size < count * kind.itemsize:
            raise self._wrong("a column that is too short")
        return np.frombuffer(self.file, kind, count, self.frame.body + offset)

    def _table(self, column: NDArray[np.uint8]) -> TableId:
        first = int(column[0])
        if first not in set(TableId) or (column != first).any():
            raise self._wrong("rows of an unknown table")
        return TableId(first)

    def _crcs(self, message: FlatTable) -> tuple[int, int]:
        facts = message.metadata(4)
        try:
            return int(facts[CRC_KEY], 16), int(facts[HEAD_CRC_KEY], 16)
        except (KeyError, ValueError):
            raise self._wrong("no checksum") from None

    def _wrong(self, what: str) -> FormatError:
        return FormatError(f"the batch at byte {self.frame.begin} has {what}")
