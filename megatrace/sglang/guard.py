"""A hook that fails is switched off, said once, and never seen by the server."""

from __future__ import annotations

import logging
from collections.abc import Callable

_LOG = logging.getLogger("megatrace.sglang")


def reason(error: BaseException) -> str:
    """One line that says what went wrong, with the hint where there is one."""
    hint = getattr(error, "hint", "")
    text = f"{type(error).__name__}: {error}".splitlines()[0]
    return f"{text} ({hint})" if hint else text


class Guard:
    """Remembers which hooks have failed. ``report(target, reason)`` runs once for each."""

    __slots__ = ("_report", "broken")

    def __init__(self, report: Callable[[str, str], None]) -> None:
        self._report = report
        self.broken: dict[str, str] = {}

    def fail(self, target: str, error: BaseException) -> None:
        """Switch ``target``'s hook off."""
        if target in self.broken:
            return
        self.broken[target] = reason(error)
        _LOG.warning("megatrace: hook on %s switched off: %s", target, self.broken[target])
        try:
            self._report(target, self.broken[target])
        except Exception as second:
            _LOG.warning("megatrace: cannot record that: %s", reason(second))
