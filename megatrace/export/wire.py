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
    """``count`` byte strings that grow field by field, at most ``capacity`` bytes each.

    Every method appends one field to all rows, or only to the rows of ``where``; a
    row that a field leaves out has no gap. Raises IndexError beyond ``capacity``.
    """

    def __init__(self, count: int, capacity: int) -> None:
        """Start with empty rows."""
        self._bytes = np.zeros((count, capacity), np.uint8)
        self._kept = np.zeros((count, capacity), np.bool_)
        self._used = 0

    def _column(self, value: NDArray[np.uint8] | int, kept: Mask | bool) -> None:
        self._bytes[:, self._used] = value
        self._kept[:, self._used] = kept
        self._used += 1

    def varint(self, values: Integers | int, where: Mask | bool = True) -> None:
        """Append a varint: a tag, a size or a value, not negative."""
        rest: U8 = np.where(where, np.asarray(values, np.uint64), np.uint64(0))
        kept = where
        while True:
            more: Mask = rest > 0x7F
            low: NDArray[np.uint8] = (rest & np.uint64(0x7F)).astype(np.uint8)
            self._column(low | (more.astype(np.uint8) << np.uint8(7)), kept)
            if not more.any():
                return
            kept = more
            rest = rest >> _SEVEN

    def fixed64(self, values: U8, where: Mask | bool = True) -> None:
        """Append eight bytes, little endian."""
        columns = values.astype("<u8").view(np.uint8).reshape(len(values), 8)
        for column in columns.T:
            self._column(column, where)

    def pack(self) -> Tails:
        """The rows, left-aligned."""
        kept = self._kept[:, : self._used]
        size = kept.sum(axis=1)
        words = -(-int(size.max(initial=1)) // 8)
        packed = np.zeros((len(size), 8 * words), np.uint8)
        packed[np.arange(8 * words) < size[:, None]] = self._bytes[:, : self._used][kept]
        return Tails(np.ascontiguousarray(packed.view("<u8").T), size)


class Tails:
    """Byte strings of different sizes, padded to whole words."""

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


def join_packets(delta: I8, tails: Tails, pick: Integers) -> NDArray[np.uint8]:
    """One packet after another: packet ``i`` has ``delta[i]`` and the tail ``pick[i]``.

    ``delta`` is in ``0..MAX_DELTA`` and every tail has 10 bytes or more, which those of
    a track event always have. Raises ValueError for a packet of 16 KiB or more.

    Bytes are stored eight at a time, so that a store spills into what follows. The
    order of the passes mends that: later words of a tail first, then all heads, then
    first words. A spill is under 8 bytes and lands in the next packet's head or first
    word, both stored later; that of a head lands in its own packet's first word.
    """
    tail_size = np.take(tails.size, pick)
    head, head_size = _heads(delta, tail_size)
    end = np.cumsum(head_size + tail_size)
    out = np.empty(int(end[-1]) + 8, np.uint8)
    store = np.ndarray((len(out) - 7,), "<u8", out, 0, (1,))
    tail_at = end - tail_size
    for word in range(len(tails.words) - 1, 1, -1):
        rows = np.flatnonzero(tail_size > 8 * word)
        store[tail_at[rows] + 8 * word] = np.take(tails.words[word], pick[rows])
    store[tail_at + 8] = np.take(tails.words[1], pick)
    store[tail_at - head_size] = head
    store[tail_at] = np.take(tails.words[0], pick)
    return out[:-8]


def _heads(delta: I8, tail_size: I8) -> tuple[U8, I8]:
    """The heads of packets, each in the low bytes of a word, and their sizes."""
    delta_size = varint_size(delta)
    body = tail_size + delta_size
    body += 1
    head = _varint_word(delta.view(np.uint64), delta_size)
    head <<= np.uint64(8)
    head |= np.uint64(tag(_TIMESTAMP, 0))
    size = body.view(np.uint64)
    top = int(body.max())
    if top <= 0x7F:
        head <<= np.uint64(8)
        head |= size
        delta_size += 3
    elif top < 1 << 14:
        long = body > 0x7F
        size_size = 1 + long.astype(np.int64)
        head <<= np.uint64(8) * size_size.view(np.uint64)
        head |= _varint_word(size, size_size)
        delta_size += 2 + size_size
    else:
        raise ValueError("a packet of more than 16 KiB")
    head <<= np.uint64(8)
    head |= np.uint64(tag(_PACKET, 2))
    return head, delta_size


def _varint_word(values: U8, size: I8) -> U8:
    """Varints of at most four bytes, each in the low bytes of a word."""
    word = values & np.uint64(0x7F)
    for byte in range(1, int(size.max(initial=1))):
        word |= (values & np.uint64(0x7F << 7 * byte)) << np.uint64(byte)
    word |= _CONTINUED[size]
    return word
