"""The reader's half of a sequence lock: odd while being written, another number after."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from megatrace.errors import RingError

_PAUSE_S = 0.00005

T = TypeVar("T")


def read_consistent(
    seq: Callable[[], int], copy: Callable[[], T], *, timeout_s: float, what: str
) -> T:
    """What ``copy`` returns of a moment in which ``seq`` was even and stood still.

    Raises RingError, naming ``what``, where a write stays unfinished for ``timeout_s``.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        before = seq()
        copied = copy()
        if before % 2 == 0 and seq() == before:
            return copied
        if time.monotonic() >= deadline:
            raise RingError(
                f"{what} stays half written", hint="its recorder was killed; start another"
            )
        time.sleep(_PAUSE_S)
