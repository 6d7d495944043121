"""The rule that chooses N."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megatrace.collect.sampling import (
    ASSUMED_DRAIN_WORDS_PER_S,
    COUNTER_BYTES_PER_S,
    COUNTERS_EVERY_S,
    FILE_WORDS_PER_S,
    CounterPace,
    DrainMeter,
    EveryN,
    Load,
    budget_words_per_s,
)
from megatrace.schema.layout import RECORDS_PER_LINE


def load(words: float, steps: int = 100, timeline: int = 100, lost: int = 0) -> Load:
    return Load(int(words / RECORDS_PER_LINE), lost, steps, timeline, span_s=1.0)


def test_it_starts_with_every_step() -> None:
    assert EveryN().value == 1


def test_a_rank_within_its_budget_keeps_every_step() -> None:
    assert EveryN().decide(load(1e6), budget=2e6) == 1


def test_n_is_the_full_rate_over_the_budget() -> None:
    assert EveryN().decide(load(1e7), budget=1e6) == 10


def test_a_sampled_rank_is_judged_by_what_all_its_steps_would_write() -> None:
    every = EveryN()
    every.decide(load(1e7), budget=1e6)
    assert every.decide(load(1e6, timeline=10), budget=1e6) == 10


def test_without_step_ids_the_words_are_scaled_by_n() -> None:
    every = EveryN()
    assert every.decide(load(1e7, steps=0, timeline=0), budget=1e6) == 10
    assert every.decide(load(1e6, steps=0, timeline=0), budget=1e6) == 10


def test_lost_lines_at_least_double_n() -> None:
    assert EveryN().decide(load(10, lost=1), budget=1e9) == 2


def test_a_window_without_a_timeline_step_remembers_the_last_one() -> None:
    every = EveryN()
    every.decide(load(1e8), budget=1e6)
    assert every.decide(load(0, timeline=0), budget=1e6) == 100


def test_an_idle_rank_keeps_its_n() -> None:
    every = EveryN()
    every.decide(load(1e7), budget=1e6)
    assert every.decide(load(0, steps=0, timeline=0), budget=1e6) == 10


def test_n_falls_by_halves_and_not_for_a_little() -> None:
    every = EveryN()
    every.decide(load(1.6e7), budget=1e6)
    assert every.value == 16
    assert every.decide(load(9e6), budget=1e6) == 16
    assert every.decide(load(1e6), budget=1e6) == 8


def test_a_fixed_n_stays() -> None:
    every = EveryN(fixed=7)
    assert every.decide(load(1e12, lost=5), budget=1.0) == 7


@given(
    st.lists(
        st.builds(
            Load,
            st.integers(0, 10**9),
            st.integers(0, 10**6),
            st.integers(0, 10**6),
            st.integers(0, 10**4),
            st.floats(0.0, 10.0),
        )
    ),
    st.floats(1.0, 1e9),
)
def test_n_is_always_a_number_of_steps(loads: list[Load], budget: float) -> None:
    every = EveryN()
    for each in loads:
        assert 1 <= every.decide(each, budget) <= 1 << 20


def test_the_budget_is_shared_by_the_ranks() -> None:
    assert budget_words_per_s(8e6, 8) == pytest.approx(8e6 / 2 / 8)
    assert budget_words_per_s(1e12, 1) == FILE_WORDS_PER_S


def test_small_passes_do_not_count_as_a_measured_rate() -> None:
    meter = DrainMeter()
    meter.add(10, 1.0)
    assert meter.words_per_s == ASSUMED_DRAIN_WORDS_PER_S
    meter.add(10_000, 0.01)
    assert meter.words_per_s == pytest.approx(10_000 * RECORDS_PER_LINE / 0.01)


@pytest.mark.parametrize(("ranks", "slots"), [(1, 16), (1, 62 * 1584), (8, 62 * 1584)])
def test_counters_keep_to_their_budget_however_many_there_are(ranks: int, slots: int) -> None:
    pace, size, written, times = CounterPace(), ranks * slots * 95, 0, []
    for tenth in range(6000):
        if pace.due(tenth / 10):
            pace.wrote(size, tenth / 10)
            times.append(tenth / 10)
            written += size
    assert written - size <= COUNTER_BYTES_PER_S * times[-1]
    assert times[1] - times[0] <= max(COUNTERS_EVERY_S, size / COUNTER_BYTES_PER_S) + 0.1


def test_counters_are_a_tenth_of_what_lines_may_take() -> None:
    assert COUNTER_BYTES_PER_S == FILE_WORDS_PER_S * 4 / 10
