"""From a capture to data frames: every launch and record of the steps asked for."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from megatrace.analysis.frames import (
    empty_launches,
    empty_records,
    host_frame,
    launch_frame,
    record_columns,
)
from megatrace.analysis.lines import Mask
from megatrace.analysis.loss import LossTable
from megatrace.analysis.plan import pieces
from megatrace.analysis.rank import Rank, load_rank
from megatrace.analysis.rows import device_name, loss_row
from megatrace.analysis.server import host_ranks, host_records_lost
from megatrace.analysis.summary import ranks_of
from megatrace.analysis.tables import own_args
from megatrace.analysis.words import Malformed, decode_chunk
from megatrace.capture.reader import Capture
from megatrace.clock import ClockModel
from megatrace.schema import EventTable


@dataclass(frozen=True, slots=True)
class Trace:
    """Frames of a capture. Times are ns of each rank's globaltimer, int64.

    ``launches``: rank, block, warp, role, sm, launch, step, kernel, layer, ring, t0_cycles,
    begin_ns, end_ns, dur_ns (-1 where the closing is gone), clock_error_ns, words,
    lost_lines, complete, time_uncertain.

    ``records``: rank, block, warp, role, launch_row (row of ``launches``), step, kernel,
    layer, event, kind, cause, category, edge, slot (-1: none), begin_ns, dur_ns (0:
    instant, -1: a span whose end is not there), a0, a1 ... (-1: none; ``arg_names`` says
    what they are). Sorted by launch_row, begin_ns, longest first.

    ``host``: event, rank, step, begin_ns, end_ns (-1 where no clock samples tie the host
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
    """Decode the launches of some ranks, steps and rings; of all where None.

    Takes memory for every record: for whole captures there is
    :func:`megatrace.analysis.summarise`. Raises SchemaMismatch and FormatError where a
    table of events cannot be read; damage to lines and words is counted, never raised.
    """
    tables = capture.tables
    traced, spoke = ranks_of(capture), host_ranks(capture)
    chosen = [r for r in traced if ranks is None or r in ranks]
    loaded = [load_rank(capture, r, tables.get(r, EventTable("unknown", ()))) for r in chosen]
    clocks = {rank.rank: rank.clock for rank in loaded if rank.clock is not None}
    launches: list[pd.DataFrame] = []
    records: list[pd.DataFrame] = []
    loss = []
    base = 0
    for rank in loaded:
        frame, parts, malformed, uncertain = _decode_rank(rank, _wanted(rank, steps, rings), base)
        launches.append(frame)
        records += parts
        base += len(frame)
        loss.append(loss_row(rank, capture, malformed, uncertain))
    return Trace(
        launches=_stack(launches, empty_launches()),
        records=_stack(records, empty_records()),
        host=host_frame(capture, [r for r in spoke if ranks is None or r in ranks], clocks),
        loss=LossTable(tuple(loss), capture.complete, host_records_lost(capture)),
        clock=clocks,
        tables={rank.rank: rank.table for rank in loaded},
        devices={rank.rank: device_name(rank.facts.device) for rank in loaded},
        arg_names={e.name: own_args(e) for rank in loaded for e in rank.lut.events.values()},
        complete=capture.complete,
        problems=(*capture.problems, *(p for rank in loaded for p in rank.problems)),
    )


def _wanted(rank: Rank, steps: Collection[int] | None, rings: Collection[int] | None) -> Mask:
    launches = rank.scan.launches
    wanted = np.full(len(launches), rank.placed is not None)
    if steps is not None:
        wanted &= np.isin(launches.step, np.fromiter(steps, np.int64))
    if rings is not None:
        wanted &= np.isin(launches.ring, np.fromiter(rings, np.int64))
    return wanted


def _decode_rank(
    rank: Rank, wanted: Mask, base: int
) -> tuple[pd.DataFrame, list[pd.DataFrame], Malformed, int]:
    """The launch frame, record frames, and what was malformed or uncertain."""
    rows = np.flatnonzero(wanted)
    row_of_launch = np.full(len(wanted), -1, np.int64)
    row_of_launch[rows] = base + np.arange(len(rows))
    uncertain = np.zeros(len(wanted), bool)
    malformed = Malformed()
    width = rank.lut.max_args
    parts: list[pd.DataFrame] = []
    for piece in pieces(rank.source, rank.scan, rank.warps, wanted):
        found = decode_chunk(piece.chunk, rank.lut, rank.span_clock(piece.launches))
        malformed += found.malformed
        uncertain[piece.launches] = found.uncertain | rank.scan.launches.unchecked[piece.launches]
        columns = record_columns(rank, found, piece.launches, row_of_launch, width)
        parts.append(pd.DataFrame(columns))
    frame = empty_launches()
    if rank.placed is not None:
        frame = launch_frame(rank, rows, rank.placed, uncertain[rows])
    return frame, parts, malformed, int(uncertain.sum())


def _stack(parts: list[pd.DataFrame], empty: pd.DataFrame) -> pd.DataFrame:
    """Frames one below the other; categories are joined, missing columns are -1."""
    parts = [p for p in parts if len(p)]
    if not parts:
        return empty
    if len(parts) == 1:
        return parts[0].reset_index(drop=True)
    columns = list(dict.fromkeys(c for p in parts for c in p.columns))
    out: dict[str, object] = {}
    for name in columns:
        pieces_ = [p[name] if name in p else pd.Series(np.full(len(p), -1)) for p in parts]
        if isinstance(pieces_[0].dtype, pd.CategoricalDtype):
            out[name] = pd.api.types.union_categoricals(pieces_)
        else:
            out[name] = np.concatenate([p.to_numpy() for p in pieces_])
    return pd.DataFrame(out)
