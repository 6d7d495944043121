"""SGLang's ``/start_profile`` and ``/stop_profile`` as the capture window.

The activity ``MEGATRACE`` opens it, alone or beside SGLang's own (``CPU``, ``GPU``,
...), which keep their meaning.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from megatrace.agent.host import HostAgent
from megatrace.sglang.guard import Guard

ACTIVITY = "MEGATRACE"

_MANAGER = "sglang.srt.managers.scheduler_components.profiler_manager.SchedulerProfilerManager"
START = f"{_MANAGER}._start_profile"
STOP = f"{_MANAGER}._stop_profile"
STAGED_START = "sglang.srt.utils.profile_utils.ProfileManager._do_start"
STAGED_STOP = "sglang.srt.utils.profile_utils.ProfileManager._do_stop"


class WindowHooks:
    """Hooks of the two endpoints; ``step()`` gives the first step a window opened now holds."""

    def __init__(self, agent: HostAgent, guard: Guard, step: Callable[[], int]) -> None:
        self._agent = agent
        self._guard = guard
        self._step = step

    def after_start(self, result: Any, manager: Any, *args: Any, **kwargs: Any) -> None:
        """AFTER ``SchedulerProfilerManager._start_profile``."""
        try:
            if ACTIVITY in (manager.profiler_activities or ()) and result.success:
                # SGLang sets this for its own activities alone and refuses a stop without it.
                manager.profile_in_progress = True
                self._agent.set_window(True, self._step())
        except Exception as error:
            self._guard.fail(START, error)

    def around_stop(
        self, original: Callable[..., Any], manager: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """AROUND ``SchedulerProfilerManager._stop_profile``: its export is not in the window."""
        self._close(STOP)
        return original(manager, *args, **kwargs)

    def after_staged_start(self, result: Any, manager: Any, *args: Any, **kwargs: Any) -> None:
        """AFTER ``ProfileManager._do_start``, in use with ``SGLANG_PROFILE_V2=1``."""
        try:
            if ACTIVITY in (manager.profiler_kwargs["activities"] or ()):
                self._agent.set_window(True, self._step())
        except Exception as error:
            self._guard.fail(STAGED_START, error)

    def around_staged_stop(
        self, original: Callable[..., Any], manager: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """AROUND ``ProfileManager._do_stop``."""
        self._close(STAGED_STOP)
        return original(manager, *args, **kwargs)

    def _close(self, target: str) -> None:
        try:
            self._agent.set_window(False, self._step())
        except Exception as error:
            self._guard.fail(target, error)
