"""Which launches are shown."""

from __future__ import annotations

import numpy as np
import pytest

from megatrace.errors import UsageError
from megatrace.export.select import ranges_text, select
from tests.export.traces import EPOCH_NS, Builder, assemble, small_trace


def steps_of(*durations: int, broken: frozenset[int] = frozenset()) -> Builder:
    """One launch and one record a step, steps from 1."""
    builder, at = Builder(), EPOCH_NS
    for number, dur in enumerate(durations, 1):
        row = builder.launch(
            step=number, launch=number, begin_ns=at, end_ns=at + dur, complete=number not in broken
        )
        builder.record(row, "tile", at + 1, 5)
        at += 100_000
    return builder


def test_one_step_is_the_one_of_median_duration() -> None:
    trace = assemble([steps_of(900, 100, 500)])
    chosen = select(trace.launches, trace.records, "one", 1000)
    assert chosen.steps == (3,)
    assert chosen.left_out == ("2 of 3 steps",)
    assert chosen.launches.tolist() == [False, False, True]


def test_a_step_that_is_not_whole_is_not_typical() -> None:
    trace = assemble([steps_of(900, 100, 500, broken=frozenset({3}))])
    assert select(trace.launches, trace.records, "one", 1000).steps == (2,)


def test_a_step_is_chosen_where_none_is_whole() -> None:
    trace = assemble([steps_of(900, 100, 500, broken=frozenset({1, 2, 3}))])
    assert select(trace.launches, trace.records, "one", 1000).steps == (3,)


def test_durations_are_of_each_rank_whatever_its_clock_says() -> None:
    other = steps_of(900, 100, 500)
    other.rank = 1
    for row in other.launches:
        row |= {"rank": 1, "begin_ns": row["begin_ns"] - 10**15, "end_ns": row["end_ns"] - 10**15}
    trace = assemble([steps_of(900, 100, 500), other])
    assert select(trace.launches, trace.records, "one", 1000).steps == (3,)


def test_named_steps_are_shown_and_unknown_ones_refused() -> None:
    trace = assemble([steps_of(900, 100, 500)])
    assert select(trace.launches, trace.records, [3, 1, 3], 1000).steps == (1, 3)
    with pytest.raises(UsageError, match="step 9"):
        select(trace.launches, trace.records, [1, 9], 1000)


@pytest.mark.parametrize("budget", [1, 100, 250, 10_000])
def test_a_budget_cuts_between_launches_and_says_so(budget: int) -> None:
    trace = small_trace(ranks=2)
    chosen = select(trace.launches, trace.records, "all", budget)
    kept = chosen.launches[trace.records["launch_row"]].sum()
    numbers = trace.launches[["rank", "launch"]].apply(tuple, axis=1)
    whole = set(numbers[chosen.launches])
    assert whole.isdisjoint(set(numbers[~chosen.launches]))
    assert whole
    assert kept <= budget or len(whole) == 1
    assert bool(chosen.left_out) == (not chosen.launches.all())
    if chosen.left_out:
        assert f"of {numbers.nunique()} launches" in chosen.left_out[-1]


def test_the_budget_keeps_the_earliest_launches() -> None:
    trace = small_trace()
    chosen = select(trace.launches, trace.records, "all", 700)
    last_kept = trace.launches["launch"][chosen.launches].max()
    assert last_kept < trace.launches["launch"][~chosen.launches].min()


@pytest.mark.parametrize("begin_ns", [-5, 1 << 62])
def test_launches_at_impossible_times_are_left_out_aloud(begin_ns: int) -> None:
    builder = steps_of(900)
    builder.launch(begin_ns=begin_ns, end_ns=begin_ns + 5)
    trace = assemble([builder])
    chosen = select(trace.launches, trace.records, "all", 10)
    assert chosen.launches.tolist() == [True, False]
    assert chosen.left_out == ("1 launches of warps at impossible times",)


def test_nothing_is_chosen_of_nothing() -> None:
    trace = assemble([Builder()], clocks={})
    chosen = select(trace.launches, trace.records, "one", 10)
    assert (len(chosen.launches), chosen.steps, chosen.left_out) == (0, (), ())
    assert chosen.launches.dtype == np.bool_


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ([], ""),
        ([3], "3"),
        ([3, 1, 2, 2, 9], "1-3, 9"),
        (range(0, 40, 2), "0, 2, 4, 6, 8, 10, 12, ..., 38"),
    ],
)
def test_ranges_are_short_however_many_there_are(numbers: list[int], text: str) -> None:
    assert ranges_text(numbers) == text
