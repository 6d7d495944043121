"""The few bytes of Arrow IPC that a capture uses, read without trust.

A capture may be cut anywhere or damaged, so every length is checked against the file
before it is used; Arrow itself is only needed to write. A stream is a row of frames

    FFFFFFFF | metadata length i32 | metadata (flatbuffer Message) | body

of one schema, then record batches, then an end mark of length 0. See "IPC Streaming
Format" and ``Message.fbs`` of the Apache Arrow specification.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from megatrace.errors import FormatError, TruncatedError

CONTINUATION = 0xFFFFFFFF
MAX_METADATA_BYTES = 1 << 16
MAX_CANDIDATES = 1 << 14
_SCAN_BYTES = 1 << 24
_MAX_VECTOR = 64


class FrameKind(IntEnum):
    """``MessageHeader`` of Arrow; END is the end mark, which has none."""

    END = 0
    SCHEMA = 1
    BATCH = 3


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame: bytes ``[begin, end)`` of the file, its body from ``body`` on."""

    kind: FrameKind
    begin: int
    body: int
    end: int
    message: FlatTable | None


@dataclass(frozen=True, slots=True)
class FlatTable:
    """A flatbuffer table at ``at`` of ``data``; every access is checked, none is trusted."""

    data: memoryview
    at: int

    @classmethod
    def root(cls, data: memoryview) -> FlatTable:
        """The table a buffer begins with."""
        return cls(data, _read("<I", data, 0))

    def _field(self, slot: int) -> int:
        vtable = self.at - _read("<i", self.data, self.at)
        if 4 + 2 * slot + 2 > _read("<H", self.data, vtable):
            return 0
        offset = _read("<H", self.data, vtable + 4 + 2 * slot)
        return self.at + offset if offset else 0

    def scalar(self, slot: int, form: str) -> int:
        """Field ``slot`` as :mod:`struct` format ``form``; 0 where it is absent."""
        at = self._field(slot)
        return _read(form, self.data, at) if at else 0

    def table(self, slot: int) -> FlatTable | None:
        """Field ``slot``, a table."""
        at = self._field(slot)
        return FlatTable(self.data, at + _read("<I", self.data, at)) if at else None

    def text(self, slot: int) -> str:
        """Field ``slot``, a string; empty where it is absent."""
        at = self._field(slot)
        if not at:
            return ""
        at += _read("<I", self.data, at)
        size = _read("<I", self.data, at)
        if at + 4 + size > len(self.data):
            raise FormatError("a string leaves its message")
        return bytes(self.data[at + 4 : at + 4 + size]).decode("utf-8", "replace")

    def _vector(self, slot: int) -> tuple[int, int]:
        at = self._field(slot)
        if not at:
            return 0, 0
        at += _read("<I", self.data, at)
        size = _read("<I", self.data, at)
        if size > _MAX_VECTOR:
            raise FormatError("a vector of a message is too long")
        return at + 4, size

    def tables(self, slot: int) -> Iterator[FlatTable]:
        """Field ``slot``, a vector of tables."""
        at, size = self._vector(slot)
        for i in range(size):
            place = at + 4 * i
            yield FlatTable(self.data, place + _read("<I", self.data, place))

    def pairs(self, slot: int) -> list[tuple[int, int]]:
        """Field ``slot``, a vector of structs of two i64."""
        at, size = self._vector(slot)
        if at + 16 * size > len(self.data):
            raise FormatError("a vector leaves its message")
        return list(struct.iter_unpack("<qq", self.data[at : at + 16 * size]))

    def metadata(self, slot: int) -> dict[str, str]:
        """Field ``slot``, a vector of key and value."""
        return {pair.text(0): pair.text(1) for pair in self.tables(slot)}


def read_frame(data: memoryview, at: int) -> Frame:
    """The frame at byte ``at``. Raises TruncatedError where the file ends in it, FormatError."""
    left = len(data) - at
    if left < 8:
        raise TruncatedError(f"the file ends in the middle of a batch, at byte {len(data)}")
    mark, length = struct.unpack_from("<Ii", data, at)
    if mark != CONTINUATION or length < 0 or length % 8 or length > MAX_METADATA_BYTES:
        raise FormatError(f"no batch begins at byte {at}")
    if length == 0:
        return Frame(FrameKind.END, at, at + 8, at + 8, None)
    body = at + 8 + length
    if body > len(data):
        raise TruncatedError(f"the file ends in the middle of a batch, at byte {len(data)}")
    message = FlatTable.root(data[at + 8 : body])
    try:
        kind = FrameKind(message.scalar(1, "<B"))
    except ValueError:
        raise FormatError(f"an unknown message is at byte {at}") from None
    size = message.scalar(3, "<q")
    if size < 0 or size % 8 or kind is FrameKind.END:
        raise FormatError(f"a message at byte {at} has a body of {size} bytes")
    if body + size > len(data):
        raise TruncatedError(f"the file ends in the middle of a batch, at byte {len(data)}")
    return Frame(kind, at, body, body + size, message)


def candidates(data: memoryview, at: int) -> Iterator[int]:
    """Bytes from ``at`` on where a frame may begin: a few where the file is sound.

    Raises FormatError after MAX_CANDIDATES of them.
    """
    found = 0
    at = -(-at // 8) * 8
    while at + 8 <= len(data):
        size = min(len(data) - at, _SCAN_BYTES) // 8 * 8
        pairs = np.frombuffer(data, "<u4", size // 4, at).reshape(-1, 2)
        length = pairs[:, 1]
        likely = (pairs[:, 0] == CONTINUATION) & (length <= MAX_METADATA_BYTES) & (length % 8 == 0)
        for place in np.nonzero(likely & (length > 0))[0].tolist():
            found += 1
            if found > MAX_CANDIDATES:
                raise FormatError("too much of the file only looks like batches")
            yield at + 8 * place
        at += size


def _read(form: str, data: memoryview, at: int) -> int:
    try:
        if at < 0:
            raise FormatError("a message points before itself")
        value: int = struct.unpack_from(form, data, at)[0]
    except struct.error:
        raise FormatError("a message points past itself") from None
    return value
