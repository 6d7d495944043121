"""The credit that keeps a ring from overrunning."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from megatrace.collect.credit import FIRST, Credit
from megatrace.schema.layout import arg_word, record_word


def lines_of(*steps: tuple[int, int]) -> NDArray[np.uint32]:
    """Lines of one warp: for each (step, lines) a header line and others."""
    total = sum(count for _, count in steps)
    lines = np.zeros((total, 32), np.uint32)
    at = 0
    for step, count in steps:
        lines[at, 1], lines[at, 3] = record_word(1, 0), arg_word(step)
        at += count
    return lines


def feed(credit: Credit, lines: NDArray[np.uint32], ring: int = 0) -> bool:
    return credit.feed(np.full(len(lines), ring, np.uint32), lines)


def nothing_new(credit: Credit) -> bool:
    return feed(credit, np.zeros((0, 32), np.uint32))


def test_until_a_step_was_measured_the_limit_is_the_first() -> None:
    credit = Credit(256)
    assert credit.limit == FIRST
    assert not feed(credit, lines_of((1, 10)))
    assert credit.limit == FIRST


def test_a_measured_step_opens_the_rest_of_the_ring() -> None:
    credit = Credit(256)
    assert feed(credit, lines_of((1, 10), (2, 10)))
    assert credit.limit == 1 + int(0.75 * 256 / 10)


def test_steps_are_measured_across_drains() -> None:
    credit = Credit(64)
    feed(credit, lines_of((1, 3)))
    rest = np.zeros((5, 32), np.uint32)
    feed(credit, rest)
    feed(credit, lines_of((2, 1)))
    assert credit.limit == 1 + int(0.75 * 64 / 8)


def test_launches_of_one_step_are_one_step() -> None:
    credit = Credit(64)
    feed(credit, lines_of((1, 4), (1, 4), (1, 4), (2, 4)))
    assert credit.limit == 1 + int(0.75 * 64 / 12)


def test_the_slowest_warp_holds_the_limit() -> None:
    credit = Credit(64)
    feed(credit, lines_of((1, 8)), ring=1)
    feed(credit, lines_of((1, 8), (2, 8), (3, 8)), ring=0)
    assert credit.limit == max(FIRST, 0 + int(0.75 * 64 / 8))


def test_a_step_larger_than_the_ring_still_goes_on_one_at_a_time() -> None:
    credit = Credit(4)
    for step in range(1, 30):
        assert step <= credit.limit, "the agent may begin the step"
        feed(credit, lines_of((step, 40)))
        nothing_new(credit)
        assert credit.limit == step + 1


def test_a_ring_without_lines_has_no_limit() -> None:
    assert Credit(0).limit == 0


def test_warps_that_are_in_one_step_alone_do_not_hold_the_limit_for_ever() -> None:
    credit = Credit(64)
    for step in range(1, 30):
        assert step <= credit.limit, "the agent may begin the step"
        feed(credit, lines_of((step, 8)), ring=step)
        nothing_new(credit)
    assert credit.limit == 29 - 1 + FIRST
    feed(credit, lines_of((30, 8)), ring=7)
    nothing_new(credit)
    assert credit.limit == 30 - 1 + int(0.75 * 64 / 8)


def test_a_drain_of_nothing_in_mid_step_does_not_make_a_part_of_a_step_a_whole_one() -> None:
    credit = Credit(512)
    feed(credit, lines_of((1, 2)))  # one copy of a ring that is not pinned, of a step of 100
    nothing_new(credit)
    assert credit.limit == FIRST
    feed(credit, np.zeros((98, 32), np.uint32))
    nothing_new(credit)
    assert credit.limit == FIRST
    feed(credit, lines_of((2, 3)))
    nothing_new(credit)
    assert credit.limit == 2 - 1 + int(0.75 * 512 / 100)


def test_a_drain_of_nothing_before_the_first_line_gives_nothing() -> None:
    credit = Credit(64)
    assert not nothing_new(credit)
    assert credit.limit == FIRST
