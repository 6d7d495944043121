"""Signals of the recorder: blocked, then taken one at a time where the loop sleeps.

Blocking lets the loop see *who* sent a signal. What the terminal sends (Ctrl-C) reaches
the child by itself, as it shares the process group; anything else is forwarded to the
child's own process alone: SGLang's workers write their traces out only if their parent
winds them down.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
CHECKPOINT = signal.SIGUSR1

_SI_KERNEL = 0x80


@dataclass(frozen=True, slots=True)
class Taken:
    """One signal the loop took."""

    number: int
    by_terminal: bool
    """The kernel sent it for the terminal, so that the child has it too."""

    @property
    def stops(self) -> bool:
        """Whether it asks the recording to end."""
        return self.number in STOPS

    @property
    def name(self) -> str:
        """``SIGTERM``."""
        return signal.Signals(self.number).name


class Signals:
    """Takes signals inside :func:`held_signals`."""

    def __init__(self, ignored: frozenset[int]) -> None:
        self._ignored = ignored
        self._waited = {*STOPS, CHECKPOINT, signal.SIGCHLD}

    def wait(self, timeout_s: float) -> Taken | None:
        """Sleep up to ``timeout_s``; the signal that came, None for none or for SIGCHLD."""
        info = signal.sigtimedwait(self._waited, max(0.0, timeout_s))
        if info is None or info.si_signo == signal.SIGCHLD:
            return None
        taken = Taken(info.si_signo, info.si_code == _SI_KERNEL)
        # nohup and a script's `&` set SIG_IGN: the terminal's signals are not meant for us.
        if taken.by_terminal and taken.number in self._ignored:
            return None
        return taken


@contextmanager
def held_signals() -> Iterator[Signals]:
    """Block the signals of the recorder in this thread and those it starts from here on.

    Call it before anything that starts threads is imported (numpy does): a signal that one
    other thread does not block ends the process.
    """
    numbers = {*STOPS, CHECKPOINT, signal.SIGCHLD}
    ignored = frozenset(int(n) for n in numbers if signal.getsignal(n) is signal.SIG_IGN)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        yield Signals(ignored)
    finally:
        # One that came after the end has nothing left to stop.
        while signal.sigtimedwait(numbers, 0) is not None:
            pass
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
