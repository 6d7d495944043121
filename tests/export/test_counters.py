"""Stalled warps over time."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from megatrace.export.counters import MAX_BINS, stalled_warps

INTERVALS = st.lists(
    st.tuples(st.integers(0, 10**6), st.integers(0, 10**6)), min_size=1, max_size=30
)


@given(INTERVALS, st.sampled_from([0, 1_700_000_000_000_000_000]))
def test_the_mean_of_all_bins_is_the_time_stalled(
    intervals: list[tuple[int, int]], epoch: int
) -> None:
    begin = np.array([b for b, _ in intervals]) + epoch
    dur = np.array([d for _, d in intervals])
    time, value = stalled_warps(begin, begin + dur)
    bins = np.diff(time)
    assert len(time) <= MAX_BINS + 2
    assert value[-1] == 0
    # Each bin is rounded by at most half a warp.
    assert abs(int((value[:-1] * bins).sum()) - int(dur.sum())) <= bins.sum() / 2 + len(bins)


def test_two_warps_that_stall_together_count_two() -> None:
    time, value = stalled_warps(np.array([0, 0, 500]), np.array([1000, 1000, 1000]))
    assert time[:2].tolist() == [0, 100]
    assert value[:10].tolist() == [2] * 5 + [3] * 5


@pytest.mark.parametrize("dur", [0, 1])
def test_a_single_short_stall_is_no_error(dur: int) -> None:
    time, value = stalled_warps(np.array([7]), np.array([7 + dur]))
    assert len(time) == len(value) >= 2
