"""Launches of the GPU out of launches of warps: from the first warp in to the last one out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from megatrace.analysis.columns import LAUNCH_TIMES
from megatrace.analysis.lines import F8, I8, Mask, Rows
from megatrace.analysis.numbers import BOTH, numbers_of
from megatrace.analysis.pick import launch_columns, sound_launches
from megatrace.analysis.trace import Trace


@dataclass(frozen=True, slots=True)
class Walls:
    """Launches of the GPU; arrays [W], by rank and number, and where each warp's belongs."""

    of_launch: Rows
    """[L] the wall of each row of ``Trace.launches``."""
    first: Rows
    """A row of ``Trace.launches`` of it: the first in order of the rings."""
    begin_ns: I8
    end_ns: I8
    """Latest known end; -1 where no warp's end is known."""


def walls_of(trace: Trace) -> Walls:
    """Group the launches of warps by rank and number."""
    launches = trace.launches
    rank, number = numbers_of(launches), launches["launch"].to_numpy()
    begin, end = launches["begin_ns"].to_numpy(), launches["end_ns"].to_numpy()
    order = np.lexsort((number, rank))
    fresh = np.ones(len(order), bool)
    fresh[1:] = (np.diff(rank[order]) != 0) | (np.diff(number[order]) != 0)
    start = np.flatnonzero(fresh)
    of_launch = np.empty(len(order), np.intp)
    of_launch[order] = np.cumsum(fresh) - 1
    if not len(start):
        none = np.zeros(0, np.int64)
        return Walls(of_launch, start, none, none)
    return Walls(
        of_launch,
        order[start],
        np.minimum.reduceat(begin[order], start),
        np.maximum.reduceat(end[order], start),
    )


def last_known(trace: Trace) -> I8:
    """[L] the end of each launch of a warp, or the last moment that its records tell of."""
    launches, records = trace.launches, trace.records
    known: I8 = launches["end_ns"].to_numpy().copy()
    cut = known < 0
    if cut.any():
        row = records["launch_row"].to_numpy()
        rows = np.flatnonzero(cut[row])
        last = (records["begin_ns"] + records["dur_ns"].clip(0)).to_numpy()
        known[cut] = launches["begin_ns"].to_numpy()[cut]
        np.maximum.at(known, row[rows], last[rows])
    return known


def launch_times(trace: Trace) -> pd.DataFrame:
    """One row a launch of the GPU; columns as ``columns.LAUNCH_TIMES`` says."""
    launches, walls = trace.launches, walls_of(trace)
    if not len(walls.first):
        return LAUNCH_TIMES.empty()
    which = launch_columns(trace, walls.first)
    known = walls.end_ns >= 0
    of = walls.of_launch
    blocks = np.unique(np.stack([of, launches["block"].to_numpy()]), axis=1)[0]
    error = np.zeros(len(walls.first))
    np.maximum.at(error, of, launches["clock_error_ns"].to_numpy())
    lost = np.bincount(of[~sound_launches(trace)], minlength=len(walls.first))
    return LAUNCH_TIMES.frame(
        {
            **which,
            "begin_ns": walls.begin_ns,
            "end_ns": walls.end_ns,
            "dur_ns": np.where(known, walls.end_ns - walls.begin_ns, -1),
            "gap_ns": _gaps(walls, numbers_of(launches)[walls.first], which["step"]),
            "blocks_seen": np.bincount(blocks, minlength=len(walls.first)),
            "warps_seen": np.bincount(of, minlength=len(walls.first)),
            "whole": lost == 0,
            "clock_error_ns": _whole_ns(error),
        }
    )


def whole_launches(times: pd.DataFrame) -> Mask:
    """Which rows of ``launch_times`` are known from end to end: every warp is, and all came.

    A warp whose header is lost left no launch: there are fewer than in the launches beside.
    """
    usual = times.groupby([*BOTH, "kernel"], observed=True)["warps_seen"].transform("median")
    whole: Mask = (
        times["whole"] & (times["dur_ns"] >= 0) & (times["warps_seen"] >= usual)
    ).to_numpy()
    return whole


def _gaps(walls: Walls, rank: I8, step: I8) -> I8:
    """Since the launch before, where that is of the same step or the very step before."""
    gap = np.full(len(rank), -1, np.int64)
    beside: Mask = (rank[1:] == rank[:-1]) & (np.abs(np.diff(step)) <= 1)
    beside &= walls.end_ns[:-1] >= 0
    gap[1:][beside] = (walls.begin_ns[1:] - walls.end_ns[:-1])[beside]
    return gap


def _whole_ns(error: F8) -> I8:
    return np.where(np.isfinite(error), np.ceil(error), -1).astype(np.int64)
