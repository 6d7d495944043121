"""The line that says how a recording goes."""

from __future__ import annotations

import os
import sys
import termios
from dataclasses import dataclass

from megatrace.collect.talk import Talk, is_terminal
from megatrace.sizes import size_text

REWRITE_EVERY_S = 0.25
LINE_EVERY_S = 10.0


@dataclass(frozen=True, slots=True)
class Status:
    """A recording at one moment."""

    elapsed_s: float
    ranks_live: int
    ranks: int
    records: int
    lines_lost: int
    size_bytes: int
    every_n: int
    """The largest N of any rank."""

    def text(self) -> str:
        """``12.4 s · 8/8 ranks · 3,104,221 records · 0 lines lost · 48 MB · 1 step in 4``."""
        parts = [
            f"{self.elapsed_s:.1f} s",
            f"{self.ranks_live}/{self.ranks} ranks" if self.ranks else "no rank yet",
            f"{self.records:,} records",
            f"{self.lines_lost:,} lines lost",
            size_text(self.size_bytes),
        ]
        if self.every_n > 1:
            parts.append(f"1 step in {self.every_n}")
        return " · ".join(parts)


class StatusLine:
    """Shows a :class:`Status` at its own pace.

    Rewritten in place only where stderr is a terminal that the child's stdout does not
    write to. A terminal shared with the child gets a whole line every LINE_EVERY_S, as a
    file does, and none while the child holds the terminal in raw mode to draw on it.
    """

    def __init__(self, talk: Talk, *, shared: bool | None = None) -> None:
        self._talk = talk
        shared = is_terminal(sys.stdout) if shared is None else shared
        self._rewrites = talk.terminal and not shared
        self._next_s = 0.0 if self._rewrites else LINE_EVERY_S

    def due(self, elapsed_s: float) -> bool:
        """Whether it is time for a line, ``elapsed_s`` after the start."""
        return elapsed_s >= self._next_s

    def show(self, status: Status) -> None:
        """Show it and wait for the next turn."""
        if self._rewrites:
            self._next_s = status.elapsed_s + REWRITE_EVERY_S
            self._talk.rewrite(status.text())
        else:
            self._next_s = status.elapsed_s + LINE_EVERY_S
            if not (self._talk.terminal and _terminal_is_raw()):
                self._talk.say(status.text())

    def end(self) -> None:
        """Take it away."""
        self._talk.clear()


def _terminal_is_raw() -> bool:
    try:
        fd = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return not termios.tcgetattr(fd)[3] & termios.ICANON
    except termios.error:
        return False
    finally:
        os.close(fd)
