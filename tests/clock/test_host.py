"""Host against GPU: offset, drift and error from bracketed reads."""

from __future__ import annotations

import numpy as np
import pytest

from megatrace.clock import HostClock, fit_host
from megatrace.errors import ClockError

GT0, HOST0 = 1_790_000_000_000_000_000, 86_400_000_000_000


def samples(
    count: int, *, drift: float = 0.0, jitter_ns: int = 0, every_ns: int = 10**9
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Host before, host after and globaltimer between; 2 us apart, now and then far more."""
    rng = np.random.default_rng(4)
    true = np.arange(count, dtype=np.int64) * every_ns
    gt = GT0 + true
    host = HOST0 + true + np.rint(true * drift).astype(np.int64)
    trip = 2000 + rng.integers(0, jitter_ns + 1, count)
    before = rng.integers(0, trip + 1)
    return host - before, host - before + trip, gt


def error(clock: HostClock, drift: float, at_ns: int) -> float:
    """How far the clock is from the truth at a time since start."""
    truth = HOST0 + at_ns + round(at_ns * drift)
    return abs(int(clock.to_host_ns(np.array([GT0 + at_ns]))[0]) - truth)


@pytest.mark.parametrize("drift", [0.0, 3e-5, -3e-5])
def test_offset_and_drift_are_found_within_the_stated_error(drift: float) -> None:
    clock = fit_host(*samples(60, drift=drift))
    assert clock.drift == pytest.approx(drift, abs=1e-7)
    for at in (0, 30 * 10**9, 59 * 10**9):
        assert error(clock, drift, at) <= clock.error_ns


def test_the_error_is_half_the_best_round_trip_at_least() -> None:
    clock = fit_host(*samples(30))
    assert clock.round_trip_ns == 2000
    assert 1000 <= clock.error_ns <= 2500


def test_interrupted_samples_are_left_out() -> None:
    begin, end, gt = samples(40)
    end[::4] += 3_000_000
    clock = fit_host(begin, end, gt)
    assert clock.samples == 30
    assert clock.error_ns <= 2500


def test_there_and_back_is_the_same_time() -> None:
    clock = fit_host(*samples(20, drift=2e-5))
    gt = GT0 + np.arange(0, 10**10, 10**8)
    assert np.abs(clock.from_host_ns(clock.to_host_ns(gt)) - gt).max() <= 1


def test_one_sample_is_too_few() -> None:
    with pytest.raises(ClockError, match="1 clock samples") as caught:
        fit_host(*samples(1))
    assert caught.value.hint


def test_two_samples_are_enough() -> None:
    clock = fit_host(*samples(2))
    assert error(clock, 0.0, 10**9) <= clock.error_ns


def test_short_round_trips_of_one_moment_do_not_say_the_drift() -> None:
    begin, end, gt = samples(20)
    # Three at attach, with nothing else on the machine; then one a second, busy.
    begin[:3] = HOST0 + np.array([0, 20_000, 40_000])
    gt[:3], end[:3] = GT0 + np.array([90, 20_000, 40_000]), begin[:3] + 120
    clock = fit_host(begin, end, gt)
    assert abs(clock.drift) < 1e-6
    for at in (0, 10**10, 19 * 10**9):
        assert error(clock, 0.0, at) <= clock.error_ns < 5000
