"""Where lines come from, and which of them can be trusted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from megatrace.analysis.side import in_order
from megatrace.schema.layout import (
    ARG_BIT,
    HALF_WORDS,
    HEADER_WORDS,
    LINE_WORDS,
    RECORDS_PER_HALF,
    RECORDS_PER_LINE,
    TIME_BITS,
)

U1: TypeAlias = NDArray[np.uint8]
U4: TypeAlias = NDArray[np.uint32]
I4: TypeAlias = NDArray[np.int32]
I8: TypeAlias = NDArray[np.int64]
F8: TypeAlias = NDArray[np.float64]
Mask: TypeAlias = NDArray[np.bool_]
Rows: TypeAlias = NDArray[np.intp]

HEADER, CLOSING, EPOCH, HANG = 1, 2, 3, 4
"""Ids of the core events."""

CHUNK_LINES = 1 << 14
"""Lines worked on at once: temporaries stay near the caches."""


class LineSource(Protocol):
    """Lines of one rank in the order of the file.

    ``ring`` and ``number`` (u4[N]) are what the file says of each; ``gather(rows)``
    copies the lines themselves, u4[len(rows), 32].
    """

    @property
    def ring(self) -> U4:
        """Ring of each line."""

    @property
    def number(self) -> U4:
        """Number of each line."""

    def gather(self, rows: Rows) -> U4:
        """The lines at ``rows``."""


@dataclass(frozen=True, slots=True)
class ArrayLines:
    """Lines in memory: ``ring`` u4[N], ``lines`` u4[N, 32]."""

    ring: U4
    lines: U4

    @property
    def number(self) -> U4:
        """Word 0 of each line."""
        return self.lines[:, 0]

    def gather(self, rows: Rows) -> U4:
        """The lines at ``rows``."""
        return self.lines[rows]


def payload(lines: U4) -> U4:
    """The 30 words of each line that carry records, [n, 30]; a missing half reads as zeros."""
    words = np.empty((len(lines), RECORDS_PER_LINE), np.uint32)
    words[:, :RECORDS_PER_HALF] = lines[:, 1:HALF_WORDS]
    words[:, RECORDS_PER_HALF:] = lines[:, HALF_WORDS + 1 :]
    words[lines[:, 0] != lines[:, HALF_WORDS], RECORDS_PER_HALF:] = 0
    return words


def in_use(lines: U4) -> Mask:
    """Which words of each line carry records, [n, 32]: none of a missing half, no zeros."""
    used: Mask = lines != 0
    used[:, ::HALF_WORDS] = False  # the line's numbers
    uneven = np.flatnonzero(lines[:, 0] != lines[:, HALF_WORDS])
    used[uneven, HALF_WORDS:] = False
    return used


def words_of(used: Mask) -> U1:
    """How many words of each line are in use, [n], of what :func:`in_use` gives."""
    counts: U1 = np.bitwise_count(np.packbits(used).view(np.uint32))
    return counts


@dataclass(frozen=True, slots=True)
class Heads:
    """What a look at lines shows; arrays of the N lines, in the order of the file."""

    sound: Mask
    """Its numbers agree, or its second half keeps the number of an older lap."""
    words: U1
    """Words of it in use."""
    head: Mask
    """It begins a launch."""
    fields: U4
    """The header words of lines that begin one, [sum(head), 9]."""


def look(source: LineSource, capacity: int) -> Heads:
    """Read every line of ``source`` once; ``capacity`` is the lines a ring has, 0 unknown."""
    count = len(source.ring)
    sound = np.zeros(count, bool)
    words = np.zeros(count, np.uint8)
    head = np.zeros(count, bool)
    fields = [np.zeros((0, HEADER_WORDS), np.uint32)]
    for (rows, _), found, _ in in_order(
        _chunks(source, count), lambda chunk: _look_at(chunk[1], source.number[chunk[0]], capacity)
    ):
        sound[rows], words[rows], head[rows] = found.sound, found.words, found.head
        fields.append(found.fields)
    return Heads(sound, words, head, np.concatenate(fields))


def _chunks(source: LineSource, count: int) -> Iterator[tuple[slice, U4]]:
    for start in range(0, count, CHUNK_LINES):
        stop = min(start + CHUNK_LINES, count)
        yield slice(start, stop), source.gather(np.arange(start, stop))


def _look_at(lines: U4, expected: U4, capacity: int) -> Heads:
    """The same of lines whose numbers the file says are ``expected``."""
    numbers, second = lines[:, 0], lines[:, HALF_WORDS]
    good = (numbers == expected) & (numbers != 0)
    uneven = np.flatnonzero(numbers != second)
    if len(uneven):
        older = second[uneven] < numbers[uneven]
        if capacity:
            older &= (second[uneven] == 0) | ((numbers - second)[uneven] % capacity == 0)
        good[uneven] &= older
    begins = np.flatnonzero(good & (lines[:, 1] >> TIME_BITS == HEADER))
    opening = lines[begins, 1 : HEADER_WORDS + 2]
    whole = (opening[:, 1:HEADER_WORDS] >= ARG_BIT).all(axis=1)
    whole &= opening[:, HEADER_WORDS] < ARG_BIT
    head = np.zeros(len(lines), bool)
    head[begins[whole]] = True
    return Heads(good, words_of(in_use(lines)), head, opening[whole, :HEADER_WORDS])


def ring_order(ring: U4, number: U4, rows: Rows) -> tuple[Rows, U4, U4]:
    """``rows`` sorted by ring, then number; and the ring and number of each.

    What the recorder drained stands in the file ring by ring: runs are sorted, not lines.
    """
    mine = ring.take(rows)
    first = np.flatnonzero(np.append(True, mine[1:] != mine[:-1])[: len(mine)])
    size = np.diff(first, append=len(mine))
    key = mine.take(first)
    # Sixteen bits: a radix sort.
    runs = np.argsort(
        key.astype(np.uint16) if ring.max(initial=0) < 1 << 16 else key, kind="stable"
    )
    order = rows.take(spread(first.take(runs), size.take(runs)))
    found, numbers = ring.take(order), number.take(order)
    if bool(((found[1:] == found[:-1]) & (numbers[1:] < numbers[:-1])).any()):
        order = rows[np.lexsort((number.take(rows), mine))]
        found, numbers = ring.take(order), number.take(order)
    return order, found, numbers


def spread(first: I8, size: I8) -> Rows:
    """Places of runs one after the other: ``size`` of them from each of ``first``."""
    begins = np.cumsum(size) - size
    places: Rows = np.arange(int(size.sum())) + np.repeat(first - begins, size)
    return places


assert LINE_WORDS == RECORDS_PER_LINE + 2
