"""The records of some warps in one launch of a capture, as lanes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from megatrace.analysis import decode
from megatrace.schema import Kind
from megatrace.tui.lanes import Lane, LaneEvent, Lanes

if TYPE_CHECKING:
    from megatrace.capture.reader import Capture
    from megatrace.tui.flat import Flat, StepOf

I8 = NDArray[np.int64]


def lanes_of(
    capture: Capture,
    flat: Flat,
    rank: int,
    layer: tuple[str, int],
    step: StepOf | None,
    *,
    sm: int,
) -> Lanes | None:
    """All warps of the block that was on ``sm``; of the first such step where None."""
    found = _launch(flat, rank, layer, step, sm)
    if found is None:
        return None
    at, number, block = found
    warps = flat.warps_of[at]
    rings = [block * warps + warp for warp in range(warps)]
    title = f"SM {sm}, block {block}"
    return _lanes(capture, rank, layer, number, rings, title, by="warp")


def role_lanes_of(
    capture: Capture,
    flat: Flat,
    rank: int,
    layer: tuple[str, int],
    step: StepOf | None,
    *,
    role: str,
) -> Lanes | None:
    """The first warp of ``role`` on every SM, in one launch."""
    found = _launch(flat, rank, layer, step, None)
    facts = capture.rings.get(rank)
    if found is None or facts is None:
        return None
    at, number, _ = found
    warps = flat.warps_of[at]
    names = [facts.roles[w] if w < len(facts.roles) else f"warp {w}" for w in range(warps)]
    if role not in names:
        return None
    first = names.index(role)
    rings = [block * warps + first for block in range(facts.blocks)]
    title = f"{role}, warp {first} of each SM"
    return _lanes(capture, rank, layer, number, rings, title, by="sm")


def _launch(
    flat: Flat, rank: int, layer: tuple[str, int], step: StepOf | None, sm: int | None
) -> tuple[int, int, int] | None:
    """Place of the rank, step id and block of the first launch that fits."""
    if rank not in flat.ranks or layer not in flat.layers:
        return None
    at = flat.ranks.index(rank)
    warps = flat.warps
    fits = (warps.rank == at) & (warps.layer == flat.layers.index(layer))
    if step is not None:
        fits &= flat.within(warps.rank, warps.step, step)
    if sm is not None:
        fits &= warps.sm == sm
    rows = np.flatnonzero(fits)
    if not len(rows):
        return None
    row = rows[np.argmin(warps.begin[rows])]
    return at, int(warps.step[row]), int(warps.block[row])


def _lanes(
    capture: Capture,
    rank: int,
    layer: tuple[str, int],
    step: int,
    rings: Sequence[int],
    title: str,
    *,
    by: str,
) -> Lanes | None:
    trace = decode(capture, ranks=[rank], steps=[step], rings=rings)
    launches = trace.launches
    kernel, number = layer
    mine = launches[(launches["kernel"] == kernel) & (launches["layer"] == number)]
    if mine.empty:
        return None
    # A layer may be launched more than once in a step, and steps without ids are all one.
    mine = mine[mine["launch"] == mine["launch"].min()].sort_values([by, "warp"])
    origin = int(mine["begin_ns"].min())
    records = trace.records[trace.records["launch_row"].isin(mine.index)]
    events, code = _events(records)
    lanes = [_lane(row, records, code, origin, by) for row in mine.itertuples()]
    ends = [lane.end_ns for lane in lanes]
    ends += [int((lane.begin + np.maximum(lane.dur, 0)).max(initial=0)) for lane in lanes]
    return Lanes(
        title=title,
        step=step,
        lanes=tuple(lanes),
        events=events,
        length_ns=max(1, *ends),
        error_ns=float(mine["clock_error_ns"].max()),
    )


def _events(records: pd.DataFrame) -> tuple[tuple[LaneEvent, ...], I8]:
    """The different events, and which each record is."""
    columns = [records[name].astype(str).to_numpy() for name in ("event", "kind", "cause")]
    places: dict[tuple[str, str, str], int] = {}
    code = [places.setdefault(key, len(places)) for key in zip(*columns, strict=True)]
    found = []
    for name, kind, cause in places:
        stalls = kind in (Kind.STALL.value, Kind.WAIT.value)
        found.append(LaneEvent(name, kind, cause if stalls else ""))
    return tuple(found), np.array(code, np.int64)


def _lane(row: object, records: pd.DataFrame, code: I8, origin: int, by: str) -> Lane:
    launch = row.Index  # type: ignore[attr-defined]
    own = (records["launch_row"] == launch).to_numpy()
    part = records[own]
    role, warp, sm = row.role, row.warp, row.sm  # type: ignore[attr-defined]
    end = int(row.end_ns)  # type: ignore[attr-defined]
    return Lane(
        label=f"{warp:>2} {role}" if by == "warp" else f"SM {sm:>3}",
        role=str(role),
        begin_ns=int(row.begin_ns) - origin,  # type: ignore[attr-defined]
        end_ns=end - origin if end >= 0 else -1,
        lost_lines=int(row.lost_lines),  # type: ignore[attr-defined]
        begin=part["begin_ns"].to_numpy(np.int64) - origin,
        dur=part["dur_ns"].to_numpy(np.int64),
        event=code[own],
        slot=part["slot"].to_numpy(np.int64),
    )
