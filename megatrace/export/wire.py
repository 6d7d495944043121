"""Protobuf wire format, a column at a time.

Two tools. :class:`Rows` builds many short byte strings field by field, left-aligned in
words of 8 bytes. :func:`join_packets` puts ``TracePacket``s together from them: every
packet is a *head*, which holds its size and its time and so differs from packet to
packet, and a *tail*, which is one of a few::

    head   0a size | 40 delta                        4 to 8 bytes
    tail   50 sequence | 5a size event | 68 02       10 bytes or more
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

U8 = NDArray[np.uint64]
I8 = NDArray[np.int64]
Integers = NDArray[np.integer]
Mask = NDArray[np.bool_]

MAX_DELTA = (1 << 28) - 1
"""The longest delta a head has room for, in units of the packets' clock."""

_SEVEN = np.uint64(7)
_CONTINUED = np.array([0, 0, 0x80, 0x8080, 0x808080], np.uint64)
_LIMITS = tuple(1 << (7 * n) for n in range(1, 10))
_PACKET, _TIMESTAMP = 1, 8
_PAIR = np.dtype("V16")


def tag(field: int, wire_type: int) -> int:
    """The number in front of ``field``: 0 varint, 1 eight bytes, 2 sized bytes."""
    return field << 3 | wire_type


def varint_size(values: Integers) -> I8:
    """Bytes that each value, not negative, takes as a varint."""
    size = np.ones(values.shape, np.int64)
    top = values.max(initial=0)
    for limit in _LIMITS:
        if top < limit:
            break
        size += values >= limit
    return size


class Rows:
    """``count`` byte strings that grow field by field.

    Every method appends one field to all rows, or only to the rows of ``where``; a row
    that a field leaves out has no gap.
    """

    def __init__(self, count: int) -> None:
        """Start with empty rows."""
        self._count = count
        self._columns: list[tuple[NDArray[np.uint8] | np.uint8, Mask | bool]] = []

    def varint(self, values: Integers | int, where: Mask | bool = True) -> None:
        """Append a varint: a tag, a size or a value, not negative."""
        if isinstance(values, int):
            self._columns += [(np.uint8(byte), where) for byte in _varint(values)]
            return
        rest: U8 = np.where(where, values, 0).astype(np.uint64)
        kept = where
        while True:
            low: NDArray[np.uint8] = (rest & np.uint64(0x7F)).astype(np.uint8)
            more: Mask = rest > 0x7F
            if not more.any():
                self._columns.append((low, kept))
                return
            self._columns.append((low | (more.astype(np.uint8) << np.uint8(7)), kept))
            kept = more
            rest = rest >> _SEVEN

    def fixed64(self, values: U8, where: Mask | bool = True) -> None:
        """Append eight bytes, little endian."""
        columns = values.astype("<u8").view(np.uint8).reshape(len(values), 8)
        self._columns += [(column, where) for column in columns.T]

    def pack(self) -> Tails:
        """The rows, left-aligned."""
        shape = self._count, len(self._columns)
        values, kept = np.empty(shape, np.uint8), np.empty(shape, np.bool_)
        size = np.zeros(self._count, np.int64)
        for at, (value, where) in enumerate(self._columns):
            values[:, at] = value
            kept[:, at] = where
            size += where
        words = max(2, -(-int(size.max(initial=1)) // 8))
        packed = np.zeros((self._count, 8 * words), np.uint8)
        packed[np.arange(8 * words) < size[:, None]] = values[kept]
        return Tails(np.ascontiguousarray(packed.view("<u8").T), size)


class Tails:
    """Byte strings of different sizes, padded to two whole words or more."""

    def __init__(self, words: U8, size: I8) -> None:
        """``words`` is (words of the longest, strings), ``size`` the bytes of each."""
        self.words = words
        self.size = size

    def __add__(self, other: Tails) -> Tails:
        """These strings, then those of ``other``."""
        longest = max(len(self.words), len(other.words))
        words = np.zeros((longest, len(self.size) + len(other.size)), np.uint64)
        words[: len(self.words), : len(self.size)] = self.words
        words[: len(other.words), len(self.size) :] = other.words
        return Tails(words, np.concatenate([self.size, other.size]))


def join_packets(delta: I8, tails: Tails, pick: Integers) -> memoryview:
    """One packet after another: packet ``i`` has ``delta[i]`` and the tail ``pick[i]``.

    ``delta`` is in ``0..MAX_DELTA`` and every tail has 10 bytes or more, which those of
    a track event always have. Raises ValueError for a packet of 16 KiB or more.

    Stores are of whole words, so they spill into what follows, and the order of the
    passes mends that: first the words of a tail from the third on, then its first two,
    then all heads. A spill is under 8 bytes, so it lands in the next packet's head, which
    is stored later; a head is filled up to its 8 bytes with the begin of its own tail.
    """
    tail_size = np.take(tails.size, pick)
    head, size = _heads(delta, tail_size)
    end = np.cumsum(size)
    out = np.empty(int(end[-1]) + 8, np.uint8)
    words = np.ndarray((len(out) - 7,), "<u8", out, 0, (1,))
    pairs = np.ndarray((len(out) - 15,), _PAIR, out, 0, (1,))
    tail_at = end - tail_size
    for word in range(len(tails.words) - 1, 1, -1):
        rows = np.flatnonzero(tail_size > 8 * word)
        words[tail_at[rows] + 8 * word] = np.take(tails.words[word], pick[rows])
    first_two = np.ascontiguousarray(tails.words[:2].T).view(_PAIR)[:, 0]
    pairs[tail_at] = np.take(first_two, pick)
    end -= size
    tail_at -= end
    tail_at <<= 3
    head |= np.take(tails.words[0], pick) << tail_at.view(np.uint64)
    words[end] = head
    return out[:-8].data


def _heads(delta: I8, tail_size: I8) -> tuple[U8, I8]:
    """The heads of packets, each in the low bytes of a word, and the packets' sizes."""
    size = tail_size + 4
    head = delta.view(np.uint64) << np.uint64(24)
    late = np.flatnonzero(delta > 0x7F)
    time = delta[late]
    time_size = varint_size(time)
    size[late] += time_size - 1
    head[late] = _varint_word(time.view(np.uint64), time_size) << np.uint64(24)
    head |= np.uint64(tag(_TIMESTAMP, 0) << 16 | tag(_PACKET, 2))
    body = size.view(np.uint64) - np.uint64(2)
    large = np.flatnonzero(size > 0x7F + 2)
    if len(large):
        if int(size[large].max()) >= 1 << 14:
            raise ValueError("a packet of more than 16 KiB")
        # The size of the body takes a second byte, between the first and the time.
        head[large] = (head[large] & ~np.uint64(0xFFFF)) << np.uint64(8)
        head[large] |= np.uint64(tag(_PACKET, 2))
        body[large] = _varint_word(body[large], np.full(len(large), 2))
        size[large] += 1
    body <<= np.uint64(8)
    head |= body
    return head, size


def _varint(value: int) -> bytes:
    """One varint."""
    out = bytearray()
    while value > 0x7F:
        out.append((value & 0x7F) | 0x80)
        value >>= 7
    return bytes([*out, value])


def _varint_word(values: U8, size: I8) -> U8:
    """Varints of at most four bytes, each in the low bytes of a word."""
    word = values & np.uint64(0x7F)
    for byte in range(1, int(size.max(initial=1))):
        word |= (values & np.uint64(0x7F << 7 * byte)) << np.uint64(byte)
    word |= _CONTINUED[size]
    return word
