"""What a fit leaves: per SM, globaltimer as a function of the clock, with its error."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from megatrace.clock.host import HostClock
from megatrace.clock.samples import F8, I8
from megatrace.errors import ClockError
from megatrace.schema.processes import rank_text


@dataclass(frozen=True, slots=True)
class SmClock:
    """Piecewise linear: at ``knots[i]`` cycles globaltimer is ``base_ns + offset_ns[i]``.

    ``rate[i]`` (ns a cycle) holds between knots i and i + 1; the first and the last also
    hold outside. ``error_ns`` is the p99.9 over launches the fit had not seen, plus the
    step of globaltimer; ``held_out`` is False where there were too few launches for that
    and the fit was tried on its own samples.
    """

    sm: int
    knots: I8
    base_ns: int
    offset_ns: F8
    rate: F8
    error_ns: float
    samples: int
    held_out: bool

    def to_ns(self, clock: I8) -> I8:
        """Globaltimer (ns) at ``clock`` cycles; any shape."""
        piece = self._piece(clock)
        since = (clock - self.knots[piece]).astype(np.float64)
        ns = self.offset_ns[piece] + since * self.rate[piece]
        return self.base_ns + np.rint(ns).astype(np.int64)

    def rate_at(self, clock: I8) -> F8:
        """Nanoseconds a cycle at ``clock`` cycles."""
        return self.rate[self._piece(clock)]

    def _piece(self, clock: I8) -> NDArray[np.intp]:
        piece = np.searchsorted(self.knots, clock, side="right") - 1
        return np.clip(piece, 0, len(self.rate) - 1)


@dataclass(frozen=True, slots=True)
class ClockModel:
    """All clocks of one rank.

    ``host`` is None where the capture has no clock samples of the host; nothing can then
    be placed beside host events or another rank.
    """

    rank: int
    quantum_ns: int
    sms: Mapping[int, SmClock]
    host: HostClock | None = None

    @property
    def error_ns(self) -> float:
        """The largest stated error among the SMs."""
        return max(sm.error_ns for sm in self.sms.values())

    @property
    def ns_per_cycle(self) -> float:
        """The median rate over SMs and pieces, for cycles that have no launch."""
        return float(np.median(np.concatenate([sm.rate for sm in self.sms.values()])))

    @property
    def samples(self) -> int:
        """Pairs behind the model."""
        return sum(sm.samples for sm in self.sms.values())

    def sm(self, number: int) -> SmClock:
        """The clock of one SM. Raises ClockError where it gave no samples."""
        try:
            return self.sms[number]
        except KeyError:
            raise ClockError(
                f"rank {rank_text(self.rank)}: SM {number} gave no clock samples",
                hint="record longer, so that a launch of this SM opens and closes",
            ) from None

    def place(self, sm: NDArray[np.int32], clock: I8) -> tuple[I8, F8, F8]:
        """Globaltimer ns, ns a cycle and stated error (ns) of each (SM, clock); shape [N]."""
        ns = np.zeros(len(clock), np.int64)
        rate = np.zeros(len(clock))
        error = np.zeros(len(clock))
        order = np.argsort(sm.astype(np.uint16), kind="stable")
        numbers, starts = np.unique(sm[order], return_index=True)
        for number, rows in zip(numbers, np.split(order, starts)[1:], strict=True):
            one = self.sm(int(number))
            ns[rows] = one.to_ns(clock[rows])
            rate[rows] = one.rate_at(clock[rows])
            error[rows] = one.error_ns
        return ns, rate, error

    def to_host_ns(self, globaltimer_ns: I8) -> I8:
        """CLOCK_MONOTONIC ns of times of this GPU. Raises ClockError without samples."""
        return self._host().to_host_ns(globaltimer_ns)

    def from_host_ns(self, host_ns: I8) -> I8:
        """Globaltimer ns of times of the host. Raises ClockError without samples."""
        return self._host().from_host_ns(host_ns)

    @property
    def host_error_ns(self) -> float:
        """Stated error of host <-> globaltimer. Raises ClockError without samples."""
        return self._host().error_ns

    def _host(self) -> HostClock:
        if self.host is None:
            raise ClockError(
                f"rank {rank_text(self.rank)}: no clock samples tie its GPU to the host",
                hint="the agent takes them; record with it, for a second at least",
            )
        return self.host
