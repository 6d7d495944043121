"""Slices that do not nest get lanes, and nothing is lost."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from megatrace.export.nesting import MAX_DEPTH, lanes
from megatrace.export.slices import Slices, in_order
from megatrace.export.tracks import Track, Tracks, fitting_tracks, spread
from tests.export.pictures import intervals, slices_of

Interval = tuple[int, int]


def crossing(ours: list[Interval]) -> bool:
    """Whether any two overlap without one holding the other."""
    return any(
        a[0] < b[0] < a[1] < b[1] for i, a in enumerate(ours) for b in ours[:i] + ours[i + 1 :]
    )


def by_lane(slices: Slices, lane: np.ndarray) -> dict[tuple[int, int], list[Interval]]:
    found: dict[tuple[int, int], list[Interval]] = {}
    ends = slices.begin_ns + slices.dur_ns
    for key in zip(slices.track, lane, slices.begin_ns, ends, strict=True):
        track, number, begin, end = map(int, key)
        found.setdefault((track, number), []).append((begin, end))
    return found


def tracks_of(count: int, *, async_: bool = False) -> Tracks:
    tracks = Tracks()
    for _ in range(count):
        tracks.add(Track("warp", async_=async_))
    return tracks


@given(intervals())
def test_every_lane_nests(rows: list[tuple[int, int, int]]) -> None:
    slices = in_order(slices_of(rows))
    assert not any(crossing(one) for one in by_lane(slices, lanes(slices)).values())


@given(intervals())
def test_a_track_that_nests_keeps_one_lane(rows: list[tuple[int, int, int]]) -> None:
    slices = in_order(slices_of(rows))
    lane = lanes(slices)
    for (track, _), one in by_lane(slices, np.zeros(len(slices), int)).items():
        if not crossing(one):
            assert not lane[slices.track == track].any()


@given(intervals())
def test_spreading_loses_and_changes_no_slice(rows: list[tuple[int, int, int]]) -> None:
    slices, tracks = slices_of(rows), tracks_of(3)
    nested, misplaced = spread(slices, tracks)
    before = sorted(zip(slices.begin_ns.tolist(), slices.dur_ns.tolist(), strict=True))
    after = sorted(zip(nested.begin_ns.tolist(), nested.dur_ns.tolist(), strict=True))
    assert before == after
    assert misplaced == int((nested.track >= 3).sum())
    assert not lanes(nested).any()


@given(intervals())
def test_slices_of_a_lane_of_depth_one_follow_each_other(rows: list[tuple[int, int, int]]) -> None:
    slices = in_order(slices_of(rows))
    for one in by_lane(slices, lanes(slices, depth=1)).values():
        assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(sorted(one)))


@given(intervals())
def test_the_fitting_track_of_each_slice_is_in_the_order_given(
    rows: list[tuple[int, int, int]],
) -> None:
    slices, tracks = slices_of(rows), tracks_of(3)
    fitting = fitting_tracks(slices.track, slices.begin_ns, slices.dur_ns, tracks)
    moved = Slices(fitting, slices.label, slices.begin_ns, slices.dur_ns, slices.extras)
    assert not lanes(in_order(moved)).any()
    rows_of = [tracks[int(track)].row or str(int(track)) for track in fitting]
    own = [tracks[int(track)].row or str(int(track)) for track in slices.track]
    assert rows_of == own


def test_lanes_of_one_row_are_drawn_as_one() -> None:
    tracks = tracks_of(2)
    spread(slices_of([(1, 0, 10), (1, 5, 10), (1, 6, 10), (0, 0, 10)]), tracks)
    assert [track.row for track in tracks] == ["", "lanes of 1", "lanes of 1", "lanes of 1"]


def test_lanes_that_are_no_defect_are_not_counted() -> None:
    overlapping = slices_of([(0, 0, 10), (0, 5, 10)])
    assert spread(overlapping, tracks_of(1))[1] == 1
    assert spread(overlapping, tracks_of(1, async_=True))[1] == 0


def test_times_too_far_apart_for_the_fast_way_are_checked_all_the_same() -> None:
    far = 1 << 61
    rows = [(0, 0, 10), (0, 5, 10), (900, far, 10), (900, far + 5, 10), (901, far, 10)]
    assert lanes(slices_of(rows)).tolist() == [0, 1, 0, 1, 0]


def test_abutting_slices_share_a_lane() -> None:
    assert not lanes(slices_of([(0, 0, 10), (0, 10, 10), (0, 20, 0), (0, 20, 5)])).any()


def test_slices_deeper_than_can_be_seen_move_to_another_lane() -> None:
    depth = 3 * MAX_DEPTH
    slices = in_order(slices_of([(0, i, 10_000 - 2 * i) for i in range(depth)]))
    counts = np.bincount(lanes(slices))
    assert counts.tolist() == [MAX_DEPTH] * 3


@given(st.integers(1, 40))
def test_unfinished_spans_that_all_end_together_nest(count: int) -> None:
    slices = in_order(slices_of([(0, i, 100 - i) for i in range(min(count, MAX_DEPTH))]))
    assert not lanes(slices).any()
