"""What the tool says: stderr only, one prefix, colour and rewriting by the terminal.

Colour follows NO_COLOR (wins), CLICOLOR_FORCE, then whether the stream is a terminal.
A stream that cannot be written to any more is ignored: talk never ends a recording.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TextIO

PREFIX = "megatrace: "

_RED, _YELLOW, _DIM, _RESET = "\x1b[31m", "\x1b[33m", "\x1b[2m", "\x1b[0m"
_ERASE = "\r\x1b[K"


def wants_colour(stream: TextIO, env: Mapping[str, str] | None = None) -> bool:
    """Whether ``stream`` gets colours under NO_COLOR, CLICOLOR_FORCE and its terminal."""
    env = os.environ if env is None else env
    if env.get("NO_COLOR"):
        return False
    if env.get("CLICOLOR_FORCE", "0") not in ("", "0"):
        return True
    return is_terminal(stream) and env.get("TERM") != "dumb"


def is_terminal(stream: TextIO) -> bool:
    """Whether ``stream`` is a terminal; a closed one is not."""
    try:
        return stream.isatty()
    except (OSError, ValueError):
        return False


class Talk:
    """Messages on ``stream`` (stderr unless told otherwise), a line each."""

    def __init__(self, stream: TextIO | None = None, env: Mapping[str, str] | None = None) -> None:
        self._stream = sys.stderr if stream is None else stream
        self.terminal = is_terminal(self._stream)
        self.colour = wants_colour(self._stream, env)
        self._drawn = False

    def say(self, text: str) -> None:
        """One line of plain talk."""
        self._line(PREFIX + text)

    def warn(self, text: str) -> None:
        """Something is lost or missing, and the work goes on."""
        self._line(PREFIX + self._paint(_YELLOW, "warning: ") + text)

    def error(self, text: str, hint: str = "") -> None:
        """The work stops: the cause, then the next step."""
        self._line(PREFIX + self._paint(_RED, "error: ") + text)
        if hint:
            self._line(PREFIX + self._paint(_DIM, "hint: ") + hint)

    def rewrite(self, text: str) -> None:
        """Replace the status line; only for a terminal."""
        self._write(_ERASE + PREFIX + text)
        self._drawn = True

    def clear(self) -> None:
        """Take the status line away."""
        if self._drawn:
            self._write(_ERASE)
            self._drawn = False

    def _paint(self, code: str, text: str) -> str:
        return f"{code}{text}{_RESET}" if self.colour else text

    def _line(self, text: str) -> None:
        self.clear()
        self._write(text + "\n")

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):
            self.terminal = False
