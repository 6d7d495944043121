"""Lines that the device cannot write home: they stay in its memory, and the agent copies them.

For a GPU whose driver refuses to pin a ring. It costs what pinning saves: the weights' stream
shares its memory with the lines, and a copy of all of them crosses the bus as long as launches
have a timeline. What a device that has failed did not give away by then is lost.
"""

from __future__ import annotations

import os
import sys
import time

import numpy as np
from numpy.typing import NDArray

from megatrace.ring.file import RingFile
from megatrace.schema.layout import HALF_WORDS, LEVEL_TIMELINE, LINE_WORDS

UNPINNED_ENV = "MEGATRACE_UNPINNED"
"""Set to 1, no ring is pinned, as if the driver had refused to."""
COPY_S = 0.01
"""Between two copies, while launches have a timeline and shortly after."""
_IDLE_S = 0.25
_NUMBERS = [0, HALF_WORDS]


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
        self._seen = self.staging[:, _NUMBERS]
        self._last_s = self._hurry_until_s = 0.0

    def expect(self, level: int) -> None:
        """A step begins at ``level``: lines come soon where that is a timeline."""
        if level & 0xFF >= LEVEL_TIMELINE:
            self._hurry_until_s = time.monotonic() + _IDLE_S

    def due(self) -> bool:
        """Whether it is time to copy; a hang is told even where no timeline is."""
        now = time.monotonic()
        if now >= self._hurry_until_s and now - self._last_s < _IDLE_S:
            return False
        self._last_s = now
        return True

    def bring_home(self, *, stopped: bool = False) -> int:
        """Hand on the lines of ``staging`` that are new to the ring; how many.

        A copy may meet a line half written, so a line counts once two copies found the same
        numbers in it, or where the device has ``stopped``.
        """
        numbers = self.staging[:, _NUMBERS]
        fresh = (numbers != self._home[:, _NUMBERS]).any(axis=1)
        if not stopped:
            fresh &= (numbers == self._seen).all(axis=1)
        self._seen = numbers
        rows = np.flatnonzero(fresh)
        lines = self.staging[rows]
        # A reader looks at the numbers before and after: without them there is no line.
        for word in _NUMBERS:
            self._home[rows, word] = 0
        for word in _NUMBERS:
            self._home[rows, word + 1 : word + HALF_WORDS] = lines[:, word + 1 : word + HALF_WORDS]
        for word in reversed(_NUMBERS):
            self._home[rows, word] = lines[:, word]
        return rows.size
