"""Data from warp to warp and block to block, under many schedules."""

from __future__ import annotations

import pytest

from tests.host.cases import Build, Cases


def test_a_ring_of_bulk_copies_delivers_every_tile_under_many_seeds(cases: Cases) -> None:
    assert cases.numbers("ring", 300) == [0]


def test_relaxed_data_as_flag_reaches_all_blocks_under_many_seeds(cases: Cases) -> None:
    assert cases.numbers("partials", 300) == [0]


def test_plain_data_arrives_before_its_released_flag(cases: Cases) -> None:
    assert cases.numbers("message", 500) == [0]


def test_atomics_lose_nothing_and_a_lock_excludes(cases: Cases) -> None:
    assert cases.numbers("atomics", 200) == [0]


def test_a_bulk_copy_lands_sometimes_at_once_and_sometimes_later(cases: Cases) -> None:
    (at_once,) = cases.numbers("landing", 200)
    assert 0 < at_once < 200


@pytest.mark.parametrize("case", ["ring", "partials", "message", "rejoin"])
def test_hand_offs_hold_with_ucontext_in_place_of_the_own_switch(build: Build, case: str) -> None:
    assert build("ucontext").numbers(case, 10) == [0]
