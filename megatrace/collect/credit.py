"""How many timeline steps an agent may begin without overrunning its ring.

The GPU never waits for the recorder, so the decision is the host's, a step ahead: an agent
begins a timeline only while it has begun fewer than ``timeline_limit`` of them. The limit
follows what was drained, plus as many steps as the ring holds::

    limit = steps drained + SAFE * lines of a warp's ring / lines of a warp's step

and at least one step more than was drained: of a step that fills most of the ring nobody can say
that it is over before the next begins, and what it overruns is counted. Lines of a step are
measured where a step id changes between two headers of a warp. Until then the limit is FIRST
beyond what was drained: a ring is meant to hold that many steps. A step counts as drained when
every watched warp has a later one, or when a drain finds nothing new: not every warp is in every
step where only some SMs record, because blocks change their SMs. Nothing new does not say that the
last step is over, so it tells of no step's lines: those that an agent copies out come in bursts,
with a step cut anywhere.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque

import numpy as np
from numpy.typing import NDArray

from megatrace.schema.layout import ARG_MASK, TIME_BITS

FIRST = 2
SAFE = 0.75

_HEADER = 1
_WATCHED = 24
"""Warp rings looked at: two blocks' worth, every role among them."""
_RECENT = 1024


class Credit:
    """The limit of one ring file; :meth:`feed` it every drain.

    Attributes:
        limit: timeline steps the agent may have begun in all.
    """

    def __init__(self, lines: int) -> None:
        """``lines`` of 128 bytes a warp."""
        self.limit = FIRST if lines else 0
        self._lines = lines
        self._rings: dict[int, _Watch] = {}
        self._steps = 0
        self._recent: deque[int] = deque(maxlen=_RECENT)

    def feed(self, ring: NDArray[np.uint32], lines: NDArray[np.uint32]) -> bool:
        """Take a drain, lines ``(n, 32)`` of warp rings ``(n,)``; True where the limit rose.

        A drain of nothing says that all there was has been taken.
        """
        if not self._lines:
            return False
        if not len(ring):
            return self._raise(self._steps)
        self._count_steps(lines)
        for number in self._watched(ring):
            self._rings[number].feed(lines[ring == number])
        last = min((w.step for w in self._rings.values()), default=-1)
        later = len(self._recent) - bisect_right(self._recent, last)
        return self._raise(self._steps - later)

    def _raise(self, drained: int) -> bool:
        """Set the limit after ``drained`` steps, the last of them perhaps still running."""
        need = max((w.step_lines for w in self._rings.values()), default=0)
        limit = drained - 1 + (max(2, int(SAFE * self._lines / need)) if need else FIRST)
        rose = limit > self.limit
        self.limit = max(self.limit, limit)
        return rose

    def _count_steps(self, lines: NDArray[np.uint32]) -> None:
        """Step ids grow, so those above the last are new."""
        headers = lines[:, 1] >> TIME_BITS == _HEADER
        steps = np.unique(lines[headers, 3] & ARG_MASK)
        fresh = steps[steps > (self._recent[-1] if self._recent else -1)].tolist()
        self._recent.extend(fresh)
        self._steps += len(fresh)

    def _watched(self, ring: NDArray[np.uint32]) -> list[int]:
        here = np.unique(ring).tolist()
        for number in here:
            if len(self._rings) < _WATCHED and number not in self._rings:
                self._rings[number] = _Watch()
        return [number for number in here if number in self._rings]


class _Watch:
    """Steps and lines of one warp's ring."""

    __slots__ = ("lines", "step", "step_lines")

    def __init__(self) -> None:
        self.step = -1
        """The last step id."""
        self.step_lines = 0
        """Lines of the largest whole step."""
        self.lines = 0
        """Lines of the last step so far."""

    def feed(self, lines: NDArray[np.uint32]) -> None:
        headers = np.flatnonzero(lines[:, 1] >> TIME_BITS == _HEADER)
        steps = (lines[headers, 3] & ARG_MASK).astype(np.int64)
        begins = headers[np.diff(steps, prepend=self.step) != 0]
        at, begun = 0, self.step >= 0
        for begin in begins.tolist():
            if begun:
                self.step_lines = max(self.step_lines, self.lines + begin - at)
            begun, self.lines, at = True, 0, begin
        self.lines += len(lines) - at
        if len(steps):
            self.step = int(steps[-1])
