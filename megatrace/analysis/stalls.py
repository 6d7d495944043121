"""Where a warp's time of a launch goes: stall classes that add up to the launch's wall time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from megatrace.analysis.columns import (
    BEFORE_START,
    CLASSES,
    DATA,
    INPUT,
    NOT_WAITING,
    PEER,
    SPACE,
    STALL_CLASSES,
    TAIL,
    UNKNOWN,
)
from megatrace.analysis.lines import HANG, I8, Mask, Rows
from megatrace.analysis.pick import (
    codes_by,
    is_one_of,
    launch_columns,
    numbers_at,
    sound_launches,
    warp_columns,
)
from megatrace.analysis.trace import Trace
from megatrace.analysis.walls import last_known, walls_of
from megatrace.schema import CORE, Cause, Kind

NAMES: tuple[str, ...] = tuple(CLASSES)
CLASS_OF_CAUSE: dict[str, int] = {
    Cause.DATA: NAMES.index(DATA),
    Cause.INPUT: NAMES.index(INPUT),
    Cause.PEER: NAMES.index(PEER),
    Cause.SPACE: NAMES.index(SPACE),
}
_BEFORE, _NOT_WAITING, _TAIL, _UNKNOWN = map(
    NAMES.index, (BEFORE_START, NOT_WAITING, TAIL, UNKNOWN)
)
_HANG = next(event.name for event in CORE if event.id == HANG)


@dataclass(frozen=True, slots=True)
class Blocked:
    """Times in which warps waited, by launch and time, none overlapping; arrays [n].

    ``launch`` is the row of ``Trace.launches``, ``row`` that of ``Trace.records``, ``code``
    the place in :data:`NAMES`.
    """

    row: Rows
    launch: Rows
    begin_ns: I8
    end_ns: I8
    code: I8


def blocked(trace: Trace) -> Blocked:
    """The stalls and waits that blocked, and the hangs that nothing ended."""
    records = trace.records
    rows, launch, code = _waits(trace)
    begin = records["begin_ns"].to_numpy()[rows]
    end = begin + records["dur_ns"].to_numpy()[rows]
    own_end = trace.launches["end_ns"].to_numpy()[launch]
    begin = np.maximum(begin, trace.launches["begin_ns"].to_numpy()[launch])
    end = np.where(own_end >= 0, np.minimum(end, own_end), end)
    begin = _after_the_one_before(begin, end, launch)
    return Blocked(rows, launch, begin, np.maximum(begin, end), code)


def _waits(trace: Trace) -> tuple[Rows, Rows, I8]:
    """What blocked: rows of records, rows of launches, places in :data:`NAMES`."""
    records = trace.records
    waits = is_one_of(records["kind"], (Kind.STALL, Kind.WAIT))
    waits &= records["dur_ns"].to_numpy() > 0
    rows = np.flatnonzero(waits)
    code = codes_by(records["cause"], CLASS_OF_CAUSE, _UNKNOWN, rows)
    hung = _hangs(trace)
    if len(hung):
        code = np.concatenate([code, _hang_codes(trace, hung)])
        rows = np.concatenate([rows, hung])
        order = np.argsort(rows, kind="stable")  # records are by launch and time
        rows, code = rows[order], code[order]
    return rows, records["launch_row"].to_numpy().take(rows), code


def _hangs(trace: Trace) -> Rows:
    """Hang records of launches that never ended: the wait itself left no record."""
    rows = np.flatnonzero(is_one_of(trace.records["event"], (_HANG,)))
    launch = trace.records["launch_row"].to_numpy()[rows]
    hung: Rows = rows[~trace.launches["complete"].to_numpy()[launch]]
    return hung


def _hang_codes(trace: Trace, rows: Rows) -> I8:
    """The class of the wait that each hang is of."""
    causes = {
        (rank, event.id): CLASS_OF_CAUSE[event.cause]
        for rank, table in trace.tables.items()
        for event in table
        if event.cause
    }
    rank = numbers_at(trace, rows).tolist()
    event = trace.records["a0"].to_numpy()[rows].tolist()
    found = [causes.get(key, _UNKNOWN) for key in zip(rank, event, strict=True)]
    return np.array(found, np.int64)


def _after_the_one_before(begin: I8, end: I8, launch: Rows) -> I8:
    """A warp waits for one thing at a time: what damage made overlap begins later."""
    if not len(begin):
        return begin
    overlaps = (begin[1:] < end[:-1]) & (launch[1:] == launch[:-1])
    if not overlaps.any():
        return begin
    latest = pd.Series(end).groupby(launch).cummax().to_numpy()
    before = np.append(0, latest[:-1])
    before[np.append(True, launch[1:] != launch[:-1])] = 0
    later: I8 = np.maximum(begin, before)
    return later


def class_times(trace: Trace) -> tuple[I8, I8]:
    """Time (ns) of each class of each row of ``Trace.launches`` [L, C], and its launch's wall [L].

    Rows add up to the wall exactly. Where no warp's end is known the wall ends with the
    last record of any.
    """
    launches, walls = trace.launches, walls_of(trace)
    begin, end = launches["begin_ns"].to_numpy(), launches["end_ns"].to_numpy()
    of = walls.of_launch
    wall_end = _known_ends(trace, of, walls.end_ns)[of]
    wall_begin = walls.begin_ns[of]
    own_begin = np.minimum(begin, wall_end)
    own_end = np.where(end >= 0, end, wall_end)
    inside = own_end - own_begin
    times = _waited(trace, own_end, inside)
    sound = sound_launches(trace)
    rest = inside - times.sum(axis=1)
    times[:, _NOT_WAITING] += np.where(sound, rest, 0)
    times[:, _UNKNOWN] += np.where(sound, 0, rest)
    times[:, _BEFORE] = own_begin - wall_begin
    times[:, _TAIL] = wall_end - own_end
    return times, wall_end - wall_begin


def _waited(trace: Trace, own_end: I8, inside: I8) -> I8:
    """Time of each cause of each launch of a warp [L, C], never more than ``inside`` [L].

    How long a wait was is exact, when it was is put together from differences: durations
    are summed as they are, and only where they cannot be true cut to what fits.
    """
    rows, launch, code = _waits(trace)
    many = len(inside)
    dur = trace.records["dur_ns"].to_numpy().take(rows)
    uncertain = trace.launches["time_uncertain"].to_numpy()
    sums = _sums(launch, code, dur, many)
    told = sums.sum(axis=1) <= inside
    if told.all() and not uncertain.any():
        return sums
    if not told.all():
        waits = blocked(trace)
        fits = np.maximum(np.minimum(waits.end_ns, own_end[launch]) - waits.begin_ns, 0)
        dur = np.where(told[launch], dur, fits)
    if uncertain.any():
        dur = np.where(uncertain[launch], 0, dur)
    return _sums(launch, code, dur, many)


def _known_ends(trace: Trace, of: Rows, end: I8) -> I8:
    """[W] the end of each launch of the GPU, or the last that is known of it."""
    if not len(end) or end.min() >= 0:
        return end
    known = end.copy()
    np.maximum.at(known, of, last_known(trace))
    return np.where(end >= 0, end, known)


def _sums(launch: Rows, code: I8, dur: I8, count: int) -> I8:
    cells = np.bincount(launch * len(NAMES) + code, dur, count * len(NAMES))
    return cells.astype(np.int64).reshape(count, len(NAMES))


def stall_classes(trace: Trace) -> pd.DataFrame:
    """A row a warp, launch and class that is not 0; columns as ``STALL_CLASSES`` says."""
    if not len(trace.launches):
        return STALL_CLASSES.empty()
    times, wall = class_times(trace)
    there: Mask = times > 0
    rows, code = np.nonzero(there)
    dur = times[rows, code]
    return STALL_CLASSES.frame(
        {
            **launch_columns(trace, rows),
            **warp_columns(trace, rows),
            "class": pd.Categorical.from_codes(code.astype(np.int8), pd.Index(NAMES, dtype=object)),
            "dur_ns": dur,
            "share": dur / np.maximum(wall[rows], 1),
        }
    )
