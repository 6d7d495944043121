"""Moves everything that the rings of one session hold into a capture file."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from megatrace.collect.burst import Burst
from megatrace.collect.clocks import HostClocks
from megatrace.collect.observe import Budget
from megatrace.collect.sink import Sink
from megatrace.collect.source import Source
from megatrace.collect.steering import Steering
from megatrace.errors import CaptureError, SessionError
from megatrace.ring.file import STATE_CLOSED

MAX_LINES = 1 << 16
"""Lines a ring hands over before the next one's turn."""
_ATTACH_PATIENCE_S = 5.0
"""How long a file may take to become a ring: its maker allocates before it opens it."""


@dataclass(frozen=True, slots=True)
class Totals:
    """What has come through so far, over all rings."""

    ranks: int = 0
    ranks_live: int = 0
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
    """

    def __init__(self, session: Path, sink: Sink, steering: Steering | None = None) -> None:
        """Drain ``session`` into ``sink``; without ``steering`` no control page is written."""
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

    def scan(self, *, patience_s: float = _ATTACH_PATIENCE_S) -> list[Source]:
        """Attach to the ring files that are new; those attached now."""
        found = []
        for path in sorted(self._session.glob("*.ring")):
            if path in self._known:
                continue
            try:
                source = Source.open(path, control=self._steering is not None, budget=self._budget)
            except (SessionError, CaptureError) as error:
                now = time.monotonic()
                if now - self._first_seen_s.setdefault(path, now) >= patience_s:
                    self._known.add(path)
                    self.refused[path.name] = str(error)
                continue
            self._known.add(path)
            if self._clashes(source):
                continue
            found.append(source)
            self._welcome(source)
        return found

    def drain(self) -> int:
        """Take one turn at every ring; how many lines and host records came."""
        return sum(self._drain(source) for source in self.sources if not source.ended)

    @property
    def lines_read(self) -> int:
        """Lines taken so far, of all rings."""
        return sum(source.stats.read for source in self.sources)

    def counters(self) -> None:
        """Write the counters that have moved."""
        for source in self.sources:
            if not source.ended:
                self._counters(source)

    def retire(self) -> None:
        """End the sources whose owner has gone, after taking all that they hold."""
        for source in self.sources:
            if not source.ended and not _alive(source):
                self._end(source)

    def finish(self, until_s: float = float("inf")) -> None:
        """Take what is left of every ring and end them all.

        A ring that is still being written is followed no longer than ``until_s``
        (of time.monotonic()).
        """
        self.scan(patience_s=0.0)
        for source in self.sources:
            if not source.ended:
                self._end(source, until_s)

    def close(self) -> None:
        """Unmap every ring."""
        for source in self.sources:
            source.close()

    @property
    def totals(self) -> Totals:
        """The sums so far."""
        traced = [source for source in self.sources if source.traced]
        return Totals(
            ranks=len({s.rank for s in traced}),
            ranks_live=len({s.rank for s in traced if not s.ended}),
            processes=len({int(s.ring.header["pid"]) for s in self.sources}),
            records=sum(s.records for s in self.sources),
            lines=sum(s.stats.read for s in self.sources),
            lines_lost=sum(s.stats.lost for s in self.sources),
            host_spans=sum(s.host_spans for s in self.sources),
            host_records_lost=sum(s.host_lost for s in self.sources),
            lines_dropped=self._sink.lines_dropped,
        )

    def _clashes(self, source: Source) -> bool:
        """A capture tells rings by rank: a second traced file of one would mix with the first."""
        if not source.traced or source.rank not in {s.rank for s in self.sources if s.traced}:
            return False
        self.refused[source.ring.path.name] = f"rank {source.rank} has another ring already"
        source.close()
        return True

    def _welcome(self, source: Source) -> None:
        self.sources.append(source)
        if self._steering is not None:
            self._steering.welcome(source, time.monotonic())
        self._sink.meta("ring", source.rank, **source.describe())

    def _drain(self, source: Source, *, final: bool = False) -> int:
        begin = time.perf_counter()
        drained = source.drain_lines(MAX_LINES, final=final)
        if len(drained):
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


def any_alive(sources: Iterable[Source]) -> bool:
    """Whether some source may still be written to."""
    return any(not source.ended and _alive(source) for source in sources)


def _alive(source: Source) -> bool:
    return source.ring.state != STATE_CLOSED and source.ring.owner_alive()
