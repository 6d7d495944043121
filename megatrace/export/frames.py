"""The frames of a Trace as plain arrays, one rank at a time, on the common axis."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from megatrace.analysis import Trace
from megatrace.analysis.numbers import numbers_of
from megatrace.export.slices import I4
from megatrace.export.timeline import Timeline
from megatrace.export.wire import I8, Mask
from megatrace.schema import Event, Kind


@dataclass(frozen=True, slots=True)
class RankLaunches:
    """Launches of one rank's warps, arrays of one length; times in ns of the axis.

    ``begin_ns`` and ``end_ns`` hold all the launch has said; without a closing, the last
    that any warp of it has. ``kernel`` indexes ``kernels``.
    """

    block: I4
    warp: I4
    sm: I4
    launch: I8
    step: I8
    layer: I4
    kernel: I4
    begin_ns: I8
    end_ns: I8
    kernels: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RankRecords:
    """Records of one rank by launch, then time; ``launch`` indexes :class:`RankLaunches`.

    ``event`` indexes ``events``; ``slot`` is -1 where there is none. Spans that never
    ended last until the end of their launch and are ``unfinished``. ``args`` is (most
    arguments of an event, records), -1 where an event has fewer.
    """

    launch: I8
    block: I4
    warp: I4
    event: I4
    slot: I8
    begin_ns: I8
    dur_ns: I8
    unfinished: Mask
    args: I8
    events: tuple[Event, ...]
    arg_names: tuple[tuple[str, ...], ...]

    def kind_mask(self, *kinds: Kind) -> Mask:
        """Which records are of an event of one of ``kinds``."""
        chosen = np.array([event.kind in kinds for event in self.events] or [False])
        return chosen[self.event] if len(self.event) else np.zeros(0, np.bool_)


@dataclass(frozen=True, slots=True)
class Rank:
    """One rank: what it ran, and what its warps said meanwhile.

    ``rank`` is its number, which says the process too; ``launch_rows`` and ``record_rows`` are
    the rows of the trace's frames that ``launches`` and ``records`` are.
    """

    rank: int
    device: str
    roles: Mapping[int, str]
    launches: RankLaunches
    records: RankRecords
    launch_rows: I8
    record_rows: I8


def ranks(trace: Trace, chosen: Mask, axis: Timeline) -> Iterator[Rank]:
    """Each rank with launches among the ``chosen`` rows of ``trace.launches``."""
    frame = trace.launches
    of_launch = numbers_of(frame)
    owner = trace.records["launch_row"].to_numpy()
    for rank in np.unique(of_launch[chosen]).tolist():
        rows = np.flatnonzero(chosen & (of_launch == rank))
        place = np.full(len(frame), -1, np.int64)
        place[rows] = np.arange(len(rows))
        mine = np.flatnonzero(place[owner] >= 0)
        launch = place[owner[mine]]
        if (launch[1:] < launch[:-1]).any():
            order = np.argsort(launch, kind="stable")
            mine, launch = mine[order], launch[order]
        yield _rank(trace, rank, rows, mine, launch, axis)


def _rank(trace: Trace, rank: int, rows: I8, records: I8, launch: I8, axis: Timeline) -> Rank:
    frame = trace.launches
    role, roles = _codes(frame["role"], rows)
    warp = _column(frame, "warp", rows, np.int32)
    warps, first = np.unique(warp, return_index=True)
    kernel, kernels = _codes(frame["kernel"], rows)
    begun, lasted, unfinished = _extents(trace.records, records, rank, axis)
    begin, end = _launch_extents(frame, rows, rank, axis, launch, begun, begun + lasted)
    until_launch_ends = np.maximum(end[launch] - begun, 0)
    events, event, arg_names, args = _events(trace, rank, records)
    return Rank(
        rank,
        trace.devices.get(rank, "unknown device"),
        dict(zip(warps.tolist(), (roles[i] for i in role[first]), strict=True)),
        RankLaunches(
            block=_column(frame, "block", rows, np.int32),
            warp=warp,
            sm=_column(frame, "sm", rows, np.int32),
            launch=_column(frame, "launch", rows),
            step=_column(frame, "step", rows),
            layer=_column(frame, "layer", rows, np.int32),
            kernel=kernel,
            begin_ns=begin,
            end_ns=end,
            kernels=kernels,
        ),
        RankRecords(
            launch=launch,
            block=_column(trace.records, "block", records, np.int32),
            warp=_column(trace.records, "warp", records, np.int32),
            event=event,
            slot=_column(trace.records, "slot", records),
            begin_ns=begun,
            dur_ns=np.where(unfinished, until_launch_ends, lasted),
            unfinished=unfinished,
            args=args,
            events=events,
            arg_names=arg_names,
        ),
        launch_rows=rows,
        record_rows=records,
    )


def _extents(records: pd.DataFrame, rows: I8, rank: int, axis: Timeline) -> tuple[I8, I8, Mask]:
    """Begin and duration on the axis, and which never ended (those last 0 here)."""
    begin = _column(records, "begin_ns", rows)
    dur = _column(records, "dur_ns", rows)
    unfinished = dur < 0
    on_axis = axis.gpu(rank, begin)
    end = axis.gpu(rank, begin + np.where(unfinished, 0, dur))
    return on_axis, end - on_axis, unfinished


def _launch_extents(
    frame: pd.DataFrame,
    rows: I8,
    rank: int,
    axis: Timeline,
    of_record: I8,
    record_begin: I8,
    record_end: I8,
) -> tuple[I8, I8]:
    """First and last sign of each launch row.

    Its records count too: they are placed by the SM's clock alone, which may put them
    past the closing by its error. Those of an uncertain time do not. Without a closing
    the last sign of any warp of the launch ends it.
    """
    begin = axis.gpu(rank, _column(frame, "begin_ns", rows))
    closing = _column(frame, "end_ns", rows)
    open_ = closing < 0
    end = np.where(open_, begin, axis.gpu(rank, closing))
    trusted = ~frame["time_uncertain"].to_numpy()[rows][of_record]
    np.minimum.at(begin, of_record[trusted], record_begin[trusted])
    np.maximum.at(end, of_record[trusted], record_end[trusted])
    _, group = np.unique(_column(frame, "launch", rows), return_inverse=True)
    last = np.full(int(group.max(initial=-1)) + 1, np.iinfo(np.int64).min)
    np.maximum.at(last, group, end)
    return begin, np.where(open_, last[group], end)


def _events(
    trace: Trace, rank: int, rows: I8
) -> tuple[tuple[Event, ...], I4, tuple[tuple[str, ...], ...], I8]:
    """Events of the rank's table, each record's index among them, arguments' names and values."""
    events = tuple(trace.tables[rank])
    place = {event.name: index for index, event in enumerate(events)}
    code, names = _codes(trace.records["event"], rows)
    index = np.array([place.get(name, 0) for name in names] or [0], np.int32)
    arg_names = tuple(tuple(trace.arg_names.get(event.name, ())) for event in events)
    width = max(map(len, arg_names), default=0)
    columns = [f"a{i}" for i in range(width) if f"a{i}" in trace.records]
    args = np.array([_column(trace.records, name, rows) for name in columns], np.int64).reshape(
        len(columns), len(rows)
    )
    return events, index[code], arg_names, args


def _column(
    frame: pd.DataFrame, name: str, rows: I8, dtype: type[np.signedinteger] = np.int64
) -> NDArray[np.signedinteger]:
    return frame[name].to_numpy()[rows].astype(dtype)


def _codes(column: pd.Series, rows: I8) -> tuple[I4, tuple[str, ...]]:
    """A categorical column as indices and the strings they stand for."""
    category = column.astype("category").cat
    codes = category.codes.to_numpy()[rows].astype(np.int32)
    return codes, tuple(map(str, category.categories))
