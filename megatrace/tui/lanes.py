"""Warps of one launch beside each other, as a time line draws them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

I8 = NDArray[np.int64]
F8 = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class LaneEvent:
    """What a record is: ``cause`` "" where it is no stall."""

    name: str
    kind: str
    cause: str


@dataclass(frozen=True, slots=True)
class Lane:
    """One warp; times in ns from the begin of the launch.

    ``begin`` and ``dur`` ``(n,)``, ``event`` the place in :attr:`Lanes.events`, ``slot`` -1:
    none. ``dur`` is 0 of instants and -1 of a span whose end is lost. ``end_ns`` is -1 where
    the launch has no closing.
    """

    label: str
    role: str
    begin_ns: int
    end_ns: int
    lost_lines: int
    begin: I8
    dur: I8
    event: I8
    slot: I8


@dataclass(frozen=True, slots=True)
class Lanes:
    """Warps of one launch beside each other, on ``length_ns`` of time."""

    title: str
    step: int
    lanes: tuple[Lane, ...]
    events: tuple[LaneEvent, ...]
    length_ns: int
    error_ns: float


def covered(lane: Lane, of: NDArray[np.bool_], edges: F8) -> F8:
    """Share of each column ``[edges[i], edges[i + 1])`` that the records ``of`` cover.

    Records of one kind may nest; what they cover together counts once.
    """
    rows = np.flatnonzero(of & (lane.dur > 0))
    if not len(rows):
        return np.zeros(len(edges) - 1)
    begin, end = lane.begin[rows], lane.begin[rows] + lane.dur[rows]
    order = np.argsort(begin, kind="stable")
    begin, end = begin[order], np.maximum.accumulate(end[order])
    begin[1:] = np.maximum(begin[1:], end[:-1])
    points = np.stack([begin, end], axis=1).ravel().astype(np.float64)
    done = np.repeat(np.cumsum(end - begin), 2).astype(np.float64)
    done[::2] -= end - begin
    share: F8 = np.diff(np.interp(edges, points, done)) / np.maximum(np.diff(edges), 1e-9)
    return share
