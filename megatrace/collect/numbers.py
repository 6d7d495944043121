"""Which process of its rank a ring is of: see :mod:`megatrace.schema.processes`.

A server's rank is several processes side by side (scheduler, main, detokenizer) and, in the
scheduler, a ring of host records beside the kernels' ring; all of them are one process of the
rank here. What comes a second time, a kernel's ring or a host ring of the same name, is of
the next one.

Numbers are of runs of the session: ranks that run together have the same one, whatever ran
before, so that what compares ranks can go by it. A rank that comes to others joins their run.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from megatrace.schema.processes import MAX_PROCESSES, MAX_RANK, number_of, process_of, rank_of


@dataclass(frozen=True, slots=True)
class Origin:
    """What a ring says of its maker: rank, pid, name; and whether kernels write it."""

    rank: int
    pid: int
    process: str
    traced: bool


@dataclass(slots=True)
class _Process:
    """The rings that are one process of a rank."""

    traced_by: int | None = None
    """pid of the process with the kernels' ring."""
    hosts: set[tuple[str, int]] = field(default_factory=set)

    def takes(self, ring: Origin) -> bool:
        """Whether ``ring`` belongs here."""
        if ring.traced:
            return self.traced_by is None
        if ring.process in {name for name, _ in self.hosts}:
            return False
        # A program that made nothing but a kernel's ring is no part of a server that follows.
        return self.traced_by in (None, ring.pid, *(pid for _, pid in self.hosts))

    def add(self, ring: Origin) -> None:
        """Count ``ring`` in."""
        if ring.traced:
            self.traced_by = ring.pid
        else:
            self.hosts.add((ring.process, ring.pid))


class Numbers:
    """Numbers the rings of one session, in the order in which they were made."""

    def __init__(self) -> None:
        """Nothing is numbered yet."""
        self._processes: dict[int, dict[int, _Process]] = {}

    def take(
        self, ring: Origin, living: Iterable[tuple[int, int]] = (), *, anew: bool = False
    ) -> int | None:
        """The number of ``ring``; None where a capture has no more numbers for it.

        ``living``: number and pid of every ring that may still be written. ``anew``: all that
        ran before is over, so a process that ``ring`` begins is of a run of its own.
        """
        if ring.rank > MAX_RANK:
            return None
        mine = self._processes.setdefault(ring.rank, {})
        fits = sorted(run for run, one in mine.items() if one.takes(ring))
        same = [run for run in fits if self._has(mine[run], ring.pid)]
        if same or fits:
            run = (same or fits)[0]
        else:
            now = self._newest() + 1 if anew else _newest_of(living)
            run = max(self.last(ring.rank) + 1, now)
        if run > MAX_PROCESSES:
            return None
        self.put(ring, run)
        return number_of(ring.rank, run)

    def put(self, ring: Origin, process: int) -> None:
        """Take note of a ring that has a number already."""
        self._processes.setdefault(ring.rank, {}).setdefault(process, _Process()).add(ring)

    def last(self, rank: int) -> int:
        """The newest run that ``rank`` was in; 0 where it was in none."""
        return max(self._processes.get(rank, {}), default=0)

    def _newest(self) -> int:
        return max(map(self.last, self._processes), default=0)

    @staticmethod
    def _has(one: _Process, pid: int) -> bool:
        return one.traced_by == pid or pid in {host for _, host in one.hosts}


def _newest_of(living: Iterable[tuple[int, int]]) -> int:
    """The newest run that lives; 1 where none does."""
    first: dict[tuple[int, int], int] = {}
    for number, pid in living:
        # A second ring of one process is no new run: those of other ranks pair in their order.
        run = first.setdefault((rank_of(number), pid), process_of(number))
        first[rank_of(number), pid] = min(run, process_of(number))
    return max(first.values(), default=1)
