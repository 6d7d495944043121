"""Which part of the floor each layer reaches, over a whole capture; or why that is not known."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd

from megatrace.analysis.columns import FLOOR
from megatrace.analysis.lines import I8, Mask
from megatrace.analysis.rank import Rank
from megatrace.analysis.report import FloorRow, Floors, Report
from megatrace.analysis.summary import summarise
from megatrace.analysis.trace import without_records
from megatrace.analysis.traffic import Bandwidth, Traffic, floor
from megatrace.capture.reader import Capture

CPU = "cpu: times of the host build get no verdict"
NO_LAUNCH = "no launch of such a kernel is whole and counts its experts"


def reported(capture: Capture, bandwidth: Bandwidth | None = None) -> Report:
    """The report of a capture with its floors, both from one reading.

    ``bandwidth``: None, as the capture says. Raises as :func:`summarise`.
    """
    traffic = Traffic.of(capture, bandwidth)
    if why := why_not(capture, traffic):
        return replace(summarise(capture), floor=floors([], traffic, why))
    gathered = _Gathered(traffic)
    report = summarise(capture, gathered)
    return replace(report, floor=floors(gathered.frames, traffic))


@dataclass(slots=True)
class _Gathered:
    """Frames of ``FLOOR``, one a rank that says bytes."""

    traffic: Traffic
    frames: list[pd.DataFrame] = field(default_factory=list)

    def add(self, rank: Rank, experts: I8, uncertain: Mask) -> None:
        """See :class:`megatrace.analysis.summary.Launches`."""
        if any(number == rank.rank for number, _ in self.traffic.said):
            trace = without_records(rank, uncertain)
            self.frames.append(floor(trace, self.traffic, experts))


def why_not(capture: Capture, traffic: Traffic) -> str:
    """Why no launch of ``capture`` can have a fraction, before any is read; "" if some may."""
    devices = {facts.device for facts in capture.rings.values() if facts.traced}
    return CPU if devices == {0} else traffic.why_not


def floors(parts: Iterable[pd.DataFrame], traffic: Traffic, why: str = "") -> Floors:
    """Sum up frames of ``FLOOR``."""
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
