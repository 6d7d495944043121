"""Which process of its rank a ring is of: see :mod:`megatrace.schema.processes`.

A server's rank is several processes side by side (scheduler, main, detokenizer) and, in the
scheduler, a ring of host records beside the kernels' ring; all of them are one process of the
rank here. What comes a second time, a kernel's ring or a host ring of the same name, is of
the next one, and so is the kernels' ring of another process once these have ended.

Numbers are of runs of the session: ranks that run together have the same one, whatever ran
before, so that what compares ranks can go by it. A rank that comes to others joins their run.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from megatrace.schema.processes import MAX_PROCESSES, MAX_RANK, number_of, process_of


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

    def takes(self, ring: Origin, *, lives: bool) -> bool:
        """Whether ``ring`` belongs here; ``lives``: one of its rings may still be written."""
        if ring.traced:
            # A program that made nothing but this is no part of a server that has ended.
            beside = lives or ring.pid in {pid for _, pid in self.hosts}
            return self.traced_by is None and beside
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
        self._over = 0
        """The last run that nothing joins any more."""

    def take(
        self, ring: Origin, living: Iterable[tuple[int, Origin]] = (), *, anew: bool = False
    ) -> int | None:
        """The number of ``ring``; None where a capture has no more numbers for it.

        ``living``: every ring that may still be written, with its number. ``anew``: all that ran
        before is over, so neither ``ring`` nor any that follows is of one of these runs.
        """
        if ring.rank > MAX_RANK:
            return None
        if anew:
            self._over = self._newest()
        living = list(living)
        live = {number for number, _ in living}
        mine = self._processes.setdefault(ring.rank, {})
        fits = sorted(
            run
            for run, one in mine.items()
            if run > self._over and one.takes(ring, lives=number_of(ring.rank, run) in live)
        )
        same = [run for run in fits if self._has(mine[run], ring.pid)]
        if same or fits:
            run = (same or fits)[0]
        else:
            run = max(self.last(ring.rank) + 1, self._over + 1, _newest_of(living))
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


def _newest_of(living: Iterable[tuple[int, Origin]]) -> int:
    """The newest run that lives; 1 where none does.

    A second ring of one process, or host ring of one name, is no new run while the first
    lives: those of other ranks pair in their order.
    """
    runs = [(process_of(number), ring) for number, ring in living]
    firsts = (min(run for run, other in runs if _alike(ring, other)) for _, ring in runs)
    return max(firsts, default=1)


def _alike(one: Origin, other: Origin) -> bool:
    named = one.process == other.process and not one.traced and not other.traced
    return one.rank == other.rank and (one.pid == other.pid or named)
