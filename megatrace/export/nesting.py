"""Slices of one track must nest: the viewer has one stack a track and no check.

Two slices that overlap without one holding the other come out with wrong durations and
no complaint. So whatever does not fit is found here and moved to another lane.
"""

from __future__ import annotations

import numpy as np

from megatrace.export.slices import I4, Slices, sequences
from megatrace.export.wire import I8, Mask

MAX_DEPTH = 32
"""The trace processor drops what lies deeper than a few hundred, and nobody can see it."""


def lanes(slices: Slices, depth: int = MAX_DEPTH) -> I4:
    """The lane, from 0, of each slice, so that the slices of (track, lane) nest.

    ``slices`` are in the order of :func:`megatrace.export.slices.in_order`. A slice
    goes to the first lane where it fits; all are 0 where a track nests by itself, at
    most ``depth`` deep. Of depth 1 they follow each other.
    """
    lane = np.zeros(len(slices), np.int32)
    done = 0
    for part in sequences(slices):
        end = part.begin_ns + part.dur_ns
        crossing = _crossing(part.track, part.begin_ns, end, depth)
        for track in np.unique(part.track[crossing]):
            low, high = np.searchsorted(part.track, (track, track + 1))
            fit = _first_fit(part.begin_ns[low:high].tolist(), end[low:high].tolist(), depth)
            lane[done + low : done + high] = fit
        done += len(part)
    return lane


def _crossing(track: I4, begin: I8, end: I8, depth: int) -> Mask:
    """Slices that end after one they begin in, or lie too deep: some of each such track.

    Level by level: first the slices that lie in no other, then those directly in
    them, and so on, as often as slices are deep.
    """
    found = np.zeros(len(track), np.bool_)
    if not len(track):
        return found
    # Times shifted apart by track, so that one running maximum serves all tracks.
    first, span = int(begin.min()), int(end.max()) - int(begin.min()) + 1
    nearest = track.astype(np.int64) - int(track[0])
    if span > np.iinfo(np.int64).max // (int(nearest[-1]) + 1):
        return ~found
    shift = nearest * span - first
    rows = np.arange(len(track))
    begin, end = begin + shift, end + shift
    for _ in range(depth):
        reach = np.maximum.accumulate(end)
        inside = np.zeros(len(rows), np.bool_)
        inside[1:] = begin[1:] < reach[:-1]
        if not inside.any():
            return found
        outer = np.maximum.accumulate(np.where(inside, 0, np.arange(len(rows))))[inside]
        found[rows[inside]] |= end[inside] > end[outer]
        rows, begin, end = rows[inside], begin[inside], end[inside]
    found[rows] = True
    return found


def _first_fit(begins: list[int], ends: list[int], depth: int) -> list[int]:
    """Lanes of one track's slices, each a stack of the ends of what is open."""
    stacks: list[list[int]] = []
    chosen = []
    for begin, end in zip(begins, ends, strict=True):
        lane = 0
        while lane < len(stacks) and not _takes(stacks[lane], begin, end, depth):
            lane += 1
        if lane == len(stacks):
            stacks.append([])
        stacks[lane].append(end)
        chosen.append(lane)
    return chosen


def _takes(stack: list[int], begin: int, end: int, depth: int) -> bool:
    """Whether a slice fits into what is still open when it begins."""
    while stack and stack[-1] <= begin:
        stack.pop()
    return not stack or (end <= stack[-1] and len(stack) < depth)
