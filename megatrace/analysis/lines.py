"""Where lines come from, and which of them can be trusted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

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

CHUNK_LINES = 1 << 15
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


@dataclass(frozen=True, slots=True)
class Heads:
    """What a look at every line shows; arrays of the N lines, in the order of the file."""

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
    for start in range(0, count, CHUNK_LINES):
        rows = np.arange(start, min(start + CHUNK_LINES, count))
        lines = source.gather(rows)
        numbers, second = lines[:, 0], lines[:, HALF_WORDS]
        good = (numbers == source.number[rows]) & (numbers != 0)
        uneven = np.flatnonzero(numbers != second)
        if len(uneven):
            older = second[uneven] < numbers[uneven]
            if capacity:
                older &= (second[uneven] == 0) | ((numbers - second)[uneven] % capacity == 0)
            good[uneven] &= older
        used = payload(lines) != 0
        sound[rows] = good
        words[rows] = used.view(np.uint8).sum(axis=1, dtype=np.uint8)
        begins = np.flatnonzero(good & (lines[:, 1] >> TIME_BITS == HEADER))
        opening = lines[begins, 1 : HEADER_WORDS + 2]
        whole = (opening[:, 1:HEADER_WORDS] >= ARG_BIT).all(axis=1)
        whole &= opening[:, HEADER_WORDS] < ARG_BIT
        head[rows[begins[whole]]] = True
        fields.append(opening[whole, :HEADER_WORDS])
    return Heads(sound, words, head, np.concatenate(fields))


def ring_order(ring: U4, number: U4, rows: Rows) -> Rows:
    """``rows`` sorted by ring, then number; a radix sort where the file kept the order."""
    narrow = ring[rows].astype(np.uint16) if ring.max(initial=0) < 1 << 16 else ring[rows]
    order = rows[np.argsort(narrow, kind="stable")]
    same = ring[order[1:]] == ring[order[:-1]]
    if bool((same & (number[order[1:]] < number[order[:-1]])).any()):
        order = rows[np.lexsort((number[rows], ring[rows]))]
    return order


assert LINE_WORDS == RECORDS_PER_LINE + 2
