"""A capture as flat arrays, one place a launch of a warp: what every view sums up from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megatrace.analysis.counted import Counted
from megatrace.analysis.launches import whole_launches
from megatrace.analysis.loss import LossTable
from megatrace.analysis.plan import Piece, pieces
from megatrace.analysis.prefetch import slack
from megatrace.analysis.rank import Rank, load_rank
from megatrace.analysis.rows import device_name, loss_row, sms_of
from megatrace.analysis.server import host_records_lost
from megatrace.analysis.spans import pair
from megatrace.analysis.summary import Launches, ranks_of
from megatrace.analysis.tables import cause_slot
from megatrace.analysis.words import Malformed, Records, decode_chunk
from megatrace.capture.reader import Capture
from megatrace.schema import EventTable
from megatrace.schema.layout import CAUSE_SLOTS, KERNEL_SHIFT
from megatrace.schema.processes import process_of

F8 = NDArray[np.float64]
Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]

EVENTS = 256
_NO_CAUSE = CAUSE_SLOTS


@dataclass(frozen=True, slots=True)
class Warps:
    """Launches of warps; arrays ``(n,)``. ``rank``, ``layer``, ``role`` are places in Flat.

    ``dur`` (ns) is 0 where the closing is gone, ``stalled`` ``(n, causes)`` ns.
    """

    rank: Ints
    step: Ints
    layer: Ints
    role: Ints
    sm: Ints
    block: Ints
    begin: Ints
    dur: F8
    stalled: F8


@dataclass(frozen=True, slots=True)
class Walls:
    """Launches of the GPU, first warp in to last warp out (ns), of those that closed."""

    rank: Ints
    step: Ints
    layer: Ints
    wall: F8


@dataclass(frozen=True, slots=True)
class Prefetches:
    """Prefetches by their first use; ``time`` (ns) blocked where ``late``."""

    rank: Ints
    step: Ints
    layer: Ints
    late: Flags
    early: Flags
    time: F8


@dataclass(slots=True)
class EventSum:
    """One event of one layer and role over the whole capture; ``time`` in ns."""

    layer: int
    role: int
    name: str
    kind: str
    cause: str
    count: int = 0
    time: float = 0.0


@dataclass(frozen=True, slots=True, order=True)
class StepOf:
    """A step of the ranks that ran together: each process of a rank numbers its own from 1.

    Attributes:
        step: its id; 0 stands for launches without one.
    """

    process: int
    step: int


@dataclass(frozen=True, slots=True)
class Flat:
    """All of a capture that the views sum up.

    Attributes:
        steps: those with a timeline, in order.
        steps_of: ids of the steps that each rank has.
        warps_of: warps a block of each rank.
        clock_error_ns: of each rank's GPU; nan where it has no clock.
    """

    device: str
    ranks: tuple[int, ...]
    layers: tuple[tuple[str, int], ...]
    roles: tuple[str, ...]
    steps: tuple[StepOf, ...]
    steps_of: tuple[frozenset[int], ...]
    warps: Warps
    walls: Walls
    prefetches: Prefetches
    events: tuple[EventSum, ...]
    unseen_is_early: bool
    """Waits that did not block left no word: unseen prefetches may have been early."""
    sms: str
    """``2 of 132 SMs recorded``; "" where all were asked for."""
    loss: LossTable
    clock_error_ns: tuple[float, ...]
    warps_of: tuple[int, ...]
    lines: tuple[tuple[int, int], ...]
    """Lines seen and lost of each rank."""
    problems: tuple[str, ...]

    @property
    def processes(self) -> Ints:
        """Which process of its rank each of ``ranks`` is."""
        return np.array([process_of(number) for number in self.ranks], np.int64)

    def ranks_in(self, step: StepOf) -> tuple[int, ...]:
        """The ranks that have launches of ``step``."""
        return tuple(
            number
            for number, ids in zip(self.ranks, self.steps_of, strict=True)
            if process_of(number) == step.process and step.step in ids
        )

    def within(self, rank: Ints, step: Ints, wanted: StepOf | None) -> Flags | slice:
        """Which places of ``rank`` and ids ``step`` are of the step wanted; None: of any."""
        if wanted is None:
            return slice(None)
        mine: Flags = (step == wanted.step) & (self.processes[rank] == wanted.process)
        return mine


@dataclass(slots=True)
class _Names:
    """Names to places, shared by all ranks."""

    layers: dict[tuple[str, int], int] = field(default_factory=dict)
    roles: dict[str, int] = field(default_factory=dict)
    events: dict[tuple[int, int, str], EventSum] = field(default_factory=dict)


def load(
    capture: Capture,
    progress: Callable[[float], None] = lambda share: None,
    launches: Launches | None = None,
) -> Flat:
    """Decode everything once. ``progress`` is told the share that is done.

    ``launches`` is told of those of each rank with a clock. Raises SchemaMismatch and FormatError
    where a table of events cannot be read.
    """
    tables = capture.tables
    numbers = ranks_of(capture)
    names = _Names()
    parts = []
    for at, number in enumerate(numbers):
        rank = load_rank(capture, number, tables.get(number, EventTable("unknown", ())))
        part = _RankPart(rank, at, names)
        part.run(lambda share, at=at: progress((at + share) / len(numbers)))  # type: ignore[misc]
        if launches is not None and rank.placed is not None:
            launches.add(rank, part.counted)
        parts.append(part)
    return _joined(capture, parts, names)


class _RankPart:
    """One rank while it is decoded."""

    def __init__(self, rank: Rank, at: int, names: _Names) -> None:
        self.rank = rank
        self.at = at
        self.names = names
        self.malformed = Malformed()
        self.uncertain = 0
        self.counted = Counted(rank)
        launches = rank.scan.launches
        self.stalled = np.zeros((len(launches), CAUSE_SLOTS))
        self.layer = self._layers()
        roles = [names.roles.setdefault(role, len(names.roles)) for role in rank.roles]
        self.role = np.array(roles, np.int64)[launches.ring % rank.warps]
        self.cause = np.full(512, _NO_CAUSE, np.int64)
        for event in rank.lut.events.values():
            if rank.lut.blocks[event.id]:
                self.cause[event.id] = cause_slot(event)
        self.issued: list[tuple[NDArray[np.intp], Flags, Flags, F8]] = []

    def run(self, progress: Callable[[float], None]) -> None:
        """Decode the lines, a piece at a time."""
        if self.rank.placed is None:
            return
        many = max(1, len(self.rank.scan.launches))
        done = 0
        for piece in pieces(self.rank.source, self.rank.scan, self.rank.warps):
            self._add(piece)
            done += len(piece.launches)
            progress(done / many)

    def _layers(self) -> Ints:
        launches = self.rank.scan.launches
        packed = launches.kernel.astype(np.int64) << KERNEL_SHIFT | launches.layer
        values, index = np.unique(packed, return_inverse=True)
        places = [
            self.names.layers.setdefault(
                (self.rank.kernel_name(value >> KERNEL_SHIFT), value & 0xFFFF),
                len(self.names.layers),
            )
            for value in values.tolist()
        ]
        found: Ints = np.array(places, np.int64)[index] if places else np.zeros(0, np.int64)
        return found

    def _add(self, piece: Piece) -> None:
        rank = self.rank
        assert rank.placed is not None
        records = decode_chunk(piece.chunk, rank.lut, rank.span_clock(piece.launches))
        self.malformed += records.malformed
        self.uncertain += int(self.counted.add(records, piece).sum())
        rate = rank.placed.ns_per_cycle[piece.launches]
        self._add_stalls(records, piece, rate)
        self._add_events(records, piece, rate)
        launches = rank.scan.launches
        ring = launches.ring[piece.launches].astype(np.intp)
        found = slack(records, rank.lut, ring, rank.warps, launches.clock[piece.launches])
        if found is not None:
            launch = records.launch[found.row]
            own = piece.launches[launch].astype(np.intp)
            self.issued.append((own, found.late, found.early, found.cycles * rate[launch]))

    def _add_stalls(self, records: Records, piece: Piece, rate: F8) -> None:
        cause = self.cause[records.event]
        rows = np.flatnonzero(cause != _NO_CAUSE)
        launch = records.launch[rows]
        place = launch * CAUSE_SLOTS + cause[rows]
        size = len(piece.launches) * CAUSE_SLOTS
        sums = np.bincount(place, records.dur[rows] * rate[launch], size)
        self.stalled[piece.launches] += sums.reshape(-1, CAUSE_SLOTS)

    def _add_events(self, records: Records, piece: Piece, rate: F8) -> None:
        spans = pair(records, self.rank.lut)
        dur = records.dur.copy()
        dur[spans.begin] = np.maximum(records.t[spans.end] - records.t[spans.begin], 0)
        keep = np.ones(len(dur), bool)
        keep[spans.end] = keep[spans.closed] = keep[spans.open] = False
        rows = np.flatnonzero(keep)
        own = piece.launches[records.launch[rows]]
        roles = int(self.role.max(initial=0)) + 1
        code = (self.layer[own] * roles + self.role[own]) * EVENTS + (records.event[rows] & 255)
        values, index = np.unique(code, return_inverse=True)
        count = np.bincount(index, minlength=len(values))
        time = np.bincount(index, dur[rows] * rate[records.launch[rows]], len(values))
        for i, value in enumerate(values.tolist()):
            group, number = divmod(value, EVENTS)
            layer, role = divmod(group, roles)
            event = self.rank.lut.events.get(number)
            if event is None:
                continue
            key = (layer, role, event.name)
            cause = event.cause.value if event.cause else ""
            total = self.names.events.setdefault(
                key, EventSum(layer, role, event.name, event.kind.value, cause)
            )
            total.count += int(count[i])
            total.time += float(time[i])


def _joined(capture: Capture, parts: Sequence[_RankPart], names: _Names) -> Flat:
    devices = sorted({device_name(part.rank.facts.device) for part in parts})
    loss = [loss_row(p.rank, capture, p.malformed, p.uncertain) for p in parts]
    placed = [part for part in parts if part.rank.placed is not None]
    steps_of = [
        frozenset(part.rank.scan.launches.step.tolist() if part.rank.placed is not None else ())
        for part in parts
    ]
    steps = {
        StepOf(process_of(part.rank.rank), step)
        for part, ids in zip(parts, steps_of, strict=True)
        for step in ids
    }
    problems = [*capture.problems, *(text for p in parts for text in p.rank.problems)]
    prefetches = _prefetches(placed)
    return Flat(
        device=" and ".join(devices),
        ranks=tuple(part.rank.rank for part in parts),
        layers=tuple(names.layers),
        roles=tuple(names.roles),
        steps=tuple(sorted(steps)),
        steps_of=tuple(steps_of),
        warps=_warps(placed),
        walls=_walls(placed),
        prefetches=prefetches,
        events=tuple(names.events.values()),
        unseen_is_early=not prefetches.early.any(),
        sms=sms_of(capture, [part.rank for part in parts]).text,
        loss=LossTable(
            tuple(loss), capture.complete, host_records_lost(capture), capture.lines_known
        ),
        clock_error_ns=tuple(
            p.rank.clock.error_ns if p.rank.clock else float("nan") for p in parts
        ),
        warps_of=tuple(part.rank.warps for part in parts),
        lines=tuple((row.lines_seen, row.lines_lost) for row in loss),
        problems=tuple(dict.fromkeys(problems)),
    )


def _none() -> Ints:
    return np.zeros(0, np.int64)


def _stack(arrays: Sequence[NDArray[Any]]) -> Ints:
    return np.concatenate([_none(), *arrays]).astype(np.int64)


def _warps(parts: Sequence[_RankPart]) -> Warps:
    all_of = [part.rank.scan.launches for part in parts]
    spent = []
    for part in parts:
        placed = part.rank.placed
        assert placed is not None
        done = part.rank.scan.launches.complete
        spent.append(np.where(done, placed.end_ns - placed.begin_ns, 0).astype(np.float64))
    return Warps(
        rank=_stack([np.full(len(p.layer), p.at) for p in parts]),
        step=_stack([launches.step for launches in all_of]),
        layer=_stack([part.layer for part in parts]),
        role=_stack([part.role for part in parts]),
        sm=_stack([launches.sm.astype(np.int64) for launches in all_of]),
        block=_stack([p.rank.scan.launches.ring // p.rank.warps for p in parts]),
        begin=_stack([p.rank.placed.begin_ns for p in parts if p.rank.placed is not None]),
        dur=np.concatenate([np.zeros(0), *spent]),
        stalled=np.concatenate([np.zeros((0, CAUSE_SLOTS)), *(p.stalled for p in parts)]),
    )


def _walls(parts: Sequence[_RankPart]) -> Walls:
    rank, step, layer, wall = [], [], [], []
    for part in parts:
        launches, placed = part.rank.scan.launches, part.rank.placed
        if placed is None or not len(launches):
            continue
        order, start = whole_launches(launches)
        begin = np.minimum.reduceat(placed.begin_ns[order], start)
        end = np.maximum.reduceat(placed.end_ns[order], start)
        whole = np.logical_and.reduceat(launches.complete[order], start)
        first = order[start][whole]
        rank.append(np.full(len(first), part.at))
        step.append(launches.step[first])
        layer.append(part.layer[first])
        wall.append(np.maximum(end - begin, 0)[whole].astype(np.float64))
    return Walls(_stack(rank), _stack(step), _stack(layer), np.concatenate([np.zeros(0), *wall]))


def _prefetches(parts: Sequence[_RankPart]) -> Prefetches:
    rank, step, layer, late, early, time = [], [], [], [], [], []
    for part in parts:
        for own, is_late, is_early, spent in part.issued:
            rank.append(np.full(len(own), part.at))
            step.append(part.rank.scan.launches.step[own])
            layer.append(part.layer[own])
            late.append(is_late)
            early.append(is_early)
            time.append(spent)
    no = np.zeros(0, bool)
    return Prefetches(
        _stack(rank), _stack(step), _stack(layer),
        np.concatenate([no, *late]), np.concatenate([no, *early]),
        np.concatenate([np.zeros(0), *time]),
    )  # fmt: skip
