"""Which process of its rank a ring is of: see :mod:`megatrace.schema.processes`.

A server's rank is several processes side by side (scheduler, main, detokenizer) and, in the
scheduler, a ring of host records beside the kernels' ring; all of them are one process of the
rank here. What comes a second time, a kernel's ring or a host ring of the same name, is of
the next one.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from megatrace.schema.processes import MAX_PROCESSES, MAX_RANK, number_of


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
        self._processes: dict[int, list[_Process]] = {}

    def take(self, ring: Origin) -> int | None:
        """The number of ``ring``; None where a capture has no more numbers for it."""
        if ring.rank > MAX_RANK:
            return None
        mine = self._processes.setdefault(ring.rank, [])
        same = [at for at, one in enumerate(mine) if self._has(one, ring.pid) and one.takes(ring)]
        fits = same or [at for at, one in enumerate(mine) if one.takes(ring)]
        at = fits[0] if fits else len(mine)
        if at >= MAX_PROCESSES:
            return None
        self.put(ring, at + 1)
        return number_of(ring.rank, at + 1)

    def put(self, ring: Origin, process: int) -> None:
        """Take note of a ring that has a number already."""
        mine = self._processes.setdefault(ring.rank, [])
        while len(mine) < process:
            mine.append(_Process())
        mine[process - 1].add(ring)

    @staticmethod
    def _has(one: _Process, pid: int) -> bool:
        return one.traced_by == pid or pid in {host for _, host in one.hosts}
