"""Arrows, against the plain definition."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from megatrace.export.flows import (
    MAX_FAN_OUT,
    Ends,
    bounded,
    first_uses,
    last_arrivals,
    number_keys,
)

SIDE = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 20)), max_size=30)


def ends(rows: list[tuple[int, int]]) -> Ends:
    columns = np.array(rows, np.int64).reshape(len(rows), 2)
    return Ends(columns[:, 0], columns[:, 1], columns[:, 1], np.arange(len(rows)))


def latest(producers: list[tuple[int, int]], key: int, until: int) -> int | None:
    """Time of the last producer of ``key`` before ``until``."""
    return max((time for k, time in producers if k == key and time < until), default=None)


@given(SIDE, SIDE)
def test_a_wait_is_let_go_by_the_last_producer_before_its_end(
    producers: list[tuple[int, int]], waits: list[tuple[int, int]]
) -> None:
    producer, wait = last_arrivals(ends(producers), ends(waits))
    found = {int(w): producers[p] for p, w in zip(producer, wait, strict=True)}
    expected = {i: latest(producers, *w) for i, w in enumerate(waits)}
    assert {w: time for w, (_, time) in found.items()} == {
        i: time for i, time in expected.items() if time is not None
    }
    assert all(waits[w][0] == key for w, (key, _) in found.items())


@given(SIDE, SIDE)
def test_a_prefetch_has_one_arrow_to_the_first_wait_after_it(
    producers: list[tuple[int, int]], waits: list[tuple[int, int]]
) -> None:
    producer, wait = first_uses(ends(producers), ends(waits))
    assert len(set(producer.tolist())) == len(producer)
    for p, w in zip(producer.tolist(), wait.tolist(), strict=True):
        key, time = producers[p]
        later = [t for k, t in waits if k == key and t > time]
        assert waits[w] == (key, min(later))


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


@given(st.lists(st.tuples(st.integers(-1, 3), st.integers(0, 3), st.integers(0, 2**31 - 1))))
def test_keys_are_equal_where_all_columns_are(rows: list[tuple[int, int, int]]) -> None:
    columns = np.array(rows, np.int64).reshape(len(rows), 3)
    keys = number_keys(*columns.T).tolist()
    assert len(set(keys)) == len(set(rows))
    assert len(set(zip(keys, rows, strict=True))) == len(set(rows))
