"""Bytes that a launch must read, against its time: they follow the experts that its rows hit."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
import pandas as pd

from megatrace.analysis.columns import EXPERT_TRAFFIC, FLOOR
from megatrace.analysis.lines import I8, Mask, Rows
from megatrace.analysis.numbers import BOTH, numbers_of
from megatrace.analysis.pick import is_one_of, launch_columns
from megatrace.analysis.trace import Trace
from megatrace.analysis.walls import Walls, launch_times, walls_of, whole_launches
from megatrace.capture.reader import Capture
from megatrace.errors import UsageError
from megatrace.schema import Kind
from megatrace.schema.processes import number_of, rank_text
from megatrace.schema.traffic import COPY_BANDWIDTH, DISTINCT_EXPERTS, LAUNCH_BYTES, LaunchBytes

GIVEN = "given"
"""Where a bandwidth is from that somebody gave with the question."""
NOT_SAID = (
    "the program did not say what a launch must read "
    f"(KernelAgent.fact {LAUNCH_BYTES!r}: see megatrace/schema/traffic.py)"
)
NO_BANDWIDTH = "no bandwidth is known: give what a copy on this GPU delivers, --bandwidth 4.2TB/s"


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """What the memory of the GPU delivers, and who says so. Raises UsageError unless above 0."""

    bytes_per_s: float
    origin: str = GIVEN

    def __post_init__(self) -> None:
        """Check it."""
        if not 0 < self.bytes_per_s < math.inf:
            raise UsageError(
                f"a bandwidth of {self.bytes_per_s:g} bytes a second",
                hint="give what a copy on this GPU delivers, read and written together",
            )

    def __str__(self) -> str:
        """``4.20 TB/s (given)``."""
        return f"{self.bytes_per_s / 1e12:.2f} TB/s ({self.origin})"


@dataclass(frozen=True, slots=True)
class Traffic:
    """What a capture says of the bytes of its launches, and the bandwidth to hold them against.

    ``said`` is by rank and kernel. ``bandwidth`` is of all ranks and goes before those that
    they ``measured``. ``blocks`` is of the grid, by rank; what it lacks is not known.
    """

    said: Mapping[tuple[int, str], LaunchBytes]
    bandwidth: Bandwidth | None
    measured: Mapping[int, Bandwidth] = field(default_factory=dict)
    blocks: Mapping[int, int] = field(default_factory=dict)

    @classmethod
    def of(cls, capture: Capture, bandwidth: Bandwidth | None = None) -> Self:
        """The facts of ``capture``; the bandwidths that its ranks measured where none is given.

        A GPU's name says no bandwidth: what nobody measured is not known.
        """
        said = {}
        measured = {}
        for row in capture.facts("fact"):
            value = row.fields.get("value")
            if row.fields.get("name") == LAUNCH_BYTES:
                found = LaunchBytes.of_fact(value)
                if found is not None:
                    said[row.rank, found.kernel] = found
            elif row.fields.get("name") == COPY_BANDWIDTH and isinstance(value, dict):
                rate = _measured(value)
                if rate is not None:
                    measured[row.rank] = rate
        blocks = {rank: facts.blocks for rank, facts in capture.rings.items()}
        return cls(said, bandwidth, measured, blocks)

    def of_rank(self, rank: int) -> Bandwidth | None:
        """The bandwidth that the bytes of ``rank`` are held against; None: not known."""
        return self.bandwidth or self.measured.get(rank)

    @property
    def shown(self) -> Bandwidth | None:
        """The bandwidth of the ranks that say bytes: the least, and how they differ in words."""
        ranks = sorted({rank for rank, _ in self.said})
        known = {rank: rate for rank in ranks if (rate := self.of_rank(rank)) is not None}
        if not known:
            return self.bandwidth
        least = min(known.values(), key=lambda rate: rate.bytes_per_s)
        most = max(rate.bytes_per_s for rate in known.values())
        says = [least.origin]
        if most > least.bytes_per_s:
            says.append(f"the least of its ranks, the most is {most / 1e12:.2f} TB/s")
        if unknown := [rank_text(rank) for rank in ranks if rank not in known]:
            says.append(f"not known of rank {', '.join(unknown)}")
        return replace(least, origin="; ".join(says))

    @property
    def why_not(self) -> str:
        """What is missing for a fraction of the floor; "" where the capture may have one."""
        return NOT_SAID if not self.said else NO_BANDWIDTH if self.shown is None else ""

    @property
    def left_out(self) -> str:
        """What launches read beside and nobody counted, in words."""
        return ", ".join(sorted({said.left_out for said in self.said.values() if said.left_out}))


def _measured(value: Mapping[str, Any]) -> Bandwidth | None:
    rate, how = value.get("bytes_per_s"), str(value.get("how") or "").strip()
    if not isinstance(rate, int | float) or not 0 < rate < math.inf:
        return None
    return Bandwidth(float(rate), f"measured by the program that was recorded: {how or 'a copy'}")


def expert_traffic(trace: Trace) -> pd.DataFrame:
    """A row a launch that counts experts; columns as ``EXPERT_TRAFFIC`` says."""
    walls = walls_of(trace)
    most = _experts(trace, walls)
    told = np.flatnonzero(most >= 0)
    if not len(told):
        return EXPERT_TRAFFIC.empty()
    which = launch_columns(trace, walls.first[told])
    known = walls.end_ns[told] >= 0
    dur = np.where(known, walls.end_ns[told] - walls.begin_ns[told], -1)
    return EXPERT_TRAFFIC.frame({**which, "distinct_experts": most[told], "dur_ns": dur})


def _experts(trace: Trace, walls: Walls) -> I8:
    """[W] experts that each launch says it hit, the most any block counted; -1: none says."""
    records = trace.records
    counts = is_one_of(records["event"], (DISTINCT_EXPERTS,))
    rows = np.flatnonzero(counts & is_one_of(records["kind"], (Kind.COUNTER,)))
    if not len(rows):
        return np.full(len(walls.first), -1, np.int64)
    wall = walls.of_launch[records["launch_row"].to_numpy()[rows]]
    return _most(walls, wall, records["a0"].to_numpy()[rows])


def _most(walls: Walls, wall: Rows, counted: I8) -> I8:
    """[W] the most of what was ``counted`` [n] in each ``wall`` [n]; -1: nothing."""
    most = np.full(len(walls.first), -1, np.int64)
    np.maximum.at(most, wall, counted)
    return most


def floor(trace: Trace, traffic: Traffic, counted: I8 | None = None) -> pd.DataFrame:
    """Launches of kernels that say their bytes, against the time these take; see ``FLOOR``.

    Host builds get no fraction, nor do launches of which a recorded warp is missing. Where
    fewer blocks were recorded than the grid has, a launch took no less than they did: its
    fraction is an upper bound. ``counted``: the experts of each row of ``launches`` (-1: it
    counted none), for a trace without its records.
    """
    times = launch_times(trace)
    whole = whole_launches(times)
    # launch_times has a row a wall, in their order.
    walls = walls_of(trace)
    experts = _experts(trace, walls) if counted is None else _most(walls, walls.of_launch, counted)
    said, always, each = _said(times, traffic)
    mine = np.flatnonzero(said)
    if not len(mine):
        return FLOOR.empty()
    times, whole, experts = times.iloc[mine], whole[mine], experts[mine]
    known = (each[mine] == 0) | (experts >= 0)
    read = np.where(known, always[mine] + np.maximum(experts, 0) * each[mine], -1)
    dur = times["dur_ns"].to_numpy()
    floor_ns, blocks = np.full((2, len(read)), -1, np.int64)
    of_rank = numbers_of(times)
    for rank in np.unique(of_rank).tolist():
        here = of_rank == rank
        blocks[here] = traffic.blocks.get(rank, -1)
        if (rate := traffic.of_rank(rank)) is not None:
            per_ns = rate.bytes_per_s / 1e9
            floor_ns[here] = np.where(read[here] >= 0, np.rint(read[here] / per_ns), -1)
    cpus = [rank for rank, device in trace.devices.items() if device == "cpu"]
    timed = whole & (dur > 0) & (floor_ns >= 0) & ~np.isin(of_rank, cpus)
    columns = {name: times[name] for name in (*BOTH, "launch_no", "step", "kernel", "layer")}
    return FLOOR.frame(
        {
            **columns,
            "distinct_experts": experts,
            "dur_ns": dur,
            "bytes": read,
            "floor_ns": floor_ns,
            "fraction": np.where(timed, floor_ns / np.maximum(dur, 1), -1.0),
            "blocks_seen": times["blocks_seen"],
            "blocks": blocks,
            "clock_error_ns": times["clock_error_ns"],
        }
    )


def _said(times: pd.DataFrame, traffic: Traffic) -> tuple[Mask, I8, I8]:
    """[n] of each launch: whether its kernel says its bytes, those always read, those an expert."""
    said = np.zeros(len(times), bool)
    always, each = np.zeros((2, len(times)), np.int64)
    groups: Any = times.groupby([*BOTH, "kernel", "layer"], observed=True).indices
    for (rank, process, kernel, layer), rows in groups.items():
        found = traffic.said.get((number_of(int(rank), int(process)), str(kernel)))
        if found is not None and 0 <= layer < len(found.always):
            said[rows], always[rows], each[rows] = True, found.always[layer], found.expert[layer]
    return said, always, each
