"""Data frames out of decoded arrays."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from megatrace.analysis.launches import launch_numbers
from megatrace.analysis.lines import I8, Rows
from megatrace.analysis.rank import UNPLACED, Placed, Rank, host_records
from megatrace.analysis.server import STAGES, STEP_ARGS
from megatrace.analysis.spans import pair
from megatrace.analysis.tables import CODES, own_args
from megatrace.analysis.words import Records
from megatrace.capture.reader import Capture
from megatrace.clock import ClockModel
from megatrace.errors import ClockError
from megatrace.schema import HOST, Kind


def launch_frame(
    rank: Rank, rows: Rows, placed: Placed, uncertain: NDArray[np.bool_]
) -> pd.DataFrame:
    """Launches at ``rows`` of one rank; ``uncertain`` is of these rows."""
    launches = rank.scan.launches
    ring = launches.ring[rows]
    begin, end = placed.begin_ns[rows], placed.end_ns[rows]
    return pd.DataFrame({
        "rank": np.full(len(rows), rank.rank, np.uint16),
        "block": ring // rank.warps,
        "warp": ring % rank.warps,
        "role": _role(rank, ring),
        "sm": launches.sm[rows],
        "launch": launch_numbers(launches, placed.begin_ns)[rows],
        "step": launches.step[rows],
        "kernel": _kernel(rank, launches.kernel[rows]),
        "layer": launches.layer[rows],
        "ring": ring,
        "t0_cycles": launches.clock[rows],
        "begin_ns": begin,
        "end_ns": end,
        "dur_ns": np.where(end >= 0, end - begin, -1),
        "clock_error_ns": placed.error_ns[rows],
        "words": launches.words[rows],
        "lost_lines": launches.lost_lines[rows],
        "complete": launches.complete[rows],
        "time_uncertain": uncertain,
    })  # fmt: skip


_LAUNCH_TYPES = {
    "rank": "uint16", "block": "int32", "warp": "int32", "role": "category", "sm": "int32",
    "launch": "int64", "step": "int64", "kernel": "category", "layer": "int32",
    "ring": "int32", "t0_cycles": "int64", "begin_ns": "int64", "end_ns": "int64",
    "dur_ns": "int64", "clock_error_ns": "float64", "words": "int64", "lost_lines": "int64",
    "complete": "bool", "time_uncertain": "bool",
}  # fmt: skip
_RECORD_TYPES = {
    "rank": "uint16", "block": "int32", "warp": "int32", "role": "category",
    "launch_row": "int64", "step": "int64", "kernel": "category", "layer": "int32",
    "event": "category", "kind": "category", "cause": "category", "category": "category",
    "edge": "category", "slot": "int64", "begin_ns": "int64", "dur_ns": "int64",
}  # fmt: skip

_HOST_TYPES = {
    "event": "str", "rank": "uint16", "step": "int64", "begin_ns": "int64", "end_ns": "int64",
    "host_begin_ns": "int64", "host_end_ns": "int64",
    **dict.fromkeys(STEP_ARGS, "int64"), "text": "str",
}  # fmt: skip


def record_columns(
    rank: Rank, records: Records, launch: Rows, row_of_launch: I8, width: int
) -> dict[str, Any]:
    """Columns of one chunk's records, spans paired, sorted by launch and time."""
    assert rank.placed is not None
    spans = pair(records, rank.lut)
    cycles = records.dur.copy()
    cycles[spans.begin] = np.maximum(records.t[spans.end] - records.t[spans.begin], 0)
    keep = np.ones(len(records.at), bool)
    keep[spans.end] = False
    keep[spans.closed] = False
    unfinished = np.zeros(len(records.at), bool)
    unfinished[spans.open] = True
    rows = np.flatnonzero(keep)
    order = np.lexsort((-cycles[rows], records.t[rows], records.launch[rows]))
    rows = rows[order]
    owner = launch[records.launch[rows]]
    rate = rank.placed.ns_per_cycle[owner]
    launches = rank.scan.launches
    event = records.event[rows]
    start, since = rank.placed.begin_ns[owner], records.t[rows]
    begin = start + np.rint(since * rate).astype(np.int64)
    # Ends are rounded as begins are: what abuts in cycles does in ns.
    dur = start + np.rint((since + cycles[rows]) * rate).astype(np.int64) - begin
    ring = launches.ring[owner]
    columns: dict[str, Any] = {
        "rank": np.full(len(rows), rank.rank, np.uint16),
        "block": ring // rank.warps,
        "warp": ring % rank.warps,
        "role": _role(rank, ring),
        "launch_row": row_of_launch[owner],
        "step": launches.step[owner],
        "kernel": _kernel(rank, launches.kernel[owner]),
        "layer": launches.layer[owner],
        **_event_columns(rank, event),
        "slot": _slots(rank, records, rows),
        "begin_ns": begin,
        "dur_ns": np.where(unfinished[rows], -1, dur),
    }
    columns.update(zip(_names(width), _args(rank, records, rows, width), strict=True))
    return columns


def empty_launches() -> pd.DataFrame:
    """The frame of no launches."""
    return _empty(_LAUNCH_TYPES)


def empty_records() -> pd.DataFrame:
    """The frame of no records."""
    return _empty(_RECORD_TYPES)


def _empty(types: dict[str, str]) -> pd.DataFrame:
    return pd.DataFrame({name: pd.Series([], dtype=kind) for name, kind in types.items()})


def _names(width: int) -> list[str]:
    return [f"a{i}" for i in range(width)]


def _role(rank: Rank, ring: NDArray[np.int32]) -> pd.Categorical:
    return _labels(np.asarray(rank.roles, object)[np.arange(rank.warps)], ring % rank.warps)


def _kernel(rank: Rank, kernel: NDArray[np.int32]) -> pd.Categorical:
    values, index = np.unique(kernel, return_inverse=True)
    return _labels(np.array([rank.kernel_name(int(v)) for v in values], object), index)


def _labels(name_of: NDArray[Any], index: NDArray[Any]) -> pd.Categorical:
    """Categories of ``name_of[index]``; equal names are one."""
    names = list(dict.fromkeys(name_of.tolist()))
    code = np.array([names.index(n) for n in name_of.tolist()], np.int32)
    codes: NDArray[np.int32] = code[index]
    labels: pd.Categorical = pd.Categorical.from_codes(codes, pd.Index(names, dtype=object))
    return labels


def _event_columns(rank: Rank, event: Rows) -> dict[str, pd.Categorical]:
    def per_event(value: Any) -> pd.Categorical:
        name_of = np.full(CODES, "", object)
        for one in rank.lut.events.values():
            name_of[one.id] = value(one)
        return _labels(name_of, event)

    return {
        "event": per_event(lambda e: e.name),
        "kind": per_event(lambda e: e.kind.value),
        "cause": per_event(lambda e: e.cause.value if e.cause else ""),
        "category": per_event(lambda e: e.category),
        "edge": per_event(lambda e: e.edge),
    }


def _slots(rank: Rank, records: Records, rows: Rows) -> I8:
    out = np.full(len(rows), -1, np.int64)
    where = rank.lut.slot_arg[records.event[rows]]
    for index in (0, 1):
        mine = np.flatnonzero(where == index)
        out[mine] = records.arg(rows[mine], index)
    return out


def _args(rank: Rank, records: Records, rows: Rows, width: int) -> list[I8]:
    """The events' own arguments, [width] arrays; -1 where an event has fewer."""
    first, many = np.zeros(CODES, np.int64), np.zeros(CODES, np.int64)
    for event in rank.lut.events.values():
        own = own_args(event)
        many[event.id] = len(own)
        first[event.id] = 0 if event.kind is Kind.META else len(event.all_args) - len(own)
    code = records.event[rows]
    out = []
    for i in range(width):
        values = np.full(len(rows), -1, np.int64)
        mine = np.flatnonzero(many[code] > i)
        at = records.at[rows[mine]] + 1 + first[code[mine]] + i
        values[mine] = (records.words[at] & np.uint32(0x7FFFFFFF)).astype(np.int64)
        out.append(values)
    return out


def host_frame(
    capture: Capture, ranks: Iterable[int], clocks: Mapping[int, ClockModel]
) -> pd.DataFrame:
    """Host events of the ranks, on each rank's globaltimer where clock samples allow."""
    names = {event.id: event.name for event in HOST}
    parts = []
    for rank in ranks:
        rows = host_records(capture, rank)
        rows = rows[~np.isin(rows["event"], UNPLACED)]
        begin, end = rows["begin_ns"].astype(np.int64), rows["end_ns"].astype(np.int64)
        try:
            if rank not in clocks:
                raise ClockError(f"rank {rank} has no clock")
            placed = clocks[rank].from_host_ns(begin), clocks[rank].from_host_ns(end)
        except ClockError:
            placed = np.full(len(rows), -1, np.int64), np.full(len(rows), -1, np.int64)
        has = np.isin(rows["event"], list(STAGES))
        columns: dict[str, Any] = {
            "event": [names.get(int(e), f"event {e}") for e in rows["event"]],
            "rank": np.full(len(rows), rank, np.uint16),
            "step": rows["step"].astype(np.int64),
            "begin_ns": placed[0],
            "end_ns": placed[1],
            "host_begin_ns": begin,
            "host_end_ns": end,
        }
        for i, name in enumerate(STEP_ARGS):
            columns[name] = np.where(has, rows["values"][:, i], -1)
        columns["text"] = [
            bytes(t)[:n].decode("utf-8", "replace")
            for t, n in zip(rows["text"], rows["text_bytes"], strict=True)
        ]
        parts.append(pd.DataFrame(columns))
    if not parts:
        return _empty(_HOST_TYPES)
    return pd.concat(parts, ignore_index=True)
