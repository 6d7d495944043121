"""Lines that the device cannot write home: they stay in its memory, and the agent copies them.

For a GPU whose driver refuses to pin a ring. It costs what pinning saves: the weights' stream
shares its memory with the lines, a copy of all of them crosses the bus as long as launches have a
timeline, and looking for what is new takes a core. What was not copied when the device fails or
the process is killed is lost, and nobody knows how much.
"""

from __future__ import annotations

import os
import sys
import time

import numpy as np
from numpy.typing import NDArray

from megatrace.ring.file import RingFile
from megatrace.schema.layout import HALF_WORDS, LEVEL_MASK, LEVEL_OFF, LEVEL_TIMELINE, LINE_WORDS

UNPINNED_ENV = "MEGATRACE_UNPINNED"
"""Set to 1, no ring is pinned, as if the driver had refused to."""
COPY_S = 0.01
"""Between two copies, while launches have a timeline and shortly after."""
_HURRY_S = 0.25
_IDLE_S = 1.0
"""Between two copies of launches that count: one that hangs says so 4 s before it traps."""


def unpinned_by_wish() -> str:
    """Why no ring is to be pinned; "" where nobody asks for that."""
    return f"{UNPINNED_ENV} is set" if os.environ.get(UNPINNED_ENV, "0") not in ("", "0") else ""


def say_unpinned(why: str, lines_bytes: int) -> None:
    """Say on stderr what the recording costs now."""
    sys.stderr.write(
        f"megatrace: the ring is not pinned ({why}): its lines stay on the device, "
        f"{lines_bytes / 1e6:.0f} MB, and are copied out; launches with a timeline take longer\n"
    )


class LineCopies:
    """Brings lines from a copy of the device's memory, ``staging``, to ``ring``.

    ::

        if copies.due():
            ...                      # copy the device's lines to staging
            copies.bring_home()

    Attributes:
        staging: u4 ``(rings * lines, 32)``, this process's own.
    """

    def __init__(self, ring: RingFile) -> None:
        self._home: NDArray[np.uint32] = ring.lines.reshape(-1, LINE_WORDS)
        self.staging = np.zeros_like(self._home)
        self._at_home = self._numbers()
        self._seen = self._numbers()
        self._rows = np.zeros(0, np.intp)
        self._held = np.zeros((0, LINE_WORDS), np.uint32)
        self._level = LEVEL_OFF
        self._last_s = self._hurry_until_s = 0.0

    def expect(self, level: int) -> None:
        """A step begins at ``level``: lines come soon where that is a timeline."""
        self._level = level & LEVEL_MASK
        if self._level >= LEVEL_TIMELINE:
            self._hurry_until_s = time.monotonic() + _HURRY_S

    def due(self) -> bool:
        """Whether it is time to copy; a hang of a launch that only counts is told too."""
        now = time.monotonic()
        if now >= self._hurry_until_s and (
            self._level == LEVEL_OFF or now - self._last_s < _IDLE_S
        ):
            return False
        self._last_s = now
        return True

    def bring_home(self, *, stopped: bool = False) -> int:
        """Hand on the lines of ``staging`` that are new to the ring; how many.

        A copy may meet a line while it is written, or while it is written over: it counts if
        the copies before and after found the same numbers, or the device has ``stopped``.
        """
        numbers = self._numbers()
        if stopped:
            rows = np.flatnonzero((numbers != self._at_home).any(axis=1))
            self._hand_on(rows, self.staging[rows])
            return rows.size
        still = (numbers[self._rows] == self._held[:, ::HALF_WORDS]).all(axis=1)
        self._hand_on(self._rows[still], self._held[still])
        fresh = (numbers != self._at_home).any(axis=1) & (numbers == self._seen).all(axis=1)
        if len(self._held) or fresh.any() or (numbers != self._seen).any():
            self._hurry_until_s = time.monotonic() + _HURRY_S  # what came waits for two copies more
        self._rows = np.flatnonzero(fresh)
        self._held = self.staging[self._rows]
        self._seen = numbers
        return int(np.count_nonzero(still))

    def _numbers(self) -> NDArray[np.uint32]:
        return self.staging[:, ::HALF_WORDS].copy()

    def _hand_on(self, rows: NDArray[np.intp], lines: NDArray[np.uint32]) -> None:
        # A reader looks at the numbers before and after: without them there is no line.
        for word in (0, HALF_WORDS):
            self._home[rows, word] = 0
        for word in (0, HALF_WORDS):
            self._home[rows, word + 1 : word + HALF_WORDS] = lines[:, word + 1 : word + HALF_WORDS]
        for word in (HALF_WORDS, 0):
            self._home[rows, word] = lines[:, word]
        self._at_home[rows] = lines[:, ::HALF_WORDS]
