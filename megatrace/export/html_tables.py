"""What the plots of a page are drawn from, gathered window by window, without the records."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from megatrace.analysis import Trace, views
from megatrace.analysis import columns as c
from megatrace.analysis.floors import floors
from megatrace.analysis.numbers import BOTH
from megatrace.analysis.report import Floors
from megatrace.analysis.traffic import Traffic
from megatrace.analysis.walls import whole_launches

WAITS = (c.DATA, c.INPUT, c.PEER, c.SPACE)
CLASSES = (*WAITS, c.BEFORE_START, c.TAIL, c.UNKNOWN, c.NOT_WAITING)
"""In the order of a bar's pieces: what is waited for, then the rest."""
BINS_NS: NDArray[np.float64] = 10.0 ** (np.arange(10, 91) / 10)
"""Edges of the histograms: ten a decade, from 10 ns to 1 s."""
PER_LAUNCH = [*BOTH, "launch_no", "step", "kernel", "layer", "dur_ns"]
DEVICE_SERIES = "launches, first in to last out"

NOT_ASKED = Traffic({}, None)

Counts = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class PageTables:
    """Sums over all windows. Durations are ns.

    ``stalls``: kernel, layer, role, class, dur_ns. ``heat``: rank, process, sm, role, class,
    dur_ns.
    ``waits``: event, edge, role, layer, block, from_block (-1: not known), dur_ns, count.
    ``launches``: kernel, layer, launches, p5_us, q1_us, median_us, q3_us, p95_us, of launches
    without loss. ``prefetch``: kernel and event -> counts [late | early, bins].
    ``timing``: kernel, layer, event, verdict, count, late_ns. ``steps``: rank, process,
    series, step, dur_ns.
    """

    stalls: pd.DataFrame
    heat: pd.DataFrame
    waits: pd.DataFrame
    launches: pd.DataFrame
    prefetch: dict[tuple[str, str], Counts]
    timing: pd.DataFrame
    steps: pd.DataFrame
    windows: int
    """Of more than one, what crosses from one into the next is not seen."""
    floors: Floors


@dataclass(slots=True)
class _Parts:
    stalls: list[pd.DataFrame] = field(default_factory=list)
    heat: list[pd.DataFrame] = field(default_factory=list)
    waits: list[pd.DataFrame] = field(default_factory=list)
    launches: list[pd.DataFrame] = field(default_factory=list)
    timing: list[pd.DataFrame] = field(default_factory=list)
    steps: list[pd.DataFrame] = field(default_factory=list)
    floors: list[pd.DataFrame] = field(default_factory=list)
    prefetch: dict[tuple[str, str], Counts] = field(default_factory=dict)
    windows: int = 0
    layers: Collection[int] | None = None

    def mine(self, frame: pd.DataFrame) -> pd.DataFrame:
        """The rows of the layers that were asked for."""
        return frame if self.layers is None else frame[frame["layer"].isin([*self.layers])]


def gather(
    windows: Iterable[Trace],
    hosts: Trace,
    traffic: Traffic = NOT_ASKED,
    why_no_floor: str = "",
    *,
    layers: Collection[int] | None = None,
) -> PageTables:
    """Sum up windows of whole steps; of ``hosts`` the host's steps alone.

    ``traffic`` is what the capture says of bytes, ``why_no_floor`` why no launch has a floor.
    ``layers``: their launches alone, in all but ``steps``.
    """
    parts = _Parts(layers=layers)
    for trace in windows:
        _add(parts, trace)
        if not why_no_floor:
            parts.floors.append(views.floor(trace, traffic))
    return PageTables(
        stalls=_sum(parts.stalls, _STALLS, ["dur_ns"]),
        heat=_sum(parts.heat, _HEAT, ["dur_ns"]),
        waits=_sum(parts.waits, _WAITS, ["dur_ns", "count"]),
        launches=_boxes(parts.launches),
        prefetch=parts.prefetch,
        timing=_sum(parts.timing, _TIMING, ["count", "late_ns"]),
        steps=_sum([*parts.steps, _host_steps(hosts)], _STEPS, ["dur_ns"]),
        windows=parts.windows,
        floors=floors(parts.floors, traffic, why_no_floor, layers=layers),
    )


_STALLS = ["kernel", "layer", "role", "class"]
_HEAT = [*BOTH, "sm", "role", "class"]
_STEPS = [*BOTH, "series", "step"]
_WAITS = ["event", "edge", "role", "layer", "block", "from_block"]
_TIMING = ["kernel", "layer", "event", "verdict"]


def _add(parts: _Parts, trace: Trace) -> None:
    parts.windows += 1
    classes = parts.mine(views.stall_classes(trace))
    parts.stalls.append(_sum([classes], _STALLS, ["dur_ns"]))
    parts.heat.append(_sum([classes], _HEAT, ["dur_ns"]))
    waits = parts.mine(views.sync_waits(trace)).assign(count=1)
    parts.waits.append(_sum([waits], _WAITS, ["dur_ns", "count"]))
    times = views.launch_times(trace)
    parts.launches.append(parts.mine(times[whole_launches(times)])[PER_LAUNCH])
    parts.steps.append(_device_steps(times))
    timing = parts.mine(views.prefetch_timing(trace))
    _add_prefetches(parts.prefetch, timing)
    timing = timing.assign(count=1, late_ns=timing["late_ns"].clip(lower=0))
    parts.timing.append(_sum([timing], _TIMING, ["count", "late_ns"]))


def _sum(parts: list[pd.DataFrame], keys: list[str], values: list[str]) -> pd.DataFrame:
    """Rows of equal ``keys`` become one; categories become plain strings."""
    frames = [part[[*keys, *values]] for part in parts if len(part)]
    if not frames:
        return pd.DataFrame({name: [] for name in (*keys, *values)})
    frames = [_plain(frame) if len(frames) > 1 else frame for frame in frames]
    joined = pd.concat(frames, ignore_index=True)
    total = joined.groupby(keys, observed=True, sort=True)[values].sum().reset_index()
    return _plain(total)


def _plain(frame: pd.DataFrame) -> pd.DataFrame:
    names = [n for n in frame if isinstance(frame[n].dtype, pd.CategoricalDtype)]
    return frame.astype(dict.fromkeys(names, object))


def _add_prefetches(into: dict[tuple[str, str], Counts], timing: pd.DataFrame) -> None:
    for (kernel, event), rows in timing.groupby(["kernel", "event"], observed=True):
        counts = into.setdefault(
            (str(kernel), str(event)), np.zeros((2, len(BINS_NS) - 1), np.int64)
        )
        late = rows["late_ns"][rows["verdict"] == c.LATE]
        early = rows["early_at_most_ns"][rows["verdict"] == c.EARLY]
        for row, values in enumerate((late, early)):
            # What lies beyond the ends is counted in the outermost bin.
            inside = np.clip(values.to_numpy(float), BINS_NS[0], BINS_NS[-1] * 0.999)
            counts[row] += np.histogram(inside, BINS_NS)[0]


def _boxes(parts: list[pd.DataFrame]) -> pd.DataFrame:
    columns = ["launches", "p5_us", "q1_us", "median_us", "q3_us", "p95_us"]
    frames = [_plain(part) for part in parts if len(part)]
    if not frames:
        return pd.DataFrame({name: [] for name in ("kernel", "layer", *columns)})
    groups = pd.concat(frames, ignore_index=True).groupby(["kernel", "layer"])["dur_ns"]
    quantiles = groups.quantile(np.array([0.05, 0.25, 0.5, 0.75, 0.95])).unstack() / 1e3
    quantiles.columns = pd.Index(columns[1:])
    quantiles.insert(0, "launches", groups.size())
    return quantiles.reset_index()


def _device_steps(times: pd.DataFrame) -> pd.DataFrame:
    known = times[(times["end_ns"] >= 0) & (times["step"] > 0)]
    ends = known.groupby([*BOTH, "step"]).agg(begin=("begin_ns", "min"), end=("end_ns", "max"))
    ends["dur_ns"] = ends["end"] - ends["begin"]
    return ends[["dur_ns"]].reset_index().assign(series=DEVICE_SERIES)


def _host_steps(trace: Trace) -> pd.DataFrame:
    steps = views.step_times(trace)
    mine = steps[steps["stage"].astype(str) != ""]
    series = "host: " + mine["stage"].astype(str)
    return mine[[*BOTH, "step", "dur_ns"]].assign(series=series)
