"""What the host half of the agent tells the device half: steps, and the capture window.

They are made by different entry points of one process and know nothing of each other::

    step_signal().subscribe(agent.on_step)   # device half: writes the id for the kernels
    step_signal().emit(step)                 # host half: before any launch of the step
    capture_window().is_open = True          # host half: every step from now on
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from dataclasses import dataclass

_LOG = logging.getLogger("megatrace.agent")


class StepSignal:
    """Calls every subscriber with the number of the step that begins, from 1.

    A subscriber that raises is dropped, its reason kept in ``failures``: a profiler must
    not stop a server.
    """

    __slots__ = ("_subscribers", "failures", "stream")

    def __init__(self) -> None:
        self._subscribers: tuple[Callable[[int], None], ...] = ()
        self.failures: list[str] = []
        self.stream = 0
        """Handle of the stream that the steps' launches go to, once the framework has one."""

    def subscribe(self, callback: Callable[[int], None]) -> None:
        """Call ``callback(step)`` at the begin of each step, on the scheduler's thread."""
        self._subscribers = (*self._subscribers, callback)

    def unsubscribe(self, callback: Callable[[int], None]) -> None:
        """Call it no more; one that is not subscribed is ignored."""
        self._subscribers = tuple(s for s in self._subscribers if s != callback)

    def emit(self, step: int) -> None:
        """Tell the subscribers; never raises."""
        for callback in self._subscribers:
            try:
                callback(step)
            except Exception as error:
                self.unsubscribe(callback)
                self.failures.append(f"{type(error).__name__}: {error}")
                _LOG.warning("megatrace: a step subscriber failed and is dropped: %s", error)


@dataclass(slots=True)
class CaptureWindow:
    """Whether a capture window is open in this process."""

    is_open: bool = False


@functools.cache
def capture_window() -> CaptureWindow:
    """The window of this process."""
    return CaptureWindow()


@functools.cache
def step_signal() -> StepSignal:
    """The signal of this process."""
    return StepSignal()
