"""From a capture to data frames: every launch and record of the steps asked for."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import pandas as pd

from megatrace.analysis.frames import (
    empty_host,
    empty_launches,
    empty_records,
    host_frame,
    launch_frame,
)
from megatrace.analysis.launches import launch_numbers
from megatrace.analysis.lines import I8, Mask, Rows
from megatrace.analysis.loss import LossTable
from megatrace.analysis.plan import Piece, pieces_of
from megatrace.analysis.rank import Rank, load_rank
from megatrace.analysis.recordframe import Found, RecordFrame, find
from megatrace.analysis.rows import device_name, loss_row
from megatrace.analysis.server import host_ranks, host_records_lost
from megatrace.analysis.side import in_order
from megatrace.analysis.summary import ranks_of
from megatrace.analysis.tables import own_args
from megatrace.analysis.words import Malformed, Records, decode_all
from megatrace.capture.reader import Capture
from megatrace.clock import ClockModel
from megatrace.schema import EventTable


@dataclass(frozen=True, slots=True)
class Trace:
    """Frames of a capture. Times are ns of each rank's globaltimer, int64.

    A rank may have had several processes, ``process`` 1, 2 and so on; ``clock``, ``tables`` and
    ``devices`` are by the number that rank and process are together, for the first of them the
    rank itself: see :mod:`megatrace.schema.processes`.

    ``launches``: rank, process, block, warp, role, sm, launch, step, kernel, layer, ring,
    t0_cycles, begin_ns, end_ns, dur_ns (-1 where the closing is gone), clock_error_ns, words,
    lost_lines, complete, time_uncertain.

    ``records``: rank, process, block, warp, role, launch_row (row of ``launches``), step, kernel,
    layer, event, kind, cause, category, edge, slot (-1: none), begin_ns, dur_ns (0:
    instant, -1: a span whose end is not there), a0, a1 ... (-1: none; ``arg_names`` says
    what they are). Sorted by launch_row, begin_ns, longest first.

    ``host``: event, rank, process, step, begin_ns, end_ns (-1 where no clock samples tie the host
    to the rank), host_begin_ns, host_end_ns, batch_size, tokens, graph, accepted (-1:
    none), text. Ranks without a traced kernel have host events too.

    ``loss`` is of the whole capture, whatever was asked for; malformed words are counted
    in what was decoded. ``clock`` has no model for ranks whose launches cannot be placed;
    those launches and records are left out, and ``problems`` says so.
    """

    launches: pd.DataFrame
    records: pd.DataFrame
    host: pd.DataFrame
    loss: LossTable
    clock: Mapping[int, ClockModel]
    tables: Mapping[int, EventTable]
    devices: Mapping[int, str]
    arg_names: Mapping[str, tuple[str, ...]]
    complete: bool
    problems: tuple[str, ...]


def decode(
    capture: Capture,
    *,
    ranks: Collection[int] | None = None,
    steps: Collection[int] | None = None,
    rings: Collection[int] | None = None,
) -> Trace:
    """Decode the launches of some ranks (numbers), steps and rings; of all where None.

    Takes memory for every record: for whole captures there are
    :func:`megatrace.analysis.summarise` and :func:`megatrace.analysis.views.by_step`.
    Raises SchemaMismatch and FormatError where a table of events cannot be read; damage to
    lines and words is counted, never raised.
    """
    loaded = load(capture, ranks)
    chosen = [segments_of(rank, _wanted(rank, steps, rings)) for rank in loaded.ranks]
    return trace_of(loaded, chosen, loaded.host)


@dataclass(frozen=True, slots=True)
class Loaded:
    """A capture whose lines were read once: what traces of its parts are made from."""

    capture: Capture
    ranks: tuple[Rank, ...]
    host: pd.DataFrame
    numbers: tuple[I8, ...]
    """Launch numbers of each rank's launches [L]."""


def load(capture: Capture, ranks: Collection[int] | None = None) -> Loaded:
    """Find the launches of some ranks, or of all, and put them on their clocks."""
    tables = capture.tables
    traced, spoke = ranks_of(capture), host_ranks(capture)
    chosen = [r for r in traced if ranks is None or r in ranks]
    loaded = [load_rank(capture, r, tables.get(r, EventTable("unknown", ()))) for r in chosen]
    clocks = {rank.rank: rank.clock for rank in loaded if rank.clock is not None}
    none = np.zeros(0, np.int64)
    return Loaded(
        capture,
        tuple(loaded),
        host_frame(capture, [r for r in spoke if ranks is None or r in ranks], clocks),
        tuple(
            launch_numbers(r.scan.launches, r.placed.begin_ns) if r.placed else none for r in loaded
        ),
    )


def segments_of(rank: Rank, wanted: Mask) -> Rows:
    """The segments of the launches where ``wanted`` [L], in the order of the rings."""
    owner = rank.scan.segments.launch
    keep: Mask = owner >= 0
    keep[keep] = wanted[owner[keep]]
    return np.flatnonzero(keep)


Watch: TypeAlias = Callable[[Rank, Records, Piece], None]
"""Told of the records of each piece that a trace is made of, in their order."""


def trace_of(
    loaded: Loaded,
    chosen: Sequence[Rows],
    host: pd.DataFrame,
    *,
    lean: bool = False,
    watch: Watch | None = None,
) -> Trace:
    """The trace of some segments of each rank, whole launches in the order of the rings.

    ``lean`` leaves the columns of :data:`megatrace.analysis.recordframe.SPARED` out. ``watch``
    sees the records as they are decoded.
    """
    capture, ranks = loaded.capture, loaded.ranks
    rows = [_launches_of(r, segments) for r, segments in zip(ranks, chosen, strict=True)]
    words = sum(int(r.scan.launches.words[at].sum()) for r, at in zip(ranks, rows, strict=True))
    records = RecordFrame([rank for rank in ranks if rank.placed is not None], words, lean=lean)
    launches: list[pd.DataFrame] = []
    loss = []
    base = 0
    for i, rank in enumerate(ranks):
        malformed, uncertain = _decode_rank(rank, chosen[i], rows[i], base, records, watch)
        if rank.placed is not None:
            frame = launch_frame(rank, rows[i], rank.placed, uncertain, loaded.numbers[i])
            launches.append(frame)
        base += len(rows[i])
        loss.append(loss_row(rank, capture, malformed, int(uncertain.sum())))
    return Trace(
        launches=_stack(launches),
        records=records.frame() if records.used else empty_records(),
        host=host,
        loss=LossTable(
            tuple(loss), capture.complete, host_records_lost(capture), capture.lines_known
        ),
        clock={rank.rank: rank.clock for rank in ranks if rank.clock is not None},
        tables={rank.rank: rank.table for rank in ranks},
        devices={rank.rank: device_name(rank.facts.device) for rank in ranks},
        arg_names={e.name: own_args(e) for rank in ranks for e in rank.lut.events.values()},
        complete=capture.complete,
        problems=(*capture.problems, *(p for rank in ranks for p in rank.problems)),
    )


def without_records(rank: Rank, rows: Rows, uncertain: Mask, numbers: I8) -> Trace:
    """Launches at ``rows`` of a rank that has a clock, ``uncertain`` [rows] in time; no record.

    ``numbers`` [L] are launch numbers of all its launches.
    """
    assert rank.placed is not None
    return Trace(
        launches=launch_frame(rank, rows, rank.placed, uncertain, numbers),
        records=empty_records(),
        host=empty_host(),
        loss=LossTable(()),
        clock={rank.rank: rank.clock} if rank.clock is not None else {},
        tables={rank.rank: rank.table},
        devices={rank.rank: device_name(rank.facts.device)},
        arg_names={},
        complete=True,
        problems=(),
    )


def _wanted(rank: Rank, steps: Collection[int] | None, rings: Collection[int] | None) -> Mask:
    launches = rank.scan.launches
    wanted = np.full(len(launches), rank.placed is not None)
    if steps is not None:
        wanted &= np.isin(launches.step, np.fromiter(steps, np.int64))
    if rings is not None:
        wanted &= np.isin(launches.ring, np.fromiter(rings, np.int64))
    return wanted


def _launches_of(rank: Rank, segments: Rows) -> Rows:
    """The launches that segments are of, each once, in their order."""
    owner = rank.scan.segments.launch[segments]
    once: Rows = owner[np.append(True, owner[1:] != owner[:-1])[: len(owner)]].astype(np.intp)
    return once


def _decode_rank(
    rank: Rank,
    segments: Rows,
    rows: Rows,
    base: int,
    into: RecordFrame,
    watch: Watch | None,
) -> tuple[Malformed, Mask]:
    """Add the records of ``rows``; what was malformed, and which of them are uncertain."""
    uncertain = np.zeros(len(rows), bool)
    malformed = Malformed()
    if rank.placed is None:
        return malformed, uncertain
    into.begin(rank)
    at = 0

    def look(piece: Piece) -> tuple[Found, Records | None]:
        whole = decode_all(piece.chunk, rank.lut, rank.span_clock(piece.launches))
        return find(rank, whole), None if watch is None else whole.own()

    # numpy lets go of the interpreter: chunks are decoded and written side by side.
    for piece, (found, seen), write in in_order(
        pieces_of(rank.source, rank.scan, rank.warps, segments), look
    ):
        if watch is not None and seen is not None:
            watch(rank, seen, piece)
        part = slice(at, at + len(piece.launches))
        at = part.stop
        malformed += found.malformed
        doubt = found.uncertain | rank.scan.launches.unchecked[piece.launches]
        uncertain[part] = doubt
        write(into.place(found, piece.launches, base + np.arange(part.start, part.stop)))
    return malformed, uncertain


def _stack(parts: list[pd.DataFrame]) -> pd.DataFrame:
    """Frames one below the other; categories are joined."""
    parts = [p for p in parts if len(p)]
    if not parts:
        return empty_launches()
    if len(parts) == 1:
        return parts[0].reset_index(drop=True)
    out: dict[str, object] = {}
    for name in parts[0].columns:
        pieces_ = [p[name] for p in parts]
        if isinstance(pieces_[0].dtype, pd.CategoricalDtype):
            out[name] = pd.api.types.union_categoricals(pieces_)
        else:
            out[name] = np.concatenate([p.to_numpy() for p in pieces_])
    return pd.DataFrame(out)
