"""One time axis for all ranks and the host, or a word on why there is none.

The axis is the globaltimer of the first rank, so that its durations are those of every
table. Other ranks and the host come onto it through the clock samples that tie each GPU
to the host, which bounds the error: it is stated, never guessed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from megatrace.clock import ClockModel
from megatrace.errors import ClockError
from megatrace.export.wire import I8
from megatrace.schema.processes import rank_text


@dataclass(frozen=True, slots=True)
class Timeline:
    """Where times of ranks and of the host lie on the axis.

    Attributes:
        axis: What the axis is, in words.
        clocks: Model of each rank on it, the reference first.
        host_missing: Why the host is not on it; empty where it is.
    """

    axis: str
    clocks: Mapping[int, ClockModel]
    host_missing: str = ""

    @property
    def _reference(self) -> ClockModel:
        return next(iter(self.clocks.values()))

    def gpu(self, rank: int, globaltimer_ns: I8) -> I8:
        """Axis ns of times of one rank's GPU; order and nesting are kept."""
        clock = self.clocks[rank]
        if clock is self._reference:
            return globaltimer_ns
        return self._reference.from_host_ns(clock.to_host_ns(globaltimer_ns))

    def host(self, host_ns: I8) -> I8:
        """Axis ns of CLOCK_MONOTONIC ns. Raises ClockError where ``host_missing``."""
        if self.host_missing:
            raise ClockError(self.host_missing)
        return self._reference.from_host_ns(host_ns) if self.clocks else host_ns

    def gpu_error_ns(self, rank: int) -> float:
        """How far off a time of this rank's GPU may be."""
        clock = self.clocks[rank]
        if clock is self._reference:
            return clock.error_ns
        return clock.error_ns + clock.host_error_ns + self._reference.host_error_ns

    @property
    def host_error_ns(self) -> float | None:
        """How far off a time of the host may be; None where it is not on the axis."""
        if self.host_missing:
            return None
        return self._reference.host_error_ns if self.clocks else 0.0


def timeline(clocks: Mapping[int, ClockModel], ranks: Sequence[int]) -> Timeline:
    """The axis for ``ranks``, those that have launches; the host's own where none has.

    Raises ClockError where several ranks have no common clock.
    """
    chosen = {rank: clocks[rank] for rank in ranks}
    if not chosen:
        return Timeline("CLOCK_MONOTONIC of the host", {})
    untied = [rank for rank, clock in chosen.items() if clock.host is None]
    first = next(iter(chosen))
    if untied and len(chosen) > 1:
        names = ", ".join(map(rank_text, untied))
        raise ClockError(
            f"no clock samples tie rank {names} to the host, so its times cannot be "
            "compared with those of other ranks",
            hint="export one rank alone, or record longer with the agent",
        )
    axis = f"globaltimer of rank {rank_text(first)}"
    if untied:
        missing = f"no clock samples tie the GPU of rank {rank_text(first)} to the host: GPU only"
        return Timeline(axis, chosen, missing)
    return Timeline(axis, chosen)
