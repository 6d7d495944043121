"""One axis for ranks and host."""

from __future__ import annotations

import numpy as np
import pytest

from megatrace.errors import ClockError
from megatrace.export.timeline import timeline
from tests.export.traces import EPOCH_NS, HOST_EPOCH_NS, clock


def test_the_first_ranks_times_stay_as_they_are() -> None:
    axis = timeline({2: clock(2), 5: clock(5)}, [2, 5])
    times = np.array([EPOCH_NS, EPOCH_NS + 77])
    assert axis.gpu(2, times) is times
    assert axis.axis == "globaltimer of rank 2"
    assert axis.gpu_error_ns(2) == 40


def test_another_rank_comes_through_the_host_with_both_errors() -> None:
    axis = timeline({2: clock(2), 5: clock(5)}, [2, 5])
    assert axis.gpu(5, np.array([EPOCH_NS + 5000])).tolist() == [EPOCH_NS + 2000]
    assert axis.gpu_error_ns(5) == 40 + 600 + 600


def test_host_times_come_through_the_first_rank() -> None:
    axis = timeline({2: clock(2)}, [2])
    assert axis.host(np.array([HOST_EPOCH_NS + 10])).tolist() == [EPOCH_NS + 2010]
    assert axis.host_error_ns == 600


def test_one_rank_without_samples_has_no_host() -> None:
    axis = timeline({0: clock(0, host=False)}, [0])
    assert axis.host_error_ns is None
    assert "GPU only" in axis.host_missing
    with pytest.raises(ClockError, match="GPU only"):
        axis.host(np.array([1]))


def test_several_ranks_need_samples_each() -> None:
    with pytest.raises(ClockError, match="rank 0, 3"):
        timeline({0: clock(0, host=False), 1: clock(1), 3: clock(3, host=False)}, [0, 1, 3])


def test_a_rank_that_is_not_shown_needs_none() -> None:
    assert timeline({0: clock(0), 1: clock(1, host=False)}, [0]).host_missing == ""


def test_without_launches_the_axis_is_the_hosts() -> None:
    axis = timeline({}, [])
    assert axis.host(np.array([5])).tolist() == [5]
    assert axis.host_error_ns == 0
