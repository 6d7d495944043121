"""The control page: what the recorder asks of the agent, and what the agent answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from megatrace.errors import RingError
from megatrace.ring.file import RingFile
from megatrace.ring.seqlock import read_consistent
from megatrace.schema.layout import (
    ACK,
    ACK_OFFSET,
    CONTROL,
    CONTROL_OFFSET,
    LEVEL_COUNTERS,
    SM_MASK_WORDS,
)

_WISHES = (
    *("level", "every_n", "burst", "window_begin", "window_end", "timeline_limit"),
    "counters_every",
)

ALL_SMS = (1 << 32 * SM_MASK_WORDS) - 1


@dataclass(frozen=True, slots=True)
class Control:
    """What to record from the next step on.

    ``level`` LEVEL_*; ``every_n`` timeline on one step in N (0: on none); ``burst``
    timeline on so many steps from the next; ``[window_begin, window_end)`` steps, where
    end is not 0; ``sm_mask`` one bit an SM; ``timeline_limit`` timeline steps to begin in all at
    most, bursts and windows aside (0: no limit); ``counters_every`` of the steps without a
    timeline, counters on one in N; ``seq`` even, grows with every change.
    """

    level: int = LEVEL_COUNTERS
    every_n: int = 0
    burst: int = 0
    window_begin: int = 0
    window_end: int = 0
    sm_mask: int = ALL_SMS
    timeline_limit: int = 0
    counters_every: int = 1
    seq: int = 0

    @property
    def sm_words(self) -> tuple[int, ...]:
        """``sm_mask`` as the page holds it: SM_MASK_WORDS words of 32 SMs."""
        return tuple(self.sm_mask >> 32 * i & 0xFFFFFFFF for i in range(SM_MASK_WORDS))


@dataclass(frozen=True, slots=True)
class Ack:
    """What the agent last said: the ``seq`` it applied, its step, its counts."""

    seq: int = 0
    level: int = 0
    step: int = 0
    timeline_steps: int = 0
    host_records: int = 0
    window_open: int = 0


def write_control(ring: RingFile, control: Control) -> int:
    """Publish ``control`` under the sequence lock; returns the new ``seq``.

    One writer only, the recorder. Raises RingError where the page is mapped read-only.
    """
    page = _page(ring, CONTROL, CONTROL_OFFSET)
    if not page.flags.writeable:
        raise RingError(
            f"the control page of {ring.path} is mapped read-only",
            hint="attach with writable_control=True",
        )
    seq = (int(page["seq"]) | 1) & 0xFFFFFFFF
    page["seq"] = seq
    for name in _WISHES:
        page[name] = getattr(control, name)
    page["sm_mask"] = control.sm_words
    seq = (seq + 1) & 0xFFFFFFFF
    page["seq"] = seq
    return seq


def read_control(ring: RingFile, *, timeout_s: float = 0.1) -> Control:
    """The control as it is now, never half of a change.

    Raises RingError where a change stays unfinished for ``timeout_s``.
    """
    page = _page(ring, CONTROL, CONTROL_OFFSET)
    what = f"the control page of {ring.path}"
    copy = read_consistent(lambda: int(page["seq"]), page.copy, timeout_s=timeout_s, what=what)
    return _control(copy)


def write_ack(ring: RingFile, ack: Ack) -> None:
    """Owner only: answer the recorder."""
    page = _page(ring, ACK, ACK_OFFSET)
    for name in ("level", "step", "timeline_steps", "host_records", "window_open", "seq"):
        page[name] = getattr(ack, name)


def read_ack(ring: RingFile) -> Ack:
    """The agent's last answer; each field is whole, fields may be a moment apart."""
    page = _page(ring, ACK, ACK_OFFSET).copy()
    return Ack(**{name: int(page[name]) for name in Ack.__dataclass_fields__})


def _page(ring: RingFile, dtype: np.dtype[Any], offset: int) -> Any:
    return np.ndarray((), dtype, ring.control_page, offset - CONTROL_OFFSET)


def _control(page: Any) -> Control:
    mask = sum(int(word) << 32 * i for i, word in enumerate(page["sm_mask"]))
    wishes = {name: int(page[name]) for name in (*_WISHES, "seq")}
    return Control(sm_mask=mask, **wishes | {"counters_every": max(1, wishes["counters_every"])})
