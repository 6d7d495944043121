"""One rank of a capture: its lines, its launches on the clock, the names of its numbers."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megatrace.analysis.launches import MAX_RINGS, Launches, Scan, scan
from megatrace.analysis.lines import F8, I8, U4, Rows
from megatrace.analysis.tables import Lookup, lookup
from megatrace.capture.facts import RingFacts
from megatrace.capture.reader import Capture
from megatrace.clock import ClockModel, ClockSamples, HostClock, fit_host, fit_rank
from megatrace.errors import ClockError
from megatrace.schema import HOST, EventTable
from megatrace.schema.processes import rank_text

CLOCK_SAMPLE = next(event.id for event in HOST if event.name == "clock_sample")
UNPLACED = (next(event.id for event in HOST if event.name == "fact"), CLOCK_SAMPLE)
"""Host records that are no events on a time line."""
_QUANTUM_NS = {0: 1, 1: 32}
"""Step of globaltimer by device, where the samples are too few to show it."""
_LONG_NS = 50_000
_PROBED_RINGS = 8


@dataclass(frozen=True, slots=True)
class CaptureLines:
    """The lines of one rank of a capture; see :class:`~megatrace.analysis.lines.LineSource`.

    Once they are scanned ``ring`` and ``number`` are empty: 8 bytes a line that nobody asks for.
    """

    capture: Capture
    rows: Rows
    ring: U4
    number: U4

    def scanned(self) -> CaptureLines:
        """To gather from alone."""
        return replace(self, ring=self.ring[:0].copy(), number=self.number[:0].copy())

    @classmethod
    def of(cls, capture: Capture, rank: int) -> CaptureLines:
        """All lines of ``rank``."""
        index = capture.line_index()
        rows = np.flatnonzero(index.rank == rank)
        return cls(capture, rows, index.ring[rows], index.number[rows])

    def gather(self, rows: Rows) -> U4:
        """The lines at ``rows``."""
        return self.capture.gather(self.rows[rows])


@dataclass(frozen=True, slots=True)
class Placed:
    """When the launches of a scan were, in ns of the GPU's globaltimer; arrays [L]."""

    begin_ns: I8
    end_ns: I8
    """-1 where the closing is gone."""
    ns_per_cycle: F8
    error_ns: F8


@dataclass(frozen=True, slots=True)
class Rank:
    """Everything about one rank that reports and traces start from."""

    rank: int
    facts: RingFacts
    table: EventTable
    lut: Lookup
    source: CaptureLines
    scan: Scan
    clock: ClockModel | None
    placed: Placed | None
    problems: tuple[str, ...]

    @property
    def warps(self) -> int:
        """Warps a block has."""
        return max(1, self.facts.warps)

    @property
    def roles(self) -> tuple[str, ...]:
        """Name of each warp's role; ``warp N`` where the ring names none."""
        named = self.facts.roles
        return tuple(named[w] if w < len(named) else f"warp {w}" for w in range(self.warps))

    def kernel_name(self, kernel: int) -> str:
        """Name of a kernel id; ``kernel N`` where the ring names none."""
        return kernel_names(self.facts.kernels).get(kernel, f"kernel {kernel}")

    def span_clock(self, launches: Rows) -> I8:
        """Cycles from header to closing of launches, low 31 bits; -1 without a closing."""
        all_launches = self.scan.launches
        end = all_launches.end_clock[launches]
        return np.where(end >= 0, end - all_launches.clock[launches], -1)


def kernel_names(kernels: Any) -> dict[int, str]:
    """Names by kernel id from what a ring's meta holds: a mapping, or a list of names."""
    if isinstance(kernels, dict):
        pairs = [(k, v) for k, v in kernels.items() if str(k).isdecimal()]
    elif isinstance(kernels, list):
        pairs = list(enumerate(kernels))
    else:
        pairs = []
    return {int(k): str(v["name"] if isinstance(v, dict) and "name" in v else v) for k, v in pairs}


def load_rank(
    capture: Capture, rank: int, table: EventTable, clock: ClockModel | None = None
) -> Rank:
    """Scan the lines of one rank and fit its clocks; a ClockError becomes a problem.

    ``clock``: what was fitted already, over more than these lines.
    """
    facts = capture.rings.get(rank, RingFacts(rank))
    source = CaptureLines.of(capture, rank)
    found = scan(source, capacity=facts.lines, rings=facts.rings or None, joined=is_joined(capture))
    problems: list[str] = []
    if found.strange:
        problems.append(
            f"rank {rank_text(rank)}: {found.strange} lines of rings that it does not have"
        )
    placed: Placed | None = None
    if len(found.launches):
        try:
            clock = clock or _fit(capture, rank, found.launches, problems)
            placed = place(found.launches, clock)
        except ClockError as error:
            problems.append(f"{error}: no record of this rank can be placed in time")
    elif clock is None:
        host_clock(capture, rank, problems)
    lut, lines = lookup(table), source.scanned()
    return Rank(rank, facts, table, lut, lines, found, clock, placed, tuple(problems))


def probed_rings(capture: Capture, ranks: Collection[int] | None) -> set[int]:
    """A few warp rings of each rank, far apart among those that hold lines.

    Where few SMs were recorded most rings hold none. ``ranks`` None: of all.
    """
    index = capture.line_index()
    found = set[int]()
    for rank in np.flatnonzero(np.bincount(index.rank)).tolist() if ranks is None else ranks:
        facts = capture.rings.get(rank, RingFacts(rank))
        # Damaged lines may name any ring.
        holds = np.zeros(facts.rings or MAX_RINGS, bool)
        rings = index.ring[index.rank == rank]
        holds[rings[rings < len(holds)]] = True
        there = np.flatnonzero(holds).tolist()
        found.update(there[i * len(there) // _PROBED_RINGS] for i in range(_PROBED_RINGS) if there)
    return found


def _fit(capture: Capture, rank: int, launches: Launches, problems: list[str]) -> ClockModel:
    longest = int((launches.end_clock - launches.clock).max(initial=0))
    host = host_clock(capture, rank, problems)
    return clock_of(capture, rank, samples_of(launches), longest, host)


def clock_of(
    capture: Capture, rank: int, samples: ClockSamples, longest: int, host: HostClock | None
) -> ClockModel:
    """The clocks of one rank; ``longest`` is its longest launch, in cycles. Raises ClockError."""
    quantum = _QUANTUM_NS.get(capture.rings.get(rank, RingFacts(rank)).device, 32)
    return fit_rank(rank, samples, default_quantum_ns=quantum, reach_cycles=longest, host=host)


def host_clock(capture: Capture, rank: int, problems: list[str]) -> HostClock | None:
    """What ties a rank to its host, or None, which is a problem where the host said anything."""
    try:
        return _host_clock(capture, rank)
    except ClockError as error:
        if np.any(~np.isin(host_records(capture, rank)["event"], UNPLACED)):
            problems.append(f"rank {rank_text(rank)}: host events cannot be placed: {error}")
    return None


def is_joined(capture: Capture) -> bool:
    """Whether it begins in the middle of a recording: a burst does."""
    return any(row.fields.get("joined") is True for row in capture.facts("capture"))


def samples_of(launches: Launches) -> ClockSamples:
    """The clock pairs of all headers."""
    return ClockSamples(
        launches.sm, launches.launch, launches.clock, launches.globaltimer, launches.exact
    )


def place(launches: Launches, clock: ClockModel) -> Placed:
    """Put launches on globaltimer. Raises ClockError for an SM without a clock."""
    begin, rate, error = clock.place(launches.sm, launches.clock)
    end = np.full(len(launches), -1, np.int64)
    done = np.flatnonzero(launches.complete)
    end_clock = launches.end_clock[done]
    end[done] = clock.place(launches.sm[done], end_clock)[0]
    # Over a long launch its own ends say more: the frequency may have changed inside.
    cycles, ns = end_clock - launches.clock[done], (end - begin)[done]
    long = (ns > _LONG_NS) & (cycles > 0)
    rate[done[long]] = ns[long] / cycles[long]
    return Placed(begin, end, rate, error)


def _host_clock(capture: Capture, rank: int) -> HostClock:
    records = host_records(capture, rank)
    records = records[records["event"] == CLOCK_SAMPLE]
    return fit_host(
        records["begin_ns"].copy(), records["end_ns"].copy(), records["values"][:, 0].copy()
    )


def host_records(capture: Capture, rank: int) -> NDArray[Any]:
    """HOST_RECORDs of one rank, in file order."""
    host = capture.host()
    mine: NDArray[Any] = host.records[host.rank == rank]
    return mine
