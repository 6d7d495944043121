"""Which part of the floor each layer reaches, over a whole capture; or why that is not known."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from megatrace.analysis.columns import FLOOR
from megatrace.analysis.counted import Counted
from megatrace.analysis.launches import launch_numbers
from megatrace.analysis.lines import I8, Rows
from megatrace.analysis.rank import Rank
from megatrace.analysis.report import FloorRow, Floors, Report
from megatrace.analysis.summary import summarise
from megatrace.analysis.trace import without_records
from megatrace.analysis.traffic import Bandwidth, Traffic, floor
from megatrace.capture.reader import Capture

CPU = "cpu: times of the host build get no verdict"
_SOME_LAUNCHES = 1 << 18
"""Of warps, and as many more as the last step of them has: 150 bytes each."""
NO_LAUNCH = "no launch of such a kernel is whole and counts its experts"


def reported(
    capture: Capture,
    bandwidth: Bandwidth | None = None,
    *,
    layers: Collection[int] | None = None,
) -> Report:
    """The report of a capture with its floors, both from one reading.

    ``bandwidth``: None, as the capture says; ``layers``: of their launches alone. Raises as
    :func:`summarise`.
    """
    traffic = Traffic.of(capture, bandwidth)
    if why := why_not(capture, traffic):
        return replace(summarise(capture, layers=layers), floor=floors([], traffic, why))
    kept = KeptLaunches(traffic)
    report = summarise(capture, kept, layers=layers)
    return replace(report, floor=floors(kept.frames(), traffic, layers=layers))


class KeptLaunches:
    """Launches of the ranks that say bytes, kept from a reading that was for something else."""

    def __init__(self, traffic: Traffic) -> None:
        """None yet."""
        self._traffic = traffic
        self._kept: list[tuple[Rank, Counted]] = []

    def add(self, rank: Rank, counted: Counted) -> None:
        """See :class:`megatrace.analysis.summary.Launches`."""
        if any(number == rank.rank for number, _ in self._traffic.said):
            self._kept.append((rank, counted))

    def frames(self) -> Iterator[pd.DataFrame]:
        """Frames of ``FLOOR`` of all of them, of a few steps each."""
        for rank, counted in self._kept:
            assert rank.placed is not None
            launches = rank.scan.launches
            numbers = launch_numbers(launches, rank.placed.begin_ns)
            for rows in _some_steps(launches.step):
                trace = without_records(rank, rows, counted.in_doubt[rows], numbers)
                yield floor(trace, self._traffic, counted.experts[rows])


def _some_steps(step: I8) -> Iterator[Rows]:
    """Rows of ``step`` [L], whole steps together: a frame of all might not fit in memory."""
    order = np.argsort(step, kind="stable")
    ends = np.append(np.flatnonzero(np.diff(step[order])) + 1, len(order))
    begin = 0
    while begin < len(order):
        full = int(np.searchsorted(ends, min(begin + _SOME_LAUNCHES, len(order))))
        end = int(ends[full])
        yield np.sort(order[begin:end])
        begin = end


def why_not(capture: Capture, traffic: Traffic) -> str:
    """Why no launch of ``capture`` can have a fraction, before any is read; "" if some may."""
    devices = {facts.device for facts in capture.rings.values() if facts.traced}
    return CPU if devices == {0} else traffic.why_not


def floors(
    parts: Iterable[pd.DataFrame],
    traffic: Traffic,
    why: str = "",
    *,
    layers: Collection[int] | None = None,
) -> Floors:
    """Sum up frames of ``FLOOR``; ``layers``: rows of these alone."""
    if layers is not None:
        parts = [part[part["layer"].isin([*layers])] for part in parts]
    kept = [part[part["fraction"] >= 0].astype({"kernel": object}) for part in parts]
    frame = pd.concat(kept, ignore_index=True) if kept else FLOOR.empty()
    rate = traffic.shown
    groups: Any = frame.groupby(["kernel", "layer"], observed=True, sort=True)
    rows = tuple(_row(str(kernel), int(layer), of) for (kernel, layer), of in groups)
    total = float(frame["dur_ns"].sum())
    return Floors(
        rows=rows,
        fraction=float(frame["floor_ns"].sum()) / total if total else float("nan"),
        bandwidth_bytes_per_s=rate.bytes_per_s if rate else 0.0,
        bandwidth_from=rate.origin if rate else "",
        left_out=traffic.left_out,
        part_recorded=part_recorded(frame),
        why_not="" if rows else why or NO_LAUNCH,
    )


def part_recorded(frame: pd.DataFrame) -> str:
    """``2 of 132 blocks``: what was recorded of launches in ``FLOOR``; "" where all of each."""
    part = frame[(frame["fraction"] >= 0) & (frame["blocks_seen"] < frame["blocks"])]
    if not len(part):
        return ""
    least, most = int(part["blocks_seen"].min()), int(part["blocks_seen"].max())
    seen = f"{least:,}" if least == most else f"{least:,} to {most:,}"
    return f"{seen} of {int(part['blocks'].max()):,} blocks"


def _row(kernel: str, layer: int, of: pd.DataFrame) -> FloorRow:
    experts = of["distinct_experts"].to_numpy()
    return FloorRow(
        kernel=kernel,
        layer=layer,
        launches=len(of),
        experts=float(np.mean(experts)) if (experts >= 0).all() else -1.0,
        bytes=float(of["bytes"].mean()),
        floor_us=float(of["floor_ns"].median()) / 1e3,
        median_us=float(of["dur_ns"].median()) / 1e3,
        fraction=float(of["fraction"].median()),
    )
