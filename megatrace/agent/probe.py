"""Clock samples: the host reads its clock, the GPU its globaltimer, the host again."""

from __future__ import annotations

import ctypes
import time
from contextlib import ExitStack
from dataclasses import dataclass

from megatrace.agent.cuda import Cuda
from megatrace.paths import include_dir

_ROUNDS = 8
_GIVE_UP_S = 0.02
"""The GPU may be full; and it gives up by itself after half a millisecond (the PTX)."""
_ANSWER, _NUMBER = 64, 72
_PAGE_BYTES = 4096


@dataclass(frozen=True, slots=True)
class ClockSample:
    """``globaltimer_ns`` was read between ``before_ns`` and ``after_ns`` (CLOCK_MONOTONIC)."""

    before_ns: int
    after_ns: int
    globaltimer_ns: int


class ClockProbe:
    """Asks the GPU for its globaltimer through a page of host memory."""

    def __init__(self, cuda: Cuda) -> None:
        """Load the probe; raises RingError where the driver refuses."""
        self._cuda = cuda
        # The driver's own memory, which it gives where it pins nobody else's.
        self._host, self._device = cuda.allocate_host(_PAGE_BYTES)
        with ExitStack() as undo:
            undo.callback(cuda.free_host, self._host)
            ptx = (include_dir() / "megatrace" / "clock_probe.ptx").read_text()
            self._module, self._function = cuda.load_kernel(ptx, "megatrace_clock_probe")
            self._stream = cuda.stream()
            undo.pop_all()

    def sample(self) -> ClockSample | None:
        """The sample of the shortest of a few round trips; None where there was no answer.

        The GPU may have no room for the probe, or this thread be kept from asking in time.
        """
        question = ctypes.c_uint32.from_address(self._host)
        answer = ctypes.c_uint64.from_address(self._host + _ANSWER)
        number = ctypes.c_uint32.from_address(self._host + _NUMBER)
        question.value = number.value = 0
        args = [ctypes.c_uint64(self._device), ctypes.c_uint32(_ROUNDS)]
        self._cuda.launch_one(self._function, args, self._stream)
        best: ClockSample | None = None
        give_up = time.monotonic() + _GIVE_UP_S
        for asked in range(1, _ROUNDS + 1):
            before_ns = time.monotonic_ns()
            question.value = asked
            while number.value != asked:
                if time.monotonic() > give_up:
                    return best
            after_ns = time.monotonic_ns()
            if best is None or after_ns - before_ns < best.after_ns - best.before_ns:
                best = ClockSample(before_ns, after_ns, answer.value)
        return best

    def close(self) -> None:
        """Wait for the probe and give its page back."""
        self._cuda.synchronize(self._stream)
        self._cuda.free_host(self._host)
