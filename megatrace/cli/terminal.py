"""What the verbs that draw share: whether to, and the program that does."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from megatrace.collect.talk import is_terminal
from megatrace.errors import MegatraceError

if TYPE_CHECKING:
    from megatrace.tui.source import Source


def draws(plain: bool) -> bool:
    """Whether there is a terminal to draw on, and nobody wants plain text."""
    able = is_terminal(sys.stdin) and is_terminal(sys.stdout)
    return able and not plain and os.environ.get("TERM") != "dumb"


def run_app(source: Source) -> int:
    """Show ``source`` until it is quit; the exit code. Raises MegatraceError."""
    try:
        from megatrace.tui.app import MegatraceApp
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "textual":
            raise
        raise MegatraceError(
            "drawing needs textual, which is not installed",
            hint="pip install 'megatrace[view]', or --once for plain text",
        ) from None
    app = MegatraceApp(source)
    app.run()
    return app.return_code or 0
