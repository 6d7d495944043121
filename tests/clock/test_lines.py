"""Lines through many windows at once."""

from __future__ import annotations

import numpy as np
import pytest

from megatrace.clock.lines import Window, fit_line, fit_lines, median

RATE = 0.5
QUANTUM = 32.0


def _window(length: int, seed: int, *, bad: int = 0) -> Window:
    rng = np.random.default_rng(seed)
    x = np.cumsum(rng.integers(100_000, 300_000, length)).astype(np.float64)
    y = RATE * x + rng.uniform(0, QUANTUM, length)
    y[rng.integers(0, length, bad)] += 5_000
    return Window(x, y, rng.choice([1.0, 2.56], length))


@pytest.mark.parametrize("length", [2, 3, 4, 7, 8, 9, 64, 130, 512])
def test_a_window_among_many_is_fitted_as_it_is_alone(length: int) -> None:
    windows = [_window(length, seed, bad=seed % 3 if length > 8 else 0) for seed in range(40)]
    assert fit_lines(windows, QUANTUM) == [fit_line(window, QUANTUM) for window in windows]


def test_windows_of_several_lengths_come_back_in_their_order() -> None:
    windows = [_window(length, length) for length in (4, 9, 4, 30, 9, 4)]
    assert [line.first for line in fit_lines(windows, QUANTUM)] == [w.x[0] for w in windows]


def test_a_bad_point_moves_no_line() -> None:
    window = _window(30, 1)
    window.y[7] += 1e6
    assert fit_line(window, QUANTUM).rate == pytest.approx(RATE, rel=1e-4)


def test_points_at_one_place_give_no_rate() -> None:
    still = np.full(6, 1000.0)
    line = fit_line(Window(still, np.arange(6.0), np.ones(6)), QUANTUM)
    assert line.rate == 0.0
    assert line.at == pytest.approx(2.5)


def test_a_median_is_that_of_numpy() -> None:
    values = np.random.default_rng(3).normal(size=(50, 9))
    for count in range(1, 10):
        part = values[:, :count]
        assert median(part).tolist() == np.median(part, axis=1).tolist()
