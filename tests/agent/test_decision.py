"""Which steps carry a timeline."""

from __future__ import annotations

from megatrace.agent.decision import Decision
from megatrace.ring.control import Control
from megatrace.schema.layout import LEVEL_COUNTERS, LEVEL_OFF, LEVEL_TIMELINE


def timelines(control: Control, steps: range, **kwargs: bool) -> list[int]:
    """The steps that get one, as an agent would count them."""
    decision, begun, found = Decision(), 0, []
    for step in steps:
        if decision.level(control, step, begun=begun, **kwargs) == LEVEL_TIMELINE:
            begun += 1
            found.append(step)
    return found


def test_one_step_in_n_carries_a_timeline_and_the_others_counters() -> None:
    control = Control(level=LEVEL_TIMELINE, every_n=4, seq=2)
    assert timelines(control, range(1, 13)) == [4, 8, 12]
    assert Decision().level(control, 5) == LEVEL_COUNTERS


def test_one_step_in_n_counts_from_the_first_on_and_the_others_rest() -> None:
    control = Control(level=LEVEL_TIMELINE, every_n=4, counters_every=4, seq=2)
    decision, kept = Decision(), ""
    for step in range(1, 15):
        timeline = decision.level(control, step) == LEVEL_TIMELINE
        kept += "T" if timeline else "-" if decision.rests(control) else "C"
    assert kept == "C--T-C-T--CT--"


def test_a_page_that_does_not_say_how_often_has_counters_on_every_step() -> None:
    for every in (0, 1):
        control = Control(level=LEVEL_COUNTERS, counters_every=every)
        decision = Decision()
        assert not any(decision.rests(control) for _ in range(8))


def test_a_lower_level_is_taken_as_it_is() -> None:
    for level in (LEVEL_OFF, LEVEL_COUNTERS):
        assert Decision().level(Control(level=level, every_n=1), 1) == level


def test_a_burst_begins_with_the_next_step_and_ends() -> None:
    control = Control(level=LEVEL_TIMELINE, every_n=0, burst=3, seq=2)
    assert timelines(control, range(7, 20)) == [7, 8, 9]


def test_a_burst_runs_once_a_change_of_the_page() -> None:
    decision = Decision()
    first = Control(level=LEVEL_TIMELINE, burst=1, seq=2)
    levels = [decision.level(first, step) for step in (1, 2)]
    levels.append(decision.level(Control(level=LEVEL_TIMELINE, burst=1, seq=4), 3))
    assert levels == [LEVEL_TIMELINE, LEVEL_COUNTERS, LEVEL_TIMELINE]


def test_a_window_outranks_the_cadence() -> None:
    control = Control(level=LEVEL_TIMELINE, every_n=1, window_begin=5, window_end=8, seq=2)
    assert timelines(control, range(1, 12)) == [5, 6, 7]


def test_the_limit_stops_the_cadence_but_no_burst() -> None:
    control = Control(level=LEVEL_TIMELINE, every_n=1, timeline_limit=2, seq=2)
    assert timelines(control, range(1, 9)) == [1, 2]
    burst = Control(level=LEVEL_TIMELINE, every_n=1, burst=5, timeline_limit=2, seq=2)
    assert timelines(burst, range(1, 9)) == [1, 2, 3, 4, 5]


def test_an_open_capture_window_records_every_step() -> None:
    control = Control(level=LEVEL_TIMELINE, every_n=100, seq=2)
    assert timelines(control, range(1, 4), window_open=True) == [1, 2, 3]
