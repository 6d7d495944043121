"""How far a long verb has come: a bar on a terminal, now and then a line elsewhere."""

from __future__ import annotations

import time

from megatrace.collect.talk import Talk

_REDRAW_S = 0.25
_LINE_EVERY_S = 10.0
_BAR_CELLS = 30


class Progress:
    """Shows ``(done, total)`` of one piece of work at a time."""

    def __init__(self, talk: Talk) -> None:
        self._talk = talk
        self._what = ""
        self._next_s = 0.0

    def begin(self, what: str) -> None:
        """A piece of work begins whose length is not known."""
        self._what = what
        self._next_s = time.monotonic() + (0.0 if self._talk.terminal else _LINE_EVERY_S)
        if self._talk.terminal:
            self._talk.rewrite(f"{what} ...")

    def __call__(self, done: int, total: int) -> None:
        """So much of it is done."""
        now = time.monotonic()
        if now < self._next_s:
            return
        share = done / total if total else 1.0
        if self._talk.terminal:
            self._next_s = now + _REDRAW_S
            filled = round(share * _BAR_CELLS)
            bar = "█" * filled + "░" * (_BAR_CELLS - filled)
            self._talk.rewrite(f"{self._what} {bar} {share:.0%}")
        else:
            self._next_s = now + _LINE_EVERY_S
            self._talk.say(f"{self._what}: {share:.0%}")

    def end(self) -> None:
        """Take the bar away."""
        self._talk.clear()
