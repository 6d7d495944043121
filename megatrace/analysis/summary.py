"""From a capture to a Report, a chunk of rings at a time."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

import numpy as np

from megatrace.analysis.counted import Counted
from megatrace.analysis.counters import layers_of
from megatrace.analysis.groups import EVENTS, Gathered, Sums, codes_of
from megatrace.analysis.lines import F8, HANG, Rows
from megatrace.analysis.loss import LossTable
from megatrace.analysis.plain import ranges_text
from megatrace.analysis.plan import Piece, pieces
from megatrace.analysis.prefetch import slack
from megatrace.analysis.rank import Rank, load_rank
from megatrace.analysis.report import HangRow, LayersShown, Report, SmsRecorded
from megatrace.analysis.rows import (
    clock_row,
    device_name,
    event_rows,
    kernel_rows,
    launch_times,
    loss_row,
    overhead_row,
    prefetch_rows,
    sms_asked,
    sms_of,
    stall_rows,
    steps_of,
)
from megatrace.analysis.server import host_records_lost, host_step_rows
from megatrace.analysis.spans import pair
from megatrace.analysis.stats import RELATIVE_ERROR
from megatrace.analysis.tables import SPAN
from megatrace.analysis.words import Malformed, Records, decode_chunk
from megatrace.capture.reader import Capture, CounterSamples
from megatrace.errors import UsageError
from megatrace.schema import EventTable
from megatrace.schema.layout import SLOT_UNKNOWN
from megatrace.schema.processes import process_of, rank_of

MAX_HANGS = 1000
"""Hang rows of one rank; a machine that hangs harder than this says nothing more."""


class Launches(Protocol):
    """Who wants the launches of each rank besides, from the same reading."""

    def add(self, rank: Rank, counted: Counted) -> None:
        """A rank with a clock, and what the records of its launches say of each."""


class RankSums:
    """One rank's sums, chunk by chunk."""

    def __init__(self, rank: Rank, shared: Gathered, layers: Collection[int] | None = None) -> None:
        """Sum the records of ``rank`` into its own arrays and ``shared`` durations.

        ``layers`` None: those of all.
        """
        self.rank = rank
        self.counted = Counted(rank)
        self.shared = shared
        self.sums = Sums(codes_of(rank, layers), shared.numbering)
        self.malformed = Malformed()
        self.uncertain = 0
        self.records = 0
        self.hangs: list[HangRow] = []

    def run(self) -> None:
        """Decode everything; what has no place in time counts, and its hangs are told."""
        rank = self.rank
        for piece in pieces(rank.source, rank.scan, rank.warps):
            self.add(decode_chunk(piece.chunk, rank.lut, rank.span_clock(piece.launches)), piece)

    def add(self, whole: Records, piece: Piece) -> None:
        """Add what was decoded of one piece. Of each launch there is one, in any order."""
        rank = self.rank
        self.malformed += whole.malformed
        self.uncertain += int(self.counted.add(whole, piece).sum())
        records = self._of_layers(whole, piece)
        self.records += len(records.at)
        if rank.placed is None:
            self._add_hangs(records, piece, np.full(len(piece.launches), np.nan))
            return
        rate = rank.placed.ns_per_cycle[piece.launches]
        base = self.sums.codes.launch_code[piece.launches] * EVENTS
        self._add_blocking(records, base, rate)
        self._add_spans(records, base, rate)
        # A layer's prefetch may be used by another.
        self._add_prefetches(whole, piece, rate)
        self._add_hangs(records, piece, rate)

    def _of_layers(self, records: Records, piece: Piece) -> Records:
        """Those of the layers that were asked for."""
        mine = self.sums.codes.mine[piece.launches]
        return records if mine.all() else records.of(np.flatnonzero(mine[records.launch]))

    def _add_blocking(self, records: Records, base: Rows, rate: F8) -> None:
        rows = np.flatnonzero(self.rank.lut.blocks[records.event])
        dur = records.dur[rows]
        blocked = dur > 0
        if not blocked.all():
            free = rows[~blocked]
            self.sums.tally(self.sums.unblocked, base[records.launch[free]] + records.event[free])
            rows, dur = rows[blocked], dur[blocked]
        launch = records.launch[rows]
        self._add_times(base[launch] + records.event[rows], dur * rate[launch])

    def _add_spans(self, records: Records, base: Rows, rate: F8) -> None:
        spans = pair(records, self.rank.lut)
        launch = records.launch[spans.begin]
        cycles = np.maximum(records.t[spans.end] - records.t[spans.begin], 0)
        self._add_times(base[launch] + records.event[spans.begin], cycles * rate[launch])
        left = spans.open
        self.sums.tally(self.sums.unfinished, base[records.launch[left]] + records.event[left])
        kind = self.rank.lut.kind[records.event]
        rows = np.flatnonzero((kind != SPAN) & ~self.rank.lut.blocks[records.event])
        self.sums.tally(self.sums.count, base[records.launch[rows]] + records.event[rows])

    def _add_times(self, code: Rows, dur_ns: F8) -> None:
        self.sums.tally(self.sums.count, code)
        self.sums.time(code, dur_ns)
        self.shared.durations.add(self.sums.rows(code), dur_ns)

    def _add_prefetches(self, records: Records, piece: Piece, rate: F8) -> None:
        rank = self.rank
        launches = rank.scan.launches
        ring = launches.ring[piece.launches].astype(np.intp)
        found = slack(records, rank.lut, ring, rank.warps, launches.clock[piece.launches])
        if found is None:
            return
        found = found.of(self.sums.codes.mine[piece.launches[records.launch[found.row]]])
        launch = records.launch[found.row]
        event = records.event[found.row]
        group = self.sums.codes.launch_code[piece.launches][launch] // len(self.sums.codes.roles)
        pairs, index = np.unique(group * EVENTS + event, return_inverse=True)
        numbers = []
        for code in pairs.tolist():
            kernel, _ = self.sums.codes.kernel_layers[code // EVENTS]
            edge = rank.lut.events[code % EVENTS].edge
            numbers.append(self.shared.edges.of((kernel, 0, "", edge)))
        row = np.array(numbers, np.intp)[index]
        dur_ns = found.cycles * rate[launch]
        late, early = found.late, found.early
        self.shared.late.add(row[late], dur_ns[late])
        self.shared.early.add(row[early], dur_ns[early])
        self.shared.unseen.update(row[~late & ~early].tolist())

    def _add_hangs(self, records: Records, piece: Piece, rate: F8) -> None:
        rank = self.rank
        launches = rank.scan.launches
        room = MAX_HANGS - len(self.hangs)
        for row in np.flatnonzero(records.event == HANG)[:room].tolist():
            at = np.array([row])
            launch = int(piece.launches[records.launch[row]])
            event = rank.lut.events.get(int(records.arg(at, 0)[0]))
            warp = int(launches.ring[launch]) % rank.warps
            slot = int(records.arg(at, 1)[0])
            self.hangs.append(
                HangRow(
                    rank=rank_of(rank.rank),
                    process=process_of(rank.rank),
                    block=int(launches.ring[launch]) // rank.warps,
                    warp=warp,
                    role=rank.roles[warp],
                    sm=int(launches.sm[launch]),
                    launch=int(launches.launch[launch]),
                    step=int(launches.step[launch]),
                    layer=int(launches.layer[launch]),
                    event=event.name if event else f"event {int(records.arg(at, 0)[0])}",
                    slot=None if slot == SLOT_UNKNOWN else slot,
                    waited_cycles=int(records.dur[row]),
                    waited_us=float(records.dur[row] * rate[records.launch[row]]) / 1e3,
                )
            )


class Summing:
    """A report in the making: its ranks have been scanned, and their pieces are being decoded."""

    def __init__(
        self, capture: Capture, ranks: Sequence[Rank], layers: Collection[int] | None = None
    ) -> None:
        """Begin with all the ranks of ``capture``; of launches of ``layers`` alone, None: of all.

        Raises UsageError, with the layers that there are, for one that is not there.
        """
        self._capture = capture
        self._samples = capture.counters()
        self._shared = Gathered()
        self._layers = _layers_shown(capture, self._samples, ranks, layers)
        self.parts = [RankSums(rank, self._shared, self._layers.chosen) for rank in ranks]
        for part in self.parts:
            launch_times(part.rank, part.sums, self._shared)

    def report(self) -> Report:
        """The report, once each part has all its pieces."""
        return _report(self._capture, self._samples, self.parts, self._shared, self._layers)


def summarise(
    capture: Capture, launches: Launches | None = None, *, layers: Collection[int] | None = None
) -> Report:
    """The report of a capture; ``launches`` is told of those of each rank with a clock.

    ``layers``: tables of the launches of these alone, see :attr:`Report.layers`. Medians are
    exact up to 4 million durations, beyond that within 0.4 %, and the report says which.
    Raises UsageError for a layer that is not there, SchemaMismatch and FormatError where a
    table of events cannot be read; damage to lines and words is counted, never raised.
    """
    tables = capture.tables
    ranks = [
        load_rank(capture, number, tables.get(number, EventTable("unknown", ())))
        for number in ranks_of(capture)
    ]
    sums = Summing(capture, ranks, layers)
    for part in sums.parts:
        part.run()
        if launches is not None and part.rank.placed is not None:
            launches.add(part.rank, part.counted)
    return sums.report()


def _layers_shown(
    capture: Capture,
    samples: CounterSamples,
    ranks: Sequence[Rank],
    layers: Collection[int] | None,
) -> LayersShown:
    """The layers asked for and those that there are. Raises UsageError for one that is not."""
    there: set[int] = set()
    for rank in ranks:
        there.update(np.unique(rank.scan.launches.layer).tolist())
        if rank.facts.rings:
            counted = samples.records["count"].any(axis=1)
            rows = np.flatnonzero(counted & (samples.rank == rank.rank))
            there.update(np.unique(layers_of(samples, rows, rank.facts.rings)).tolist())
    if layers is None:
        return LayersShown(None, tuple(sorted(there)))
    if missing := sorted(set(layers) - there):
        text = f"layer{'s' * (len(missing) > 1)} {ranges_text(missing)}"
        have = f"layers {ranges_text(there)}" if there else "no launch and no counter of any"
        raise UsageError(f"{capture.path} has no {text}", hint=f"it has {have}")
    return LayersShown(tuple(sorted(set(layers))), tuple(sorted(there)))


def ranks_of(capture: Capture) -> list[int]:
    """Ranks that have a ring for kernels, or lines, sorted."""
    seen = {number for number, facts in capture.rings.items() if facts.traced}
    seen.update(np.unique(capture.line_index().rank).tolist())
    return sorted(seen)


def sms_recorded(capture: Capture) -> SmsRecorded:
    """Of a capture whose recorder was asked for some SMs: how many left launches."""
    if sms_asked(capture) is None:
        return SmsRecorded(None, 0, None)
    # Headers are of no table, and a table that cannot be read is no matter here.
    none = EventTable("unknown", ())
    return sms_of(capture, [load_rank(capture, number, none) for number in ranks_of(capture)])


def _report(
    capture: Capture,
    samples: CounterSamples,
    parts: list[RankSums],
    shared: Gathered,
    layers: LayersShown,
) -> Report:
    ranks = [part.rank for part in parts]
    exact = shared.durations.exact and shared.walls.durations.exact
    devices = sorted({device_name(rank.facts.device) for rank in ranks})
    table = LossTable(
        tuple(loss_row(part.rank, capture, part.malformed, part.uncertain) for part in parts)
    )
    problems = [*capture.problems, *(p for rank in ranks for p in rank.problems)]
    return Report(
        path=str(capture.path),
        device=" and ".join(devices) or "none",
        complete=capture.complete,
        problems=tuple(problems),
        ranks=len({rank_of(rank.rank) for rank in ranks}),
        processes=len(ranks),
        steps=steps_of(capture, ranks),
        sms=sms_of(capture, ranks),
        host_steps=host_step_rows(capture),
        kernels=kernel_rows(shared),
        events=event_rows([part.sums for part in parts], ranks, shared),
        stalls=tuple(
            row for p in parts for row in stall_rows(samples, p.rank, p.sums, layers.chosen)
        ),
        prefetches=prefetch_rows(shared, ranks),
        hangs=tuple(row for part in parts for row in part.hangs),
        lines_lost=table.lines_lost if capture.lines_known else None,
        host_records_lost=host_records_lost(capture) if capture.complete else None,
        launches_cut=table.launches_cut,
        tail_words_at_most=table.tail_words_at_most,
        loss=table.rows,
        overhead=tuple(
            overhead_row(samples, p.rank, p.sums, p.records, layers.chosen) for p in parts
        ),
        clocks=tuple(clock_row(rank) for rank in ranks),
        quantiles_exact=exact,
        quantile_error=0.0 if exact else RELATIVE_ERROR,
        layers=layers,
    )
