"""Clock of an SM against globaltimer: the fit, its pieces and its stated error."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from megatrace.clock import ClockModel, ClockSamples, fit_rank, quantum_of
from megatrace.errors import ClockError
from tests.clock.gpu import Gpu


def worst_ns(gpu: Gpu, model: ClockModel, sm: int, first_ns: int, last_ns: int) -> float:
    """Largest distance between model and truth over times since start."""
    ns = np.linspace(first_ns, last_ns, 2000).astype(np.int64)
    return float(np.abs(model.sm(sm).to_ns(gpu.cycles(sm, ns)) - gpu.start_ns - ns).max())


def test_the_fit_is_far_finer_than_a_tick() -> None:
    gpu = Gpu()
    model = fit_rank(0, gpu.launches(200))
    assert worst_ns(gpu, model, 1, 1000, 200 * 56_000) < 10
    assert model.ns_per_cycle == pytest.approx(1 / 1.98, rel=1e-6)


def test_the_stated_error_covers_the_true_one_and_the_tick() -> None:
    model = fit_rank(0, Gpu().launches(200))
    assert model.quantum_ns == 32
    assert 32 <= model.error_ns < 45
    assert all(sm.held_out for sm in model.sms.values())


def test_a_change_of_frequency_becomes_a_corner() -> None:
    span = 300 * 56_000
    gpu = Gpu(rates=(1.98, 1.755, 1.98), since=(0, span // 3, span // 2))
    model = fit_rank(0, gpu.launches(300))
    assert worst_ns(gpu, model, 0, 1000, span - 2000) < 200
    assert model.error_ns < 250
    rates = model.sm(0).rate_at(gpu.cycles(0, np.array([span // 6, 5 * span // 12, 5 * span // 6])))
    assert rates.tolist() == pytest.approx([1 / 1.98, 1 / 1.755, 1 / 1.98], rel=1e-4)


def test_a_change_while_nothing_ran_stays_between_the_launches() -> None:
    gpu = Gpu(rates=(1.98, 1.2), since=(0, 60_000_000))
    early = gpu.launches(100)
    gap = 150_000_000
    late = gpu.launches(100, first_ns=gap, first=2000)
    both = ClockSamples(*(
        np.concatenate([getattr(early, n), getattr(late, n)])
        for n in ("sm", "launch", "clock", "globaltimer", "exact")
    ))  # fmt: skip
    model = fit_rank(0, both)
    assert worst_ns(gpu, model, 0, 1000, 100 * 56_000) < 40
    assert worst_ns(gpu, model, 0, gap + 1000, gap + 99 * 56_000) < 40


def test_reads_that_were_pulled_apart_do_not_bend_the_line() -> None:
    gpu = Gpu(rates=(2.5,), quantum_ns=1)
    samples = gpu.launches(200)
    clock = samples.clock.copy()
    torn = np.random.default_rng(2).choice(len(clock), len(clock) // 50, replace=False)
    clock[torn] += 5_000_000  # preempted between the two reads, for 2 ms
    model = fit_rank(0, replace(samples, clock=clock), default_quantum_ns=1)
    assert worst_ns(gpu, model, 0, 1000, 200 * 56_000) < 20
    assert model.error_ns > 1_000_000  # and it is said that such samples exist


def test_two_launches_are_enough_with_a_larger_error() -> None:
    gpu = Gpu()
    model = fit_rank(0, gpu.launches(2, sms=1, warps=1), reach_cycles=110_000)
    assert not model.sm(0).held_out
    assert 60 < model.error_ns < 100
    assert worst_ns(gpu, model, 0, 500, 110_000) <= model.error_ns


def test_a_launch_of_one_moment_shows_no_rate() -> None:
    with pytest.raises(ClockError, match="no rate") as caught:
        fit_rank(3, Gpu().launches(1, warps=12))
    assert "two launches" in caught.value.hint


def test_an_sm_with_one_sample_takes_its_rate_from_the_others() -> None:
    gpu = Gpu()
    samples = gpu.launches(100)
    other = np.flatnonzero(samples.sm == 1)
    keep = np.concatenate([np.flatnonzero(samples.sm == 0), other[:1]])
    model = fit_rank(0, samples.take(keep))
    assert worst_ns(gpu, model, 1, 1000, 50_000) <= model.sm(1).error_ns
    assert model.sm(1).rate[0] == pytest.approx(1 / 1.98, rel=1e-6)


def test_without_samples_there_is_no_clock() -> None:
    with pytest.raises(ClockError, match="no clock samples"):
        fit_rank(0, Gpu().launches(1).take(np.array([], np.intp)))


def test_an_sm_that_never_ran_is_refused() -> None:
    model = fit_rank(0, Gpu().launches(20))
    with pytest.raises(ClockError, match="SM 7"):
        model.place(np.array([7], np.int32), np.array([1]))


def test_no_times_have_no_places() -> None:
    """Of a capture none of whose launches is whole: the first one hung."""
    model = fit_rank(0, Gpu().launches(20))
    ns, rate, error = model.place(np.array([], np.int32), np.array([], np.int64))
    assert (len(ns), len(rate), len(error)) == (0, 0, 0)


def test_the_quantum_is_read_off_the_values() -> None:
    ns = np.random.default_rng(1).integers(0, 10**9, 500)
    assert quantum_of(ns // 32 * 32 + 1_790_000_000_000_000_000, 1) == 32
    assert quantum_of(ns, 32) == 1
    assert quantum_of(ns[:3], 32) == 32


def test_many_launches_are_fitted_in_windows() -> None:
    gpu = Gpu()
    model = fit_rank(0, gpu.launches(2000, sms=1))
    assert worst_ns(gpu, model, 0, 1000, 2000 * 56_000) < 10
    assert len(model.sm(0).knots) > 3


def restless(count: int) -> Gpu:
    """A clock that is another in every launch of 56 us."""
    return Gpu(rates=(1.9, 1.77) * (count // 2), since=tuple(range(0, count * 56_000, 56_000)))


def test_a_clock_that_is_another_in_every_launch_is_followed_from_header_to_header() -> None:
    gpu = restless(12)
    model = fit_rank(0, gpu.launches(12), reach_cycles=106_000)
    off = worst_ns(gpu, model, 0, 1000, 11 * 56_000)
    assert off < model.error_ns < 2500
    assert off < 100
    one = fit_rank(0, Gpu().launches(12), reach_cycles=106_000)
    assert one.error_ns < 60


def test_an_sm_that_ran_a_few_of_the_launches_takes_the_rates_of_one_that_ran_all() -> None:
    gpu = restless(12)
    samples = gpu.launches(12)
    few = samples.take(np.flatnonzero((samples.sm == 0) | np.isin(samples.launch, (3, 8))))
    model = fit_rank(0, few, reach_cycles=106_000)
    for launch in (3, 8):
        off = worst_ns(gpu, model, 1, launch * 56_000 + 1000, (launch + 1) * 56_000)
        assert off < 100


def test_a_long_pause_says_nothing_of_the_clock_after_it() -> None:
    pause_ns = 300_000_000
    gpu = Gpu(rates=(1.9, 0.3, 1.7), since=(0, 20 * 56_000, pause_ns))
    first, second = gpu.launches(20), gpu.launches(20, first_ns=pause_ns, first=20)
    both = ClockSamples(
        *(
            np.concatenate(pair)
            for pair in zip(
                (first.sm, first.launch, first.clock, first.globaltimer, first.exact),
                (second.sm, second.launch, second.clock, second.globaltimer, second.exact),
                strict=True,
            )
        )
    )
    model = fit_rank(0, both, reach_cycles=106_000)
    assert worst_ns(gpu, model, 0, 1000, 20 * 56_000 - 2000) < 60
    assert worst_ns(gpu, model, 0, pause_ns + 1000, pause_ns + 20 * 56_000 - 2000) < 60
