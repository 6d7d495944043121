"""Moves everything that the rings of one session hold into a capture file."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from megatrace.collect.burst import Burst
from megatrace.collect.clocks import HostClocks
from megatrace.collect.numbers import Numbers
from megatrace.collect.observe import Budget
from megatrace.collect.sink import Sink
from megatrace.collect.source import Source
from megatrace.collect.steering import Steering
from megatrace.errors import CaptureError, SessionError
from megatrace.ring.file import STATE_CLOSED
from megatrace.ring.handover import Receiver
from megatrace.ring.memfd import HELD_SUFFIX, say_held
from megatrace.schema.processes import MAX_PROCESSES, MAX_RANK, rank_of

MAX_LINES = 1 << 16
"""Lines a ring hands over before the next one's turn."""
_SAME_RUN_S = 2.0
"""Ranks that start together may miss each other by this; a program that follows takes longer."""
_ATTACH_PATIENCE_S = 5.0
"""How long a file may take to become a ring: its maker allocates before it opens it."""


@dataclass(frozen=True, slots=True)
class Totals:
    """What has come through so far, over all rings."""

    ranks: int = 0
    ranks_live: int = 0
    traced_processes: int = 0
    """Of these ranks: each has a kernel's ring of its own."""
    processes: int = 0
    records: int = 0
    lines: int = 0
    lines_lost: int = 0
    host_spans: int = 0
    host_records_lost: int = 0
    lines_dropped: int = 0
    """Drained, but not written: the disk was full."""


class Pump:
    """Finds the ring files of a session and drains them.

    Attributes:
        sources: every ring that was attached, ended ones included.
        refused: ring files that could not be, with the reason.
        clocks: how well each rank's GPU clock is tied to the host.
        burst: what else takes the lines while it runs; None.
        lines_read: lines taken so far, of all rings.
    """

    def __init__(
        self,
        session: Path,
        sink: Sink,
        steering: Steering | None = None,
        receiver: Receiver | None = None,
    ) -> None:
        """Drain ``session`` into ``sink``; without ``steering`` no control page is written.

        ``receiver`` is where agents hand their memfds over; it is closed with the pump.
        """
        self._session = session
        self._sink = sink
        self._steering = steering
        self.sources: list[Source] = []
        self.refused: dict[str, str] = {}
        self.clocks = HostClocks()
        self.burst: Burst | None = None
        self._budget = Budget()
        self._first_seen_s: dict[Path, float] = {}
        self._known: set[Path] = set()
        self._numbers = Numbers()
        self._last_ended_ns = 0
        self._receiver = receiver
        self.lines_read = 0

    def scan(self, *, patience_s: float = _ATTACH_PATIENCE_S) -> list[Source]:
        """Attach to the ring files that are new; those attached now."""
        if self._receiver is not None:
            self._receiver.take()
            for path in self._known:  # opened by way of /proc before it was handed over
                self._receiver.drop(path.name)
        paths = set(self._session.glob("*.ring"))
        for gone in self._first_seen_s.keys() - paths:
            del self._first_seen_s[gone]
        opened = [source for path in paths if (source := self._open(path, patience_s))]
        found = []
        for source in sorted(opened, key=self._turn_of):
            number = self._number(source)
            if number is None:
                self._refuse(source)
                continue
            source.rank = number
            found.append(source)
            self._welcome(source)
        return found

    def drain(self) -> int:
        """Take one turn at every ring; how many lines and host records came."""
        return sum(self._drain(source) for source in self.sources if not source.ended)

    def counters(self) -> None:
        """Write the counters that have moved."""
        for source in self.sources:
            if not source.ended:
                self._counters(source)

    def retire(self) -> None:
        """End the sources whose owner has gone, after taking all that they hold.

        Once the capture has it, or never will, their memory is given back: the next process
        needs it.
        """
        for source in self.sources:
            if not source.ended and not _alive(source):
                self._end(source)
        ended = [source for source in self.sources if source.ended and not source.released]
        if ended:
            self._sink.flush()
        if self.burst is None:
            for source in ended:
                source.release()
                source.ring.path.unlink(missing_ok=True)
                source.ring.path.with_suffix(HELD_SUFFIX).unlink(missing_ok=True)
                self._known.discard(source.ring.path)

    def finish(self, until_s: float = float("inf")) -> None:
        """Take what is left of every ring and end them all.

        A ring that is still being written is followed no longer than ``until_s``
        (of time.monotonic()).
        """
        self.scan(patience_s=0.0)
        if self._receiver is not None:
            self._receiver.close()
        for source in self.sources:
            if not source.ended:
                self._end(source, until_s)

    def close(self) -> None:
        """Unmap every ring."""
        if self._receiver is not None:
            self._receiver.close()
        for source in self.sources:
            source.close()

    @property
    def totals(self) -> Totals:
        """The sums so far."""
        traced = [source for source in self.sources if source.traced]
        return Totals(
            ranks=len({rank_of(s.rank) for s in traced}),
            ranks_live=len({rank_of(s.rank) for s in traced if not s.ended}),
            traced_processes=len(traced),
            processes=len({int(s.ring.header["pid"]) for s in self.sources}),
            records=sum(s.records for s in self.sources),
            lines=self.lines_read,
            lines_lost=sum(s.stats.lost for s in self.sources),
            host_spans=sum(s.host_spans for s in self.sources),
            host_records_lost=sum(s.host_lost for s in self.sources),
            lines_dropped=self._sink.lines_dropped,
        )

    def _open(self, path: Path, patience_s: float) -> Source | None:
        """Attach to a ring file that is new; None where it is known or not yet a ring."""
        if path in self._known:
            return None
        try:
            source = self._attach(path)
        except (SessionError, CaptureError) as error:
            now = time.monotonic()
            if now - self._first_seen_s.setdefault(path, now) >= patience_s:
                self._known.add(path)
                self.refused[path.name] = str(error)
            return None
        self._known.add(path)
        self._first_seen_s.pop(path, None)  # the next ring of this name has its own time
        return source

    def _attach(self, path: Path) -> Source:
        """Attach, and hold the ring's memfd where it is in one."""
        control = self._steering is not None
        given = self._receiver.held.get(path.name) if self._receiver is not None else None
        source = Source.open(path, control=control, budget=self._budget, memfd=given)
        if self._receiver is not None:
            self._receiver.drop(path.name, keep=source.ring.memfd)
        if source.ring.memfd >= 0 and control:
            say_held(path, source.ring.memfd)
        return source

    def _turn_of(self, source: Source) -> tuple[int, int, str]:
        """Of rings found at once: ranks that have run before say which run it is."""
        created_ns = int(source.ring.header["created_mono_ns"])
        return -self._numbers.last(source.ring.rank), created_ns, source.name

    def _number(self, source: Source) -> int | None:
        """Its number among those that live."""
        living = [(s.rank, s.origin) for s in self.sources if not s.ended]
        idle_ns = int(source.ring.header["created_mono_ns"]) - self._last_ended_ns
        anew = bool(self.sources) and not living and idle_ns > _SAME_RUN_S * 1e9
        return self._numbers.take(source.origin, living, anew=anew)

    def _refuse(self, source: Source) -> None:
        rank = source.ring.rank
        self.refused[source.ring.path.name] = (
            f"a capture holds ranks 0 to {MAX_RANK}, this is rank {rank}"
            if rank > MAX_RANK
            else f"a capture holds {MAX_PROCESSES} runs, this process of rank {rank} is of the next"
        )
        source.close()

    def _welcome(self, source: Source) -> None:
        self.sources.append(source)
        if self._steering is not None:
            self._steering.welcome(source, time.monotonic())
        self._sink.meta("ring", source.rank, **source.describe())

    def _drain(self, source: Source, *, final: bool = False) -> int:
        begin = time.perf_counter()
        drained = source.drain_lines(MAX_LINES, final=final)
        if len(drained):
            self.lines_read += len(drained)
            self._sink.lines(source.rank, drained.ring, drained.lines)
            if self.burst is not None:
                self.burst.lines(source, drained.ring, drained.lines)
            if self._steering is not None:
                self._steering.meter.add(len(drained), time.perf_counter() - begin)
                self._steering.extend(source, time.monotonic())
        host = source.drain_host()
        if host.records.size:
            self._sink.host(source.rank, host.records)
            if self.burst is not None:
                self.burst.host(source, host.records)
            self.clocks.feed(source.rank, host.records)
        for fact in host.facts:
            self._sink.fact(source.rank, fact.name, source.process, fact.value)
        return len(drained) + int(host.records.size)

    def _counters(self, source: Source) -> None:
        slots, records = source.changed_counters()
        if slots.size:
            self._sink.counters(source.rank, slots, records)

    def _end(self, source: Source, until_s: float = float("inf")) -> None:
        while time.monotonic() < until_s and self._drain(source, final=True):
            pass
        self._counters(source)
        self._sink.meta("loss", source.rank, **source.loss())
        source.ended = True
        self._last_ended_ns = time.monotonic_ns()


def any_alive(sources: Iterable[Source]) -> bool:
    """Whether some source may still be written to."""
    return any(not source.ended and _alive(source) for source in sources)


def _alive(source: Source) -> bool:
    return source.ring.state != STATE_CLOSED and source.ring.owner_alive()
