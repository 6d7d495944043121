"""How many timeline steps an agent may begin without overrunning its ring.

The GPU never waits for the recorder, so the decision is the host's, a step ahead: an agent
begins a timeline only while it has begun fewer than ``timeline_limit`` of them. The limit
follows what was drained, plus as many steps as the ring holds::

    limit = steps drained + SAFE * lines of a warp's ring / lines of a warp's step

Lines of a step are measured where a step id changes between two headers of a warp. Until
then the limit is FIRST: a ring is meant to hold that many steps.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from megatrace.schema.layout import ARG_MASK, TIME_BITS

FIRST = 2
SAFE = 0.75

_HEADER = 1
_WATCHED = 24
"""Warp rings looked at: two blocks' worth, every role among them."""


class Credit:
    """The limit of one ring file; :meth:`feed` it every drained line.

    Attributes:
        limit: timeline steps the agent may have begun in all.
    """

    def __init__(self, lines: int) -> None:
        """``lines`` of 128 bytes a warp."""
        self.limit = FIRST if lines else 0
        self._lines = lines
        self._rings: dict[int, _Watch] = {}

    def feed(self, ring: NDArray[np.uint32], lines: NDArray[np.uint32]) -> bool:
        """Take drained lines ``(n, 32)`` of warp rings ``(n,)``; True where the limit rose."""
        if not self._lines or not len(ring):
            return False
        for number in self._watched(ring):
            mine = lines[ring == number]
            self._rings[number].feed(mine)
        need = max((w.step_lines for w in self._rings.values()), default=0)
        if not need:
            return False
        drained = min(w.steps - 1 for w in self._rings.values())
        limit = drained + max(1, int(SAFE * self._lines / need))
        rose = limit > self.limit
        self.limit = max(self.limit, limit)
        return rose

    def _watched(self, ring: NDArray[np.uint32]) -> list[int]:
        here = np.unique(ring).tolist()
        for number in here:
            if len(self._rings) < _WATCHED and number not in self._rings:
                self._rings[number] = _Watch()
        return [number for number in here if number in self._rings]


class _Watch:
    """Steps and lines of one warp's ring."""

    __slots__ = ("_lines", "_step", "step_lines", "steps")

    def __init__(self) -> None:
        self.steps = 0
        """Steps begun."""
        self.step_lines = 0
        """Lines of the largest whole step."""
        self._lines = 0
        self._step = -1

    def feed(self, lines: NDArray[np.uint32]) -> None:
        headers = np.flatnonzero(lines[:, 1] >> TIME_BITS == _HEADER)
        steps = (lines[headers, 3] & ARG_MASK).astype(np.int64)
        begins = headers[np.diff(steps, prepend=self._step) != 0]
        at = 0
        for begin in begins.tolist():
            if self.steps:
                self.step_lines = max(self.step_lines, self._lines + begin - at)
            self.steps += 1
            self._lines, at = 0, begin
        self._lines += len(lines) - at
        if len(steps):
            self._step = int(steps[-1])
