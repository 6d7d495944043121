"""What a recording is asked to do, as values."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from pathlib import Path

from megatrace.errors import UsageError
from megatrace.ring.control import ALL_SMS
from megatrace.schema.layout import LEVEL_COUNTERS, LEVEL_TIMELINE

LEVELS = {"counters": LEVEL_COUNTERS, "timeline": LEVEL_TIMELINE}
MAX_SMS = ALL_SMS.bit_length()
COUNTERS_EVERY = 32
"""Counting costs a kernel whose code fills the caches some percent of a step that counts."""


@dataclass(frozen=True, slots=True)
class RecordOptions:
    """One call of ``megatrace record``."""

    command: tuple[str, ...]
    output: Path | None = None
    """None: :func:`default_name` in the working directory."""
    force: bool = False
    every_n: int = 0
    """Timeline on one step in N; 0 lets the recorder choose."""
    counters_every: int = COUNTERS_EVERY
    """Of the steps without a timeline, counters on one in N."""
    level: int = LEVEL_TIMELINE
    window: tuple[int, int] = (0, 0)
    """Timeline only on steps in [begin, end); end 0 means no window."""
    burst: int = 0
    """Timeline on so many steps from the first."""
    sms: frozenset[int] | None = None
    """SMs that record; None means all."""

    @property
    def sm_mask(self) -> int:
        """``sms`` as a control page has it: one bit an SM."""
        return ALL_SMS if self.sms is None else sum(1 << sm for sm in self.sms)


def default_name(program: str, pid: int, now_s: float | None = None) -> str:
    """``megatrace-<program>-<UTC>-<pid>.mtr``: two recordings never share one."""
    when = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now_s))
    clean = re.sub(r"[^A-Za-z0-9._-]+", "_", program).strip("._-") or "program"
    return f"megatrace-{clean[:60]}-{when}-{pid}.mtr"


def parse_every(text: str) -> int:
    """``auto`` -> 0, ``N`` -> N. Raises UsageError."""
    if text == "auto":
        return 0
    if text.isdecimal() and int(text) >= 1:
        return int(text)
    raise UsageError(f"--every {text}: not a number of steps", hint="--every 8, or --every auto")


def parse_counters(text: str) -> int:
    """``N``. Raises UsageError."""
    if text.isdecimal() and 1 <= int(text) < 1 << 32:
        return int(text)
    raise UsageError(f"--counters {text}: not a number of steps", hint="--counters 32")


def parse_steps(text: str) -> tuple[int, int]:
    """``A:B`` or ``A:+COUNT`` -> [A, B). Raises UsageError."""
    match = re.fullmatch(r"(\d+):(\+?)(\d+)", text)
    if match is not None:
        begin, end = int(match[1]), int(match[3])
        end = begin + end if match[2] else end
        if begin < end < 1 << 64:
            return begin, end
    raise UsageError(
        f"--steps {text}: not a range of steps",
        hint="--steps 200:264 or --steps 200:+64, the end not included",
    )


def parse_sms(text: str) -> frozenset[int]:
    """``0-3,7`` -> {0, 1, 2, 3, 7}. Raises UsageError."""
    return parse_list(text, "--sms", "SM", MAX_SMS)


def parse_list(text: str, option: str, noun: str, limit: int) -> frozenset[int]:
    """``0-3,7`` -> {0, 1, 2, 3, 7}, all below ``limit``. Raises UsageError."""
    found: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", part.strip(), re.ASCII)
        first = int(match[1]) if match else limit
        last = int(match[2] or first) if match else limit
        if not first <= last < limit:
            raise UsageError(
                f"{option} {text}: {part!r} is no {noun} below {limit}", hint=f"{option} 0-3,7"
            )
        found.update(range(first, last + 1))
    return frozenset(found)
