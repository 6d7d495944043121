"""The drain against a model of the device: halves that land in any order, laps, the wrap."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from megatrace.ring.drain import LineReader
from megatrace.ring.file import RingFile, RingSpec
from tests.ring.lines import LineWriter, assert_intact, half_payload, payload

RINGS = 2
NEVER_NS = 1 << 62


@dataclass
class Seen:
    """What the reader handed on of one ring, as numbers that do not wrap."""

    numbers: list[int] = field(default_factory=list)


class Device(RuleBasedStateMachine):
    """Rings of a few lines, a writer whose stores are posted, and one reader."""

    @initialize(
        lines=st.sampled_from([2, 4, 8]),
        first=st.sampled_from([1, 2**31 - 6, 2**32 - 6]),
        patient=st.booleans(),
    )
    def begin(self, lines: int, first: int, patient: bool) -> None:
        self.folder = tempfile.TemporaryDirectory()
        path = Path(self.folder.name) / "rank0.ring"
        self.ring = RingFile.create(path, RingSpec(0, 1, RINGS, lines, 0, 0, 0, 1))
        self.first = first
        self.writer = LineWriter(self.ring, first)
        if first > 1:
            self.writer.fill_lap_before()
        self.reader = LineReader(self.ring, first=first, patience_ns=NEVER_NS if patient else 0)
        self.patient = patient
        self.posted: list[tuple[int, int, int, bool]] = []
        self.seen = [Seen() for _ in range(RINGS)]

    def settle(self, ring: int, keep: int) -> None:
        """Land the oldest stores of ``ring`` until ``keep`` are left: no store is a lap late."""
        mine = [store for store in self.posted if store[0] == ring]
        for store in mine[: max(0, len(mine) - keep)]:
            self.land(store)

    def land(self, store: tuple[int, int, int, bool]) -> None:
        ring, number, half, whole = store
        self.posted.remove(store)
        line = payload(ring, number) if whole else half_payload(ring, number, 9)
        self.writer.store(ring, number, line, half)

    @rule(ring=st.integers(0, RINGS - 1), count=st.integers(1, 12), whole=st.booleans())
    def write(self, ring: int, count: int, whole: bool) -> None:
        for _ in range(count):
            number = self.writer.next[ring]
            self.writer.next[ring] += 1
            self.posted.append((ring, number, 0, whole))
            if whole:
                self.posted.append((ring, number, 1, True))
            self.settle(ring, keep=max(1, self.writer.capacity // 2))

    @rule(choice=st.integers(0, 1 << 30))
    def land_any(self, choice: int) -> None:
        if self.posted:
            self.land(self.posted[choice % len(self.posted)])

    @rule()
    def land_all(self) -> None:
        for store in list(self.posted):
            self.land(store)

    @rule(limit=st.sampled_from([1, 3, 64]))
    def drain(self, limit: int) -> None:
        self.take(limit, final=False)

    def take(self, limit: int, *, final: bool) -> int:
        late = self.reader.stats.late
        drained = self.reader.drain(limit, final=final)
        assert len(drained) <= limit
        late = self.reader.stats.late - late
        for row, (ring, line) in enumerate(zip(drained.ring.tolist(), drained.lines, strict=True)):
            assert_intact(ring, line, cut=final or not self.patient)
            newest = self.writer.next[ring] - 1
            number = newest - ((newest - int(line[0])) & 0xFFFFFFFF)
            seen = self.seen[ring].numbers
            assert number >= self.first
            assert number not in seen
            assert row < late or not seen or number > max(seen)
            seen.append(number)
        return len(drained)

    @invariant()
    def no_line_is_counted_twice(self) -> None:
        for ring in range(RINGS):
            read, lost = self.reader.read_per_ring[ring], self.reader.lost_per_ring[ring]
            assert read == len(self.seen[ring].numbers)
            assert read + lost <= self.writer.next[ring] - self.first

    def teardown(self) -> None:
        if not hasattr(self, "ring"):
            return
        self.land_all()
        while self.take(64, final=True):
            pass
        for ring in range(RINGS):
            written = self.writer.next[ring] - self.first
            read, lost = self.reader.read_per_ring[ring], self.reader.lost_per_ring[ring]
            assert read + lost == written
        stats = self.reader.stats
        assert stats.torn <= stats.lost
        assert stats.late <= stats.read
        self.ring.close()
        self.folder.cleanup()


Device.TestCase.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)

TestDevice = Device.TestCase
