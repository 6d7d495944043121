"""What the views share: rows by category, numbers for keys, the launch that a row belongs to."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from megatrace.analysis.lines import I8, Mask, Rows
from megatrace.analysis.numbers import BOTH, numbers_of
from megatrace.analysis.trace import Trace
from megatrace.schema import Cause, Kind


def is_one_of(column: pd.Series[Any], wanted: Collection[str]) -> Mask:
    """Which rows of a category column say one of ``wanted``."""
    codes = column.cat.codes.to_numpy()
    found = np.zeros(len(codes), bool)
    for code, name in enumerate(column.cat.categories):
        if str(name) in wanted:
            found |= codes == code
    return found


def codes_by(column: pd.Series[Any], numbers: Mapping[str, int], otherwise: int, rows: Rows) -> I8:
    """``numbers`` of what ``rows`` of a category column say."""
    names = [str(name) for name in column.cat.categories]
    lut = np.array([*(numbers.get(name, otherwise) for name in names), otherwise], np.int64)
    found: I8 = lut.take(column.cat.codes.to_numpy()[rows].astype(np.intp))
    return found


_TABLE = 1 << 22
"""Combinations that are numbered by a table even where the rows are few."""


def number_keys(*columns: NDArray[Any]) -> I8:
    """A number from 0 for each distinct combination of the columns' values, in their order.

    Columns [n] of whole numbers; without a sort where the combinations are not many more
    than the rows.
    """
    number = np.zeros(len(columns[0]), np.int64)
    if not len(number):
        return number
    many = 1
    for column in columns:
        low = int(column.min())
        wide = int(column.max()) - low + 1
        if wide * many > max(_TABLE, 4 * len(number)):
            values, place = np.unique(column, return_inverse=True)
            wide, at = len(values), place.astype(np.int64)
        else:
            at = column.astype(np.int64) - low
        number, many = _dense(number * wide + at, many * wide)
    return number


def _dense(number: I8, many: int) -> tuple[I8, int]:
    """Numbers below ``many``, those that do not occur closed up."""
    if many > max(_TABLE, 4 * len(number)):
        values, place = np.unique(number, return_inverse=True)
        return place.astype(np.int64), len(values)
    there = np.zeros(many, bool)
    there[number] = True
    place = np.cumsum(there) - 1
    return place[number], int(place[-1]) + 1


def of_launch(trace: Trace, name: str, rows: Rows) -> NDArray[Any]:
    """Column ``name`` of the launches that rows of ``trace.records`` are of."""
    found: NDArray[Any] = trace.launches[name].to_numpy()[
        trace.records["launch_row"].to_numpy()[rows]
    ]
    return found


def numbers_at(trace: Trace, rows: Rows) -> I8:
    """Number of rank and process of rows of ``trace.records``, as ``trace.clock`` is keyed by."""
    found: I8 = numbers_of(trace.launches)[trace.records["launch_row"].to_numpy()[rows]]
    return found


def launch_columns(trace: Trace, rows: Rows) -> dict[str, Any]:
    """Rank, process, launch_no, step, kernel and layer of rows of ``trace.launches``."""
    launches = trace.launches
    return {
        **{name: launches[name].to_numpy()[rows] for name in BOTH},
        "launch_no": launches["launch"].to_numpy()[rows],
        "step": launches["step"].to_numpy()[rows],
        "kernel": launches["kernel"].array.take(rows),
        "layer": launches["layer"].to_numpy()[rows],
    }


def warp_columns(trace: Trace, rows: Rows) -> dict[str, Any]:
    """Block, sm, warp and role of rows of ``trace.launches``."""
    launches = trace.launches
    return {
        "block": launches["block"].to_numpy()[rows],
        "sm": launches["sm"].to_numpy()[rows],
        "warp": launches["warp"].to_numpy()[rows],
        "role": launches["role"].array.take(rows),
    }


def edge_columns(trace: Trace, rows: Rows) -> dict[str, Any]:
    """Event, edge and slot of rows of ``trace.records``."""
    records = trace.records
    return {
        "event": records["event"].array.take(rows),
        "edge": records["edge"].array.take(rows),
        "slot": records["slot"].to_numpy()[rows],
    }


def edges_ended_by(trace: Trace, kind: Kind) -> set[str]:
    """Names of the edges that an event of ``kind`` ends, in the tables of any rank."""
    return {e.edge for table in trace.tables.values() for e in table if e.kind is kind and e.edge}


def causes_of_edges(trace: Trace) -> dict[str, Cause]:
    """Why the waiters of each edge wait."""
    return {
        e.edge: e.cause
        for table in trace.tables.values()
        for e in table
        if e.kind is Kind.WAIT and e.edge and e.cause
    }


def sound_launches(trace: Trace) -> Mask:
    """Which rows of ``trace.launches`` have ended, lost no line and are certain in time."""
    launches = trace.launches
    sound: Mask = launches["complete"].to_numpy() & (launches["lost_lines"].to_numpy() == 0)
    sound &= ~launches["time_uncertain"].to_numpy()
    return sound
