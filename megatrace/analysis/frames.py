"""Data frames out of decoded arrays."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from megatrace.analysis.launches import launch_numbers
from megatrace.analysis.lines import I8, Rows
from megatrace.analysis.numbers import rank_columns
from megatrace.analysis.rank import UNPLACED, Placed, Rank, host_records
from megatrace.analysis.server import STAGES, STEP_ARGS
from megatrace.capture.reader import Capture
from megatrace.clock import ClockModel
from megatrace.errors import ClockError
from megatrace.schema import HOST
from megatrace.schema.processes import rank_text


def launch_frame(
    rank: Rank,
    rows: Rows,
    placed: Placed,
    uncertain: NDArray[np.bool_],
    numbers: I8 | None = None,
) -> pd.DataFrame:
    """Launches at ``rows`` of one rank; ``uncertain`` is of these rows.

    ``numbers`` [L] of all its launches, as :func:`launch_numbers` gives them, where known.
    """
    launches = rank.scan.launches
    if numbers is None:
        numbers = launch_numbers(launches, placed.begin_ns)
    ring = launches.ring[rows]
    begin, end = placed.begin_ns[rows], placed.end_ns[rows]
    return pd.DataFrame({
        **rank_columns(rank.rank, len(rows)),
        "block": ring // rank.warps,
        "warp": ring % rank.warps,
        "role": _role(rank, ring),
        "sm": launches.sm[rows],
        "launch": numbers[rows],
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
    "rank": "uint16", "process": "uint16", "block": "int32", "warp": "int32",
    "role": "category", "sm": "int32",
    "launch": "int64", "step": "int64", "kernel": "category", "layer": "int32",
    "ring": "int32", "t0_cycles": "int64", "begin_ns": "int64", "end_ns": "int64",
    "dur_ns": "int64", "clock_error_ns": "float64", "words": "int64", "lost_lines": "int64",
    "complete": "bool", "time_uncertain": "bool",
}  # fmt: skip
_RECORD_TYPES = {
    "rank": "uint16", "process": "uint16", "block": "int32", "warp": "int32",
    "role": "category",
    "launch_row": "int64", "step": "int64", "kernel": "category", "layer": "int32",
    "event": "category", "kind": "category", "cause": "category", "category": "category",
    "edge": "category", "slot": "int64", "begin_ns": "int64", "dur_ns": "int64",
}  # fmt: skip

_HOST_TYPES = {
    "event": "str", "rank": "uint16", "process": "uint16", "step": "int64",
    "begin_ns": "int64", "end_ns": "int64",
    "host_begin_ns": "int64", "host_end_ns": "int64",
    **dict.fromkeys(STEP_ARGS, "int64"), "text": "str",
}  # fmt: skip


def empty_launches() -> pd.DataFrame:
    """The frame of no launches."""
    return _empty(_LAUNCH_TYPES)


def empty_records() -> pd.DataFrame:
    """The frame of no records."""
    return _empty(_RECORD_TYPES)


def empty_host() -> pd.DataFrame:
    """The frame of no host events."""
    return _empty(_HOST_TYPES)


def _empty(types: dict[str, str]) -> pd.DataFrame:
    return pd.DataFrame({name: pd.Series([], dtype=kind) for name, kind in types.items()})


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
                raise ClockError(f"rank {rank_text(rank)} has no clock")
            placed = clocks[rank].from_host_ns(begin), clocks[rank].from_host_ns(end)
        except ClockError:
            placed = np.full(len(rows), -1, np.int64), np.full(len(rows), -1, np.int64)
        has = np.isin(rows["event"], list(STAGES))
        columns: dict[str, Any] = {
            "event": [names.get(int(e), f"event {e}") for e in rows["event"]],
            **rank_columns(rank, len(rows)),
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
        return empty_host()
    return pd.concat(parts, ignore_index=True)
