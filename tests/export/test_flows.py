"""How many arrows are drawn, against the plain definition."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from megatrace.export.flows import (
    MAX_FAN_OUT,
    bounded,
)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 9))), st.integers(0, 20))
def test_arrows_are_bounded_and_the_heaviest_stay(
    arrows: list[tuple[int, int]], limit: int
) -> None:
    producer = np.array([p for p, _ in arrows], np.int64)
    weight = np.array([w for _, w in arrows], np.int64)
    kept, cut = bounded(producer, weight, limit)
    assert kept.sum() + cut == len(arrows)
    assert kept.sum() <= limit
    assert np.bincount(producer[kept], minlength=1).max() <= MAX_FAN_OUT
    for p in set(producer.tolist()):
        mine = producer == p
        if kept[mine].sum() == MAX_FAN_OUT:
            assert weight[mine & kept].min() >= weight[mine & ~kept].max(initial=0)
