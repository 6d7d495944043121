"""Medians and p95 of many groups, exact and from histograms."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from megatrace.analysis.stats import RELATIVE_ERROR, Durations

DURATIONS = hnp.arrays(np.float64, st.integers(1, 200), elements=st.integers(0, 1 << 24))


@settings(max_examples=50)
@given(st.lists(DURATIONS, min_size=1, max_size=5))
def test_exact_quantiles_are_those_of_numpy(groups: list[np.ndarray]) -> None:
    gathered = Durations()
    for number, values in enumerate(groups):
        gathered.add(np.full(len(values), number), values)
    found = gathered.quantiles(len(groups))
    assert gathered.exact
    for number, values in enumerate(groups):
        assert found.median_ns[number] == pytest.approx(np.quantile(values, 0.5))
        assert found.p95_ns[number] == pytest.approx(np.quantile(values, 0.95))


@pytest.mark.parametrize("scale", [1.0, 40.0, 3e3, 5e6, 2e9])
def test_a_histogram_is_within_its_stated_error(scale: float) -> None:
    rng = np.random.default_rng(3)
    values = scale * rng.lognormal(0.5, 0.3, 20_001)
    gathered = Durations(exact_limit=1000)
    gathered.add(np.zeros(500, np.intp), values[:500])
    assert gathered.exact
    gathered.add(np.zeros(len(values) - 500, np.intp), values[500:])
    assert not gathered.exact
    found = gathered.quantiles(1)
    for q, got in ((0.5, found.median_ns[0]), (0.95, found.p95_ns[0])):
        low, high = np.quantile(values, [q - 1e-4, q + 1e-4])
        assert low * (1 - RELATIVE_ERROR) <= got <= high * (1 + RELATIVE_ERROR)
    assert RELATIVE_ERROR <= 0.005


def test_nothing_shorter_than_a_nanosecond_is_told_from_zero_in_a_histogram() -> None:
    gathered = Durations(exact_limit=0)
    gathered.add(np.zeros(3, np.intp), np.array([0.0, 0.2, 0.9]))
    assert gathered.quantiles(1).median_ns.tolist() == [0.0]


def test_an_empty_group_has_no_median() -> None:
    for limit in (0, 100):
        gathered = Durations(exact_limit=limit)
        gathered.add(np.array([2, 2]), np.array([5.0, 7.0]))
        found = gathered.quantiles(4)
        assert np.isnan(found.median_ns).tolist() == [True, True, False, True]


def test_durations_longer_than_the_last_bin_stay_in_it() -> None:
    gathered = Durations(exact_limit=0)
    gathered.add(np.zeros(1, np.intp), np.array([1e12]))
    assert gathered.quantiles(1).median_ns[0] == pytest.approx(1 << 33, rel=0.01)
