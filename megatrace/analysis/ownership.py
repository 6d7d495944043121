"""Which step each line of a capture is of, batch by batch: no index of all lines is made."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from megatrace.analysis.lines import HEADER, I8, U4, Mask, Rows
from megatrace.capture.reader import Capture, LineIndex
from megatrace.clock import ClockSamples
from megatrace.schema.layout import (
    ARG_BIT,
    ARG_BITS,
    ARG_MASK,
    HEADER_EDGE,
    HEADER_WORDS,
    TIME_BITS,
)

NO_STEP = -1
"""Of lines before the first header of their ring: they are of no launch."""


@dataclass(frozen=True, slots=True)
class Headers:
    """The headers of some lines of one rank; arrays [h], by ring and number."""

    ring: U4
    fields: U4
    """[h, 9] words."""

    @property
    def step(self) -> I8:
        """Step of each."""
        return (self.fields[:, 2] & ARG_MASK).astype(np.int64)

    @property
    def clock(self) -> I8:
        """The SM's clock at each."""
        return self._long(6)

    def samples(self) -> ClockSamples:
        """Their pairs of clocks."""
        first = self.fields[:, 0].astype(np.int64)
        return ClockSamples(
            (first & (HEADER_EDGE - 1)).astype(np.int32),
            (self.fields[:, 1] & ARG_MASK).astype(np.int64),
            self.clock,
            self._long(4),
            (first & HEADER_EDGE) != 0,
        )

    def _long(self, at: int) -> I8:
        low, high = (self.fields[:, i] & ARG_MASK for i in (at, at + 1))
        return low.astype(np.int64) | high.astype(np.int64) << ARG_BITS


@dataclass(frozen=True, slots=True)
class Owned:
    """Lines of one rank with the step of each, and their headers."""

    rank: int
    index: LineIndex
    step: I8
    headers: Headers


@dataclass(slots=True)
class _Rings:
    """Per ring of a rank: its latest header's step and line number, and the step before."""

    step: I8 = field(default_factory=lambda: np.zeros(0, np.int64))
    number: I8 = field(default_factory=lambda: np.zeros(0, np.int64))
    before: I8 = field(default_factory=lambda: np.zeros(0, np.int64))

    def room_for(self, rings: int) -> None:
        more = max(0, rings - len(self.step))
        self.step = np.append(self.step, np.full(more, NO_STEP))
        self.number = np.append(self.number, np.zeros(more, np.int64))
        self.before = np.append(self.before, np.full(more, NO_STEP))


def owned_lines(capture: Capture, ranks: dict[int, int]) -> Iterator[tuple[int, Owned]]:
    """Batch by batch, in file order: its place, and the lines of each of ``ranks`` in it.

    ``ranks`` gives the rings each has; lines of others are left out. A line is of the step
    of the last header of its ring at or before it, by the lines' numbers: what was read
    late may stand behind the next launch.
    """
    states = {rank: _Rings() for rank in ranks}
    for batch in range(capture.line_batches):
        index = capture.lines_of(batch)
        lines = capture.with_lines(index).gather(slice(None))
        for rank in np.unique(index.rank).tolist():
            if rank not in ranks:
                continue
            mine = np.flatnonzero((index.rank == rank) & (index.ring < ranks[rank]))
            order = mine[np.lexsort((index.number[mine], index.ring[mine]))]
            part = LineIndex(*(getattr(index, n)[order] for n in ("rank", "ring", "number", "at")))
            step, headers = _owners(states[rank], part, lines[order])
            yield batch, Owned(rank, part, step, headers)


def _owners(state: _Rings, index: LineIndex, lines: U4) -> tuple[I8, Headers]:
    """The step of each line, by ring and number; ``state`` moves on to after them."""
    ring, number = index.ring.astype(np.intp), index.number.astype(np.int64)
    state.room_for(int(ring.max(initial=-1)) + 1)
    heads = np.flatnonzero(_opens(lines, index.number))
    headers = Headers(index.ring[heads], lines[heads, 1 : HEADER_WORDS + 1])
    step = np.where(number > state.number[ring], state.step[ring], state.before[ring])
    if not len(heads):
        return step, headers
    last = np.searchsorted(heads, np.arange(len(ring)), side="right") - 1
    here = (last >= 0) & (ring[heads[np.maximum(last, 0)]] == ring)
    step[here] = headers.step[last[here]]
    _move_on(state, ring[heads], number[heads], headers.step)
    return step, headers


def _move_on(state: _Rings, ring: Rows, number: I8, step: I8) -> None:
    """Remember the last header of each ring, and the step of the one before it."""
    final = np.append(ring[1:] != ring[:-1], True)
    at = np.flatnonzero(final)
    at = at[number[at] > state.number[ring[at]]]
    second = np.maximum(at - 1, 0)
    within = (at > 0) & (ring[second] == ring[at])
    state.before[ring[at]] = np.where(within, step[second], state.step[ring[at]])
    state.step[ring[at]], state.number[ring[at]] = step[at], number[at]


def _opens(lines: U4, number: U4) -> Mask:
    """Which lines begin a launch, and are what their numbers say."""
    words = lines[:, 1 : HEADER_WORDS + 1]
    whole: Mask = (lines[:, 0] == number) & (words[:, 0] >> TIME_BITS == HEADER)
    whole &= (words[:, 1:] >= ARG_BIT).all(axis=1)
    whole &= lines[:, HEADER_WORDS + 1] < ARG_BIT
    return whole
