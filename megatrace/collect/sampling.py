"""How often a step keeps its timeline: the rule for ``--every auto``.

A timeline is kept on one step in N, per rank; of the other steps one in so many counts
(:data:`megatrace.collect.options.COUNTERS_EVERY`):

1. The budget of all ranks is half of what the recorder was measured to drain, at most
   FILE_WORDS_PER_S (what a disk takes and a file can bear); a rank gets an equal part.
2. A rank's full rate is words of a timeline step x steps a second, both measured; with
   no step ids it is words a second x N. Lines lost count as words.
3. N = ceil(full rate / budget), and at least 2N where lines were lost.
4. N rises at once. It falls only to half, and only where half would still do.

N starts at 1. Beside it, :mod:`megatrace.collect.credit` keeps a ring from overrunning.

Counters are running sums, of which only the last are read, so they have a budget of their own:
after a sample of all ranks the next one waits until COUNTER_BYTES_PER_S has paid for it. What
the first sample and the last one take comes on top.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from megatrace.schema.layout import RECORDS_PER_LINE

FILE_WORDS_PER_S = 5e6
"""About 20 MB/s of capture file: a terabyte lasts half a day."""
ASSUMED_DRAIN_WORDS_PER_S = 50e6
"""Until a pass was large enough to measure."""
COUNTER_BYTES_PER_S = 2e6
"""A tenth of what lines may take. 62 layers of 1584 warps are 9.3 MB a sample and rank."""
COUNTERS_EVERY_S = 1.0
"""Where they cost less than that."""
MAX_EVERY_N = 1 << 20

_MEASURABLE_LINES = 2048
_DECAY = 0.8


@dataclass(frozen=True, slots=True)
class Load:
    """What one rank did in a window of ``span_s`` seconds."""

    lines: int
    lost: int
    steps: int
    timeline_steps: int
    span_s: float

    @property
    def words(self) -> int:
        """Words written, lost ones included."""
        return (self.lines + self.lost) * RECORDS_PER_LINE


class DrainMeter:
    """Words a second the recorder moves while it is busy moving."""

    def __init__(self) -> None:
        self.words_per_s = ASSUMED_DRAIN_WORDS_PER_S
        self._measured = False

    def add(self, lines: int, busy_s: float) -> None:
        """Count one pass. Small ones say more of the pass's fixed cost than of the rate."""
        if lines < _MEASURABLE_LINES or busy_s <= 0:
            return
        rate = lines * RECORDS_PER_LINE / busy_s
        keep = _DECAY if self._measured else 0.0
        self.words_per_s = keep * self.words_per_s + (1 - keep) * rate
        self._measured = True


def budget_words_per_s(drain_words_per_s: float, ranks: int) -> float:
    """Words a second that one of ``ranks`` may write."""
    return min(drain_words_per_s / 2, FILE_WORDS_PER_S) / max(1, ranks)


class CounterPace:
    """When the counters go to the file."""

    def __init__(self) -> None:
        self._due_s = 0.0

    def due(self, now_s: float) -> bool:
        """Whether it is time for a sample."""
        return now_s >= self._due_s

    def wrote(self, size_bytes: int, now_s: float) -> None:
        """Count a sample of all ranks."""
        self._due_s = now_s + max(COUNTERS_EVERY_S, size_bytes / COUNTER_BYTES_PER_S)


class EveryN:
    """The N of one rank; ``fixed`` keeps it."""

    def __init__(self, fixed: int = 0) -> None:
        self.value = fixed or 1
        self._fixed = bool(fixed)
        self._step_words = 0.0

    def decide(self, load: Load, budget: float) -> int:
        """The N for the next window, after ``load`` under ``budget`` words a second."""
        if self._fixed or load.span_s <= 0:
            return self.value
        wanted = max(1, math.ceil(min(MAX_EVERY_N, self._full_rate(load) / budget)))
        if load.lost:
            wanted = max(wanted, 2 * self.value)
        if wanted > self.value:
            self.value = min(wanted, MAX_EVERY_N)
        elif self._full_rate(load) > 0 and wanted <= self.value // 2:
            self.value = max(wanted, self.value // 2)
        return self.value

    def _full_rate(self, load: Load) -> float:
        if load.timeline_steps:
            self._step_words = load.words / load.timeline_steps
        if load.steps:
            return self._step_words * load.steps / load.span_s
        return load.words * self.value / load.span_s
