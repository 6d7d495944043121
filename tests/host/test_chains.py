"""Launches of a chain, one after the other and overlapping."""

from __future__ import annotations

import pytest

from tests.host.cases import Build, Cases


def test_launches_of_a_chain_follow_each_other(cases: Cases) -> None:
    assert cases.numbers("chain", 50, 0) == [0, 0]


def test_overlapping_launches_begin_early_and_wait_for_the_end(cases: Cases) -> None:
    wrong, early = cases.numbers("chain", 100, 1)
    assert wrong == 0
    assert early > 50


def test_a_launch_that_forgets_to_wait_is_caught_by_some_schedule(cases: Cases) -> None:
    assert cases.numbers("hasty", 100, 1) == [0]
    (wrong,) = cases.numbers("hasty", 100, 0)
    assert wrong > 0


def test_a_launch_that_waits_for_the_next_one_is_a_deadlock_with_both_in_it(cases: Cases) -> None:
    done = cases.run("stuck_chain")
    assert done.returncode == 1
    assert "spin 'second' slot 0" in done.stderr
    assert "launch +1 spin 'end of the launch before'" in done.stderr


@pytest.mark.parametrize("flavour", ["address", "thread"])
def test_overlapping_launches_pass_the_sanitizers(build: Build, flavour: str) -> None:
    assert build(flavour).numbers("chain", 4, 1)[0] == 0


def test_a_missing_wait_is_found_as_the_race_it_is(build: Build) -> None:
    assert build("thread").run("hasty", 20, 1).returncode == 0
    assert "data race" in build("thread").run("hasty", 20, 0).stderr
