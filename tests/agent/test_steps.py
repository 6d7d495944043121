"""The signal from the host half of the agent to the device half."""

from __future__ import annotations

from megatrace.agent.steps import StepSignal, step_signal


def test_every_subscriber_hears_of_every_step() -> None:
    signal, first, second = StepSignal(), list[int](), list[int]()
    signal.subscribe(first.append)
    signal.emit(1)
    signal.subscribe(second.append)
    signal.emit(2)
    assert (first, second) == ([1, 2], [2])


def test_a_subscriber_that_fails_is_dropped_and_the_others_go_on() -> None:
    signal, steps = StepSignal(), list[int]()

    def broken(_step: int) -> None:
        raise OSError("the ring is gone")

    signal.subscribe(broken)
    signal.subscribe(steps.append)
    signal.emit(1)
    signal.emit(2)
    assert steps == [1, 2]
    assert signal.failures == ["OSError: the ring is gone"]


def test_an_unsubscribed_one_hears_no_more() -> None:
    signal, steps = StepSignal(), list[int]()
    callback = steps.append
    signal.subscribe(callback)
    signal.unsubscribe(callback)
    signal.emit(1)
    assert steps == []


def test_a_process_has_one_signal() -> None:
    assert step_signal() is step_signal()
