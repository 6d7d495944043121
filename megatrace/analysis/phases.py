"""Time per phase of a launch, over its warps, and how evenly the SMs share it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from megatrace.analysis.columns import IMBALANCE, PHASE_TIMES
from megatrace.analysis.lines import I8, Rows
from megatrace.analysis.pick import is_one_of, launch_columns, number_keys
from megatrace.analysis.stalls import Blocked, blocked
from megatrace.analysis.trace import Trace
from megatrace.analysis.walls import walls_of
from megatrace.schema import Kind

_TIME_BITS = 63


@dataclass(frozen=True, slots=True)
class Spans:
    """Spans with a known end and how long their warp waited in them; arrays [n]."""

    row: Rows
    launch: Rows
    begin_ns: I8
    end_ns: I8
    wait_ns: I8


def spans_of(trace: Trace) -> Spans:
    """All spans that ended, with the waiting inside them."""
    records = trace.records
    dur = records["dur_ns"].to_numpy()
    rows = np.flatnonzero(is_one_of(records["kind"], (Kind.SPAN,)) & (dur >= 0))
    launch = records["launch_row"].to_numpy().take(rows)
    begin = records["begin_ns"].to_numpy().take(rows)
    end = begin + dur.take(rows)
    return Spans(rows, launch, begin, end, _waited(trace, blocked(trace), launch, begin, end))


def _waited(trace: Trace, waits: Blocked, launch: Rows, begin: I8, end: I8) -> I8:
    """How long (ns) the warps of launches [n] waited in [begin, end): of a running sum."""
    if not len(waits.row):
        return np.zeros(len(launch), np.int64)
    start = trace.launches["begin_ns"].to_numpy()
    room = max(1, _TIME_BITS - len(start).bit_length())
    most = (1 << room) - 1

    def place(rows: Rows, ns: I8) -> I8:
        # Damage can put a record anywhere: it stays within its launch.
        found: I8 = (rows << room) | np.clip(ns - start.take(rows), 0, most)
        return found

    begins, ends = place(waits.launch, waits.begin_ns), place(waits.launch, waits.end_ns)
    ends = np.append(0, ends)
    total = np.append(0, np.cumsum(waits.end_ns - waits.begin_ns))

    def by(when: I8) -> I8:
        at = place(launch, when)
        begun = np.searchsorted(begins, at)  # begun before `when`; the last may still go on
        left: I8 = total.take(begun) - np.maximum(ends.take(begun) - at, 0)
        return left

    return by(end) - by(begin)


@dataclass(frozen=True, slots=True)
class _Cells:
    """Spans in groups; ``of`` [n] is the group of each, the other arrays are [G]."""

    of: I8
    first: Rows
    """Its first span."""
    busy_ns: I8
    wait_ns: I8

    @classmethod
    def by(cls, spans: Spans, key: I8) -> _Cells:
        many = int(key.max()) + 1
        first = np.empty(many, np.intp)
        first[key[::-1]] = np.arange(len(key))[::-1]  # the last one written stays
        spent = np.bincount(key, spans.end_ns - spans.begin_ns, many).astype(np.int64)
        waited = np.bincount(key, spans.wait_ns, many).astype(np.int64)
        return cls(key, first, spent - waited, waited)


def phase_times(trace: Trace) -> pd.DataFrame:
    """A row a launch and span event; columns as ``PHASE_TIMES`` says."""
    spans = spans_of(trace)
    if not len(spans.row):
        return PHASE_TIMES.empty()
    wall = walls_of(trace).of_launch[spans.launch]
    event = trace.records["event"].cat.codes.to_numpy()[spans.row]
    cells = _Cells.by(spans, number_keys(wall, event))
    begin = spans.begin_ns[cells.first].copy()
    end = spans.end_ns[cells.first].copy()
    np.minimum.at(begin, cells.of, spans.begin_ns)
    np.maximum.at(end, cells.of, spans.end_ns)
    of_warp = number_keys(spans.launch, event)
    once = np.empty(int(of_warp.max()) + 1, np.int64)
    once[of_warp] = cells.of
    order = np.lexsort((begin, wall[cells.first]))
    first = cells.first[order]
    return PHASE_TIMES.frame(
        {
            **launch_columns(trace, spans.launch[first]),
            "phase": trace.records["event"].array.take(spans.row[first]),
            "begin_ns": begin[order],
            "end_ns": end[order],
            "dur_ns": (end - begin)[order],
            "busy_ns": cells.busy_ns[order],
            "wait_ns": cells.wait_ns[order],
            "warps": np.bincount(once)[order],
        }
    )


def imbalance(trace: Trace) -> pd.DataFrame:
    """A row a launch, span event and SM; columns as ``IMBALANCE`` says."""
    spans = spans_of(trace)
    if not len(spans.row):
        return IMBALANCE.empty()
    wall = walls_of(trace).of_launch[spans.launch]
    event = trace.records["event"].cat.codes.to_numpy()[spans.row]
    sm = trace.launches["sm"].to_numpy()[spans.launch]
    phase = number_keys(wall, event)
    cells = _Cells.by(spans, number_keys(phase, sm))
    busy, first = cells.busy_ns, cells.first
    median = pd.Series(busy).groupby(phase[first]).transform("median").to_numpy()
    return IMBALANCE.frame(
        {
            **launch_columns(trace, spans.launch[first]),
            "phase": trace.records["event"].array.take(spans.row[first]),
            "sm": sm[first],
            "busy_ns": busy,
            "over_median": np.divide(busy, median, out=np.zeros(len(busy)), where=median > 0),
        }
    )
