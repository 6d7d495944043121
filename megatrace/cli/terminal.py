"""What the verbs that draw share: whether to, and the program that does."""

from __future__ import annotations

import gc
import os
import sys
from typing import TYPE_CHECKING

from megatrace.collect.talk import is_terminal
from megatrace.errors import MegatraceError

if TYPE_CHECKING:
    from megatrace.tui.source import Source


def draws(plain: bool) -> bool:
    """Whether there is a terminal to draw on, and nobody wants plain text."""
    # Textual draws on stderr.
    able = all(is_terminal(stream) for stream in (sys.stdin, sys.stdout, sys.stderr))
    return able and not plain and os.environ.get("TERM") != "dumb"


def run_app(source: Source) -> int:
    """Show ``source`` until it is quit; the exit code. Raises MegatraceError."""
    gc.disable()  # what is imported stays: looking through it now costs a tenth of the start
    try:
        from megatrace.tui.app import MegatraceApp
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "textual":
            raise
        raise MegatraceError(
            "drawing needs textual, which is not installed",
            hint="pip install 'megatrace[view]', or --once for plain text",
        ) from None
    finally:
        gc.freeze()
        gc.enable()
    app = MegatraceApp(source)
    app.run()
    return app.return_code or 0
