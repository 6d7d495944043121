"""Writes real captures out of lists of launches and records, word by word.

    b = Build(TABLE, blocks=2, warps=3, roles=("load", "math", "math"))
    b.add(ring, Launch(1, begin_ns=MS, end_ns=MS + 50_000, records=[
        *span("tile", 100, 900), stall("full", 200, 50), publish("done", 5, 950),
    ]))
    b.lose(ring, 2)                     # the second line of that ring
    write(tmp_path / "a.mtr", b)

Times of a launch are globaltimer ns, times of its records cycles since its start. Records
are committed in the order of the times at which a warp would write them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megatrace.capture.writer import CaptureWriter
from megatrace.schema import HOST, Arg, Cause, Event, EventTable, Kind
from megatrace.schema.layout import (
    ARG_BITS,
    COUNTERS,
    HALF_WORDS,
    HEADER_EDGE,
    HOST_RECORD,
    KERNEL_SHIFT,
    LINE_WORDS,
    RECORDS_PER_HALF,
    RECORDS_PER_LINE,
    TIME_BITS,
    arg_word,
    record_word,
)

MS = 1_000_000
GHZ = 1.98
LONG_STALL = 1 << (TIME_BITS - 2)
"""Cycles from which the tracer says the high part of the time after a stall."""

TABLE = EventTable(
    "demo",
    (
        Event(16, "tile", Kind.SPAN, "One tile.", category="math", args=(Arg("index"),)),
        Event(18, "phase", Kind.SPAN, "All tiles of a layer.", category="phase"),
        Event(20, "full", Kind.STALL, "No data yet.", category="sync", cause=Cause.DATA),
        Event(21, "room", Kind.STALL, "No space yet.", category="sync", cause=Cause.SPACE),
        Event(22, "input", Kind.WAIT, "Sums of others.", cause=Cause.INPUT, edge="sums"),
        Event(23, "done", Kind.PUBLISH, "Sums are out.", edge="sums"),
        Event(24, "issue", Kind.PREFETCH, "Weights asked for.", edge="weights"),
        Event(25, "arrived", Kind.WAIT, "Weights needed.", cause=Cause.DATA, edge="weights"),
        Event(26, "mark", Kind.INSTANT, "Something.", args=(Arg("a"), Arg("b"))),
        Event(27, "depth", Kind.COUNTER, "Tiles in flight."),
        Event(28, "peer", Kind.STALL, "Another GPU.", cause=Cause.PEER),
    ),
)
"""One event of each kind and cause."""

IDS = {event.name: event for event in TABLE}


@dataclass(frozen=True, slots=True)
class Rec:
    """One record: event code, begin (cycles since launch start), arguments.

    ``committed``: when the warp writes it down, by default at its begin.
    """

    code: int
    t: int
    args: tuple[int, ...] = ()
    committed: int = -1

    @property
    def order(self) -> int:
        return self.t if self.committed < 0 else self.committed


def span(name: str, begin: int, end: int, *args: int, table: EventTable = TABLE) -> list[Rec]:
    event = _event(table, name)
    args = args or (0,) * len(event.all_args)
    return [Rec(event.id, begin, args), Rec(event.id + 1, end)]


def stall(
    name: str, begin: int, dur: int, *args: int, late: int = 0, table: EventTable = TABLE
) -> Rec:
    """A stall or wait (its slot is the first of ``args``), committed ``late`` cycles late."""
    return Rec(_event(table, name).id, begin, (dur, *args), begin + dur + late)


def point(name: str, t: int, *args: int, table: EventTable = TABLE) -> Rec:
    """A publish or prefetch (its slot first), an instant or a counter."""
    return Rec(_event(table, name).id, t, args)


def hang(name: str, now: int, waited: int, slot: int = 0, table: EventTable = TABLE) -> Rec:
    return Rec(4, now, (_event(table, name).id, slot, waited))


def _event(table: EventTable, name: str) -> Event:
    return next(event for event in table if event.name == name)


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch of one warp; ``end_ns`` None leaves it open."""

    launch: int
    begin_ns: int = MS
    end_ns: int | None = None
    records: Sequence[Rec] = ()
    step: int = 1
    kernel: int = 1
    layer: int = 0
    sm: int | None = None
    edge: bool = False


@dataclass
class Warp:
    """What a warp keeps between launches: its line number and its word count."""

    number: int = 0
    words: int = 0

    def lines(self, words: Sequence[int], *, straddle: bool = True) -> NDArray[np.uint32]:
        """A launch's words as lines; the last may be a first half alone.

        Without ``straddle`` a record goes to the next line where it does not fit whole.
        """
        self.words += len(words)
        if not straddle:
            words = _unstraddled(words)
        count = -(-len(words) // RECORDS_PER_LINE)
        flat = np.zeros(count * RECORDS_PER_LINE, np.uint32)
        flat[: len(words)] = words
        dense = flat.reshape(count, RECORDS_PER_LINE)
        lines = np.zeros((count, LINE_WORDS), np.uint32)
        lines[:, 0] = lines[:, HALF_WORDS] = self.number + 1 + np.arange(count)
        lines[:, 1:HALF_WORDS] = dense[:, :RECORDS_PER_HALF]
        lines[:, HALF_WORDS + 1 :] = dense[:, RECORDS_PER_HALF:]
        if len(words) - (count - 1) * RECORDS_PER_LINE <= RECORDS_PER_HALF:
            lines[-1, HALF_WORDS:] = 0
        self.number += count
        return lines


def _unstraddled(words: Sequence[int]) -> list[int]:
    """The words with zeros where a line ends early."""
    out: list[int] = []
    starts = [i for i, word in enumerate(words) if not word >> ARG_BITS]
    for begin, end in zip(starts, [*starts[1:], len(words)], strict=True):
        left = -len(out) % RECORDS_PER_LINE
        if end - begin > left > 0:
            out += [0] * left
        out += words[begin:end]
    return out


@dataclass
class Build:
    """One rank of a capture."""

    table: EventTable = TABLE
    blocks: int = 1
    warps: int = 1
    layers: int = 1
    capacity: int = 1024
    roles: Sequence[str] = ()
    kernels: dict[int, str] = field(default_factory=lambda: {1: "layer"})
    rank: int = 0
    device: int = 1
    ghz: float = GHZ
    quantum_ns: int = 32
    host_offset_ns: int = -500_000_000
    """CLOCK_MONOTONIC less globaltimer."""
    traced: bool = True
    """Whether kernels write the ring; else it holds host records alone."""
    straddle: bool = False
    """Records may lie across two lines; the tracer's never do."""
    slow: bool = False
    """An epoch follows every record, as in the host build."""

    def __post_init__(self) -> None:
        self._warps = [Warp() for _ in range(self.rings)]
        self._lines: list[tuple[int, NDArray[np.uint32]]] = []
        self._lost: set[tuple[int, int]] = set()
        self._host: list[Any] = []
        self._counters: list[tuple[int, Any]] = []

    @property
    def rings(self) -> int:
        return self.blocks * self.warps

    def clock(self, sm: int, ns: int) -> int:
        """Cycles of an SM's clock; each starts at another value."""
        return 10**9 * (sm + 1) + round(ns * self.ghz)

    def add(self, ring: int, launch: Launch) -> None:
        """Append one launch to a warp's ring."""
        warp = self._warps[ring]
        words = self.encode(ring, launch, warp.words)
        self._lines.append((ring, warp.lines(words, straddle=self.straddle)))

    def encode(self, ring: int, launch: Launch, words_before: int) -> list[int]:
        """The words of one launch."""
        sm = ring // self.warps if launch.sm is None else launch.sm
        t0 = self.clock(sm, launch.begin_ns)
        gt = launch.begin_ns // self.quantum_ns * self.quantum_ns
        words = [record_word(1, sm | (HEADER_EDGE if launch.edge else 0))]
        header = (
            launch.launch, launch.step, launch.kernel << KERNEL_SHIFT | launch.layer,
            gt, gt >> ARG_BITS, t0, t0 >> ARG_BITS, words_before,
        )  # fmt: skip
        words += map(arg_word, header)
        for rec in sorted(launch.records, key=lambda r: r.order):
            words += [record_word(rec.code, rec.t), *map(arg_word, rec.args)]
            event = next((e for e in self.table if e.id == rec.code), None)
            waits = event is not None and event.kind in (Kind.STALL, Kind.WAIT)
            long = waits and bool(rec.args) and rec.args[0] >= LONG_STALL
            if long or self.slow or rec.code == 4:
                words.append(record_word(3, rec.order >> TIME_BITS))
        if launch.end_ns is not None:
            end = self.clock(sm, launch.end_ns)
            words += [record_word(2, end - t0), arg_word(end)]
            words.append(arg_word(words_before + len(words) + 1))
        return words

    def lose(self, ring: int, *numbers: int) -> None:
        """Leave lines out of the capture, as an overrun would."""
        self._lost.update((ring, number) for number in numbers)

    def count(
        self, layer: int, ring: int, cycles: Sequence[int], count: Sequence[int], *,
        seq: int = 1,
    ) -> None:  # fmt: skip
        """Add one sample of a warp's counters, sums since the ring was made."""
        record = np.zeros((), COUNTERS)
        record["seq"] = seq
        record["cycles"][: len(cycles)] = cycles
        record["count"][: len(count)] = count
        self._counters.append((layer * self.rings + ring, record))

    def host(
        self, name: str, begin_ns: int, end_ns: int, step: int = 0, values: Sequence[int] = (),
        text: str = "",
    ) -> None:  # fmt: skip
        """Add a host record; times are CLOCK_MONOTONIC."""
        record = np.zeros((), HOST_RECORD)
        record["number"] = record["number_end"] = len(self._host) + 1
        record["event"] = next(e.id for e in HOST if e.name == name)
        record["begin_ns"], record["end_ns"], record["step"] = begin_ns, end_ns, step
        record["values"][: len(values)] = values
        record["text_bytes"] = len(text.encode())
        record["text"] = np.void(text.encode().ljust(56, b"\0"))
        self._host.append(record)

    def sample_clock(self, gt_ns: int, round_trip_ns: int = 2000, skew: float = 0.5) -> None:
        """A clock sample: GPU time ``gt_ns`` read at ``skew`` of the round trip."""
        begin = gt_ns + self.host_offset_ns - round(skew * round_trip_ns)
        gt = gt_ns // self.quantum_ns * self.quantum_ns
        self.host("clock_sample", begin, begin + round_trip_ns, values=(gt,))

    def arrays(self) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
        """Ring [n] and lines [n, 32], lost ones left out."""
        rings = [np.full(len(lines), ring, np.uint32) for ring, lines in self._lines]
        ring = np.concatenate([np.zeros(0, np.uint32), *rings])
        lines = np.concatenate(
            [np.zeros((0, LINE_WORDS), np.uint32), *(lines for _, lines in self._lines)]
        )
        keep = [(int(r), int(n)) not in self._lost for r, n in zip(ring, lines[:, 0], strict=True)]
        return ring[keep], lines[keep]

    def write_to(self, writer: CaptureWriter) -> None:
        """Write everything of this rank."""
        shape = (self.blocks, self.warps, self.capacity, self.layers, self.device)
        blocks, warps, lines, layers, device = shape if self.traced else (0,) * 5
        writer.write_meta(
            "ring", self.rank, name=f"rank{self.rank}", blocks=blocks, warps=warps,
            lines=lines, layers=layers, host_capacity=1024, device=device,
            table_hash=f"{self.table.hash:016x}", table=self.table.to_json(),
            roles=list(self.roles), kernels={str(k): v for k, v in self.kernels.items()},
        )  # fmt: skip
        ring, lines = self.arrays()
        writer.write_lines(self.rank, ring, lines, MS)
        if self._counters:
            slots = np.array([slot for slot, _ in self._counters], np.uint32)
            records = np.array([record for _, record in self._counters], COUNTERS)
            writer.write_counters(self.rank, slots, records, MS)
        if self._host:
            writer.write_host(self.rank, np.array(self._host, HOST_RECORD), MS)
        lost = Counter(str(gone) for gone, _ in self._lost)
        writer.write_meta(
            "loss", self.rank, name=f"rank{self.rank}", rings=dict(lost), read=len(lines),
            lost=len(self._lost), torn=0, late=0,
        )  # fmt: skip


def write(
    path: Path, *builds: Build, complete: bool = True, options: dict[str, Any] | None = None
) -> Path:
    """Write a capture of the ranks; ``complete`` False leaves a ``.part`` file.

    ``options`` are the recorder's, as its ``capture`` row says them.
    """
    writer = CaptureWriter(path)
    writer.write_meta("capture", command=["demo"], device="cuda", options=options or {})
    for build in builds:
        build.write_to(writer)
    if not complete:
        writer.abandon()
        return writer.part_path
    writer.finish()
    return path


def demo(
    *, ranks: int = 1, blocks: int = 2, steps: int = 3, layers: int = 2, tiles: int = 4,
    first_launch: int = 0,
) -> list[Build]:  # fmt: skip
    """Ranks of a small but whole capture: every kind of event, edges, counters, host steps.

    A block has warps of the roles load, math, math. Launches last 50 us, one a layer.
    """
    return [_demo_rank(rank, blocks, steps, layers, tiles, first_launch) for rank in range(ranks)]


def _demo_rank(
    rank: int, blocks: int, steps: int, layers: int, tiles: int, first_launch: int
) -> Build:
    build = Build(
        rank=rank, blocks=blocks, warps=3, layers=layers, roles=("load", "math", "math"),
    )  # fmt: skip
    start = 50 * MS + 61_000 * rank
    launch = first_launch
    for step in range(1, steps + 1):
        begin = start
        for layer in range(layers):
            for ring in range(build.rings):
                lag = 40 * ring
                build.add(ring, Launch(
                    launch, begin + lag, begin + 50_000 + lag, step=step, layer=layer,
                    records=_demo_records(ring % 3, ring // 3, blocks, tiles), edge=ring % 3 == 0,
                ))  # fmt: skip
                build.count(
                    layer, ring, [2000 * step, 10, 900 * step, 0], [tiles * step, 1, step, 0],
                    seq=step,
                )  # fmt: skip
            begin += 51_000
            launch += 1
        host = start + build.host_offset_ns
        build.sample_clock(start - 20_000)
        build.host("step", host - 10_000, host + 51_000 * layers + 5_000, step, (1, 8, 1, 3))
        start += 2 * MS
    build.sample_clock(start)
    return build


def _demo_records(warp: int, block: int, blocks: int, tiles: int) -> Iterable[Rec]:
    every = 80_000 // tiles
    if warp == 0:
        for i in range(tiles):
            at = 1000 + every * i
            yield point("issue", at, i)
            yield stall("room", at + 50, 300)
        yield point("mark", 90_000, 7, 9)
        return
    yield from span("phase", 500, 95_000)
    for i in range(tiles):
        at = 1500 + every * i
        # Every other tile comes late.
        blocked = 400 if i % 2 else 0
        yield stall("arrived", at, blocked, i)
        yield from span("tile", at + blocked, at + every - 600, i)
        yield stall("full", at + every - 550, 200)
        yield point("depth", at + every - 300, tiles - i)
    yield point("done", 91_000, block)
    yield stall("input", 92_000, 900, (block + 1) % blocks)
    yield stall("peer", 93_500, 700)
