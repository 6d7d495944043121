"""Rows of a report out of sums."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict

import numpy as np

from megatrace.analysis.counters import counter_sums, layers_of
from megatrace.analysis.groups import EVENTS, Gathered, Sums
from megatrace.analysis.launches import whole_launches
from megatrace.analysis.lines import F8, I8
from megatrace.analysis.loss import LossRow
from megatrace.analysis.prefetch import waited_edges
from megatrace.analysis.rank import Rank, is_joined
from megatrace.analysis.report import (
    ClockRow,
    EventRow,
    KernelRow,
    OverheadRow,
    PrefetchRow,
    SmsRecorded,
    StallRow,
    StepsSeen,
)
from megatrace.analysis.server import last_said, steps_run
from megatrace.analysis.words import Malformed
from megatrace.capture.reader import Capture, CounterSamples
from megatrace.schema import CAUSES
from megatrace.schema.layout import (
    CLOSING_WORDS,
    HEADER_WORDS,
    LINE_BYTES,
    RECORDS_PER_LINE,
)
from megatrace.schema.processes import process_of, rank_of

_US = 1e-3
_SM_BITS, _BLOCK_BITS = 9, 20
_BLOCK_MASK = (1 << _BLOCK_BITS) - 1


def device_name(device: int) -> str:
    """``cpu`` for the host build, ``cuda``."""
    return {0: "cpu", 1: "cuda"}.get(device, f"device {device}")


def launch_times(rank: Rank, sums: Sums, shared: Gathered) -> None:
    """Add the wall time of each launch of ``rank``, from its first warp in to its last out."""
    launches, placed = rank.scan.launches, rank.placed
    if placed is None:
        return
    order, start = whole_launches(launches)
    begin = np.minimum.reduceat(placed.begin_ns[order], start)
    end = np.maximum.reduceat(placed.end_ns[order], start)
    whole = np.logical_and.reduceat(launches.complete[order], start)
    groups = sums.codes.launch_code[order[start]] // len(sums.codes.roles)
    # All its warps say one layer.
    mine = np.flatnonzero(sums.codes.mine[order[start]])
    numbers = np.zeros(len(sums.codes.kernel_layers), np.intp)
    for group in np.unique(groups[mine]).tolist():
        numbers[group] = shared.kernels.of((*sums.codes.kernel_layers[group], "", ""))
    row, whole, begin, end = numbers[groups[mine]], whole[mine], begin[mine], end[mine]
    shared.launches.update(row.tolist())
    shared.walls.add(row[whole], np.maximum(end - begin, 0)[whole].astype(np.float64))


def kernel_rows(shared: Gathered) -> tuple[KernelRow, ...]:
    """One row a kernel and layer, sorted by both."""
    walls = shared.walls
    found = walls.durations.quantiles(len(shared.kernels.keys))
    rows = [
        KernelRow(
            kernel, layer, shared.launches[n], walls.count[n], walls.total_ns[n] * _US,
            float(found.median_ns[n]) * _US, float(found.p95_ns[n]) * _US,
        )
        for (kernel, layer, _, _), n in shared.kernels.keys.items()
    ]  # fmt: skip
    return tuple(sorted(rows, key=lambda r: (r.kernel, r.layer)))


def event_rows(sums: list[Sums], ranks: list[Rank], shared: Gathered) -> tuple[EventRow, ...]:
    """One row a kernel, layer, role and event; the longest totals of a role first."""
    used = [np.flatnonzero(s.count + s.unblocked + s.unfinished) for s in sums]
    index = [s.rows(codes) for s, codes in zip(sums, used, strict=True)]
    size = len(shared.numbering.keys)
    count, unblocked, unfinished = (np.zeros(size, np.int64) for _ in range(3))
    total, warp_ns = np.zeros(size), np.zeros(size)
    facts: dict[int, tuple[str, str]] = {}
    for one, rank, codes, rows in zip(sums, ranks, used, index, strict=True):
        np.add.at(count, rows, one.count[codes])
        np.add.at(unblocked, rows, one.unblocked[codes])
        np.add.at(unfinished, rows, one.unfinished[codes])
        np.add.at(total, rows, one.total_ns[codes])
        np.add.at(warp_ns, rows, warp_time(rank, one)[codes // EVENTS])
        for code, row in zip(codes.tolist(), rows.tolist(), strict=True):
            event = rank.lut.events[code % EVENTS]
            facts[row] = (event.kind.value, event.cause.value if event.cause else "")
    found = shared.durations.quantiles(size)
    out = []
    for (kernel, layer, role, name), n in shared.numbering.keys.items():
        kind, cause = facts[n]
        timed = kind in ("span", "stall", "wait")
        out.append(
            EventRow(
                kernel, layer, role, name, kind, cause, int(count[n]), int(unblocked[n]),
                int(unfinished[n]), float(total[n]) * _US,
                float(found.median_ns[n]) * _US if timed else float("nan"),
                float(found.p95_ns[n]) * _US if timed else float("nan"),
                _share(float(total[n]), float(warp_ns[n])),
            )
        )  # fmt: skip
    return tuple(
        sorted(out, key=lambda r: (r.kernel, r.layer, r.role, -round(r.total_us, 3), r.event))
    )


def warp_time(rank: Rank, sums: Sums) -> F8:
    """Time (ns) that warps spent in launches whose end is known, by (kernel, layer, role)."""
    if rank.placed is None:
        return np.zeros(sums.codes.groups)
    done = rank.scan.launches.complete & sums.codes.mine
    spent = (rank.placed.end_ns - rank.placed.begin_ns)[done].astype(np.float64)
    return np.bincount(sums.codes.launch_code[done], spent, sums.codes.groups).astype(np.float64)


def _share(spent_ns: float, warp_ns: float) -> float:
    """NaN where no launch of those warps has an end: nobody knows what it is a share of."""
    return min(1.0, spent_ns / warp_ns) if warp_ns else float("nan")


def stall_rows(
    samples: CounterSamples, rank: Rank, sums: Sums, layers: Collection[int] | None
) -> list[StallRow]:
    """By role and cause: what records say, then what the counters say; ``layers`` None: of all."""
    out: list[StallRow] = []
    both = rank_of(rank.rank), process_of(rank.rank)
    roles = sums.codes.roles
    shape = (len(sums.codes.kernel_layers), len(roles), EVENTS)
    count = sums.count.reshape(shape).sum(axis=0)
    total = sums.total_ns.reshape(shape).sum(axis=0)
    warp_ns = warp_time(rank, sums).reshape(shape[:2]).sum(axis=0)
    for role, name in enumerate(roles):
        for cause in CAUSES:
            events = [e.id for e in rank.lut.events.values() if e.cause is cause]
            many, spent = int(count[role, events].sum()), float(total[role, events].sum())
            if many:
                share = _share(spent, float(warp_ns[role]))
                out.append(StallRow(*both, name, cause, "records", many, spent * _US, None, share))
    counted = counter_sums(samples, rank.rank, rank.facts.rings, rank.roles, layers)
    rate = rank.clock.ns_per_cycle if rank.clock else None
    for role, name in enumerate(roles):
        all_cycles = int(counted.cycles[role].sum())
        for slot, cause in enumerate(CAUSES):
            cycles, many = int(counted.cycles[role, slot]), int(counted.count[role, slot])
            if many:
                us = cycles * rate * _US if rate is not None else None
                share = cycles / all_cycles if all_cycles else 0.0
                out.append(StallRow(*both, name, cause, "counters", many, us, cycles, share))
    return out


def prefetch_rows(shared: Gathered, ranks: list[Rank]) -> tuple[PrefetchRow, ...]:
    """One row a kernel and edge."""
    size = len(shared.edges.keys)
    late, early = (t.durations.quantiles(size) for t in (shared.late, shared.early))
    waited: set[str] = set().union(*(waited_edges(rank.lut) for rank in ranks))
    out = []
    for (kernel, _, _, edge), n in shared.edges.keys.items():
        lates, earlies = shared.late.count[n], shared.early.count[n]
        unseen = shared.unseen[n]
        out.append(
            PrefetchRow(
                kernel, edge, lates + earlies + unseen, lates, shared.late.total_ns[n] * _US,
                float(late.median_ns[n]) * _US, float(late.p95_ns[n]) * _US, earlies,
                float(early.median_ns[n]) * _US, unseen, edge in waited, earlies > 0,
            )
        )  # fmt: skip
    return tuple(sorted(out, key=lambda r: (r.kernel, r.edge)))


def loss_row(rank: Rank, capture: Capture, malformed: Malformed, uncertain: int) -> LossRow:
    """What is missing of one rank: by the holes of the capture and by the recorder's count."""
    loss, launches = rank.scan.loss, rank.scan.launches
    told = np.zeros(len(loss.lines_seen), np.int64)
    for (number, ring), lines in capture.loss.items():
        if number == rank.rank and ring < len(told):
            told[ring] += lines
    lost = np.maximum(loss.lines_missing, told)
    unknown = loss.words_unknown_max + RECORDS_PER_LINE * (lost - loss.lines_missing)
    return LossRow(
        rank=rank_of(rank.rank),
        process=process_of(rank.rank),
        lines_seen=_total(loss.lines_seen),
        lines_lost=_total(lost),
        lines_torn=_total(loss.lines_torn),
        words_seen=_total(loss.words_seen),
        words_lost=_total(loss.words_lost),
        words_unknown_max=_total(unknown),
        orphaned=_total(loss.words_orphaned),
        malformed=malformed.total,
        malformed_by={k: v for k, v in asdict(malformed).items() if v},
        launches_cut=int((~launches.complete).sum()),
        launches_time_uncertain=uncertain,
        launches_lost=launches.lost(joined=is_joined(capture)),
        tail_words_at_most=_total(loss.tail_words_max),
        never_closed=_never_closed(rank),
    )


def _never_closed(rank: Rank) -> tuple[str, ...]:
    """Roles of which no launch has a closing, where a warp has launches after it."""
    launches = rank.scan.launches
    if launches.complete.all():
        return ()
    rings = launches.ring[launches.lost_lines == 0]  # or the closing may be what was lost
    warps = np.flatnonzero(np.bincount(rings)) % rank.warps
    closed = np.bincount(launches.ring[launches.complete] % rank.warps, minlength=rank.warps)
    goes_on = np.bincount(rings % rank.warps, minlength=rank.warps) > np.bincount(
        warps, minlength=rank.warps
    )
    roles = np.array(rank.roles)
    never = set(roles[goes_on]) - set(roles[closed > 0])
    return tuple(sorted(map(str, never)))


def overhead_row(
    samples: CounterSamples, rank: Rank, sums: Sums, records: int, layers: Collection[int] | None
) -> OverheadRow:
    """How much one rank wrote, in all or in launches of ``layers``."""
    loss, launches, segments = rank.scan.loss, rank.scan.launches, rank.scan.segments
    mine, sampled_at = sums.codes.mine, np.flatnonzero(samples.rank == rank.rank)
    sampled = len(sampled_at)
    if layers is None:  # words and lines of no launch too
        words, lines = _total(loss.words_seen), _total(loss.lines_seen)
    else:
        words = _total(launches.words[mine])
        placed = np.flatnonzero(segments.launch >= 0)
        placed = placed[mine[segments.launch[placed]]]
        lines = _total(segments.last[placed] - segments.first[placed])
        sampled = int(np.isin(layers_of(samples, sampled_at, rank.facts.rings), [*layers]).sum())
    header = HEADER_WORDS * int(mine.sum()) + CLOSING_WORDS * int(launches.complete[mine].sum())
    share = 4 * (words - header) / (LINE_BYTES * lines) if lines else 0.0
    both = rank_of(rank.rank), process_of(rank.rank)
    return OverheadRow(*both, records, words, LINE_BYTES * lines, header, share, sampled)


def clock_row(rank: Rank) -> ClockRow:
    """How well one rank's times are known."""
    clock = rank.clock
    host = clock.host if clock else None
    return ClockRow(
        rank=rank_of(rank.rank),
        process=process_of(rank.rank),
        device=device_name(rank.facts.device),
        error_ns=clock.error_ns if clock else None,
        held_out=bool(clock) and all(sm.held_out for sm in clock.sms.values()) if clock else False,
        ghz=1.0 / clock.ns_per_cycle if clock else None,
        sms=len(clock.sms) if clock else 0,
        samples=clock.samples if clock else 0,
        host_error_ns=host.error_ns if host else None,
    )


def steps_of(capture: Capture, ranks: list[Rank]) -> StepsSeen:
    """Steps that have a timeline, of the steps that ran, as the best witness counts them."""
    recorded: set[tuple[int, int]] = set()  # of each process: all count from 1
    for rank in ranks:
        steps = np.unique(rank.scan.launches.step)
        process = process_of(rank.rank)
        recorded.update((process, step) for step in steps[steps > 0].tolist())
    every = counters_every_asked(capture)
    ran = steps_run(capture)
    if ran:
        return StepsSeen(len(recorded), max(ran, len(recorded)), "host step records", every)
    last = dict(sorted({*recorded, *last_said(capture)}))  # the greatest step of each process
    if last:
        return StepsSeen(len(recorded), sum(last.values()), "last step id", every)
    # Without step ids all of them count.
    return StepsSeen(0, None, "no step ids: the host has no step hook")


def sms_of(capture: Capture, ranks: list[Rank]) -> SmsRecorded:
    """Which SMs the recorder asked for, and how many of how many left launches."""
    chosen = sms_asked(capture)
    seen = max((len(np.unique(rank.scan.launches.sm)) for rank in ranks), default=0)
    grids = {rank.facts.blocks if _one_block_an_sm(rank) else 0 for rank in ranks}
    known = len(grids) == 1 and seen <= min(grids) and 0 not in grids
    return SmsRecorded(chosen, seen, grids.pop() if known else None)


def sms_asked(capture: Capture) -> tuple[int, ...] | None:
    """The SMs that the recorder was asked for; None: all."""
    asked = capture.options.get("sms")
    return tuple(sm for sm in asked if isinstance(sm, int)) if isinstance(asked, list) else None


def counters_every_asked(capture: Capture) -> int:
    """Of the steps without a timeline, counters were asked for on one in so many."""
    asked = capture.options.get("counters_every")
    return asked if isinstance(asked, int) and asked > 0 else 1


def _one_block_an_sm(rank: Rank) -> bool:
    """Whether no SM ran two blocks of a launch: then a grid has as many SMs as blocks."""
    launches = rank.scan.launches
    if not len(launches):
        return False
    order, start = whole_launches(launches)
    group = np.repeat(np.arange(len(start)), np.diff(start, append=len(order)))
    block = launches.ring[order] // rank.warps & _BLOCK_MASK
    by_sm = group << _SM_BITS | launches.sm[order]
    blocks = np.unique(by_sm << _BLOCK_BITS | block)
    return len(blocks) == len(np.unique(by_sm))


def _total(values: I8) -> int:
    return int(values.sum())
