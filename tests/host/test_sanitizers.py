"""The host build under sanitizers: right kernels pass, wrong ones are found."""

from __future__ import annotations

import pytest

from tests.host.cases import Build

RIGHT = [("reverse", 1), ("named_barriers", 3), ("ring", 3), ("partials", 3), ("message", 4)]
RIGHT += [("rejoin", 5), ("atomics", 3), ("vectors", 3), ("matrices", 3)]


@pytest.mark.parametrize("flavour", ["address", "thread"])
@pytest.mark.parametrize(("case", "seeds"), RIGHT)
def test_right_kernels_pass(build: Build, flavour: str, case: str, seeds: int) -> None:
    assert build(flavour).numbers(case, seeds) == [0]


@pytest.mark.parametrize("flavour", ["address", "thread"])
def test_a_launch_after_a_deadlock_passes(build: Build, flavour: str) -> None:
    assert build(flavour).numbers("again") == [3 * 128]


def test_a_write_past_shared_memory_is_found(build: Build) -> None:
    assert build("address").run("overflow", 0).returncode == 0
    done = build("address").run("overflow", 1)
    assert done.returncode != 0
    assert "heap-buffer-overflow" in done.stderr


def test_a_missing_barrier_is_found_as_the_race_it_is(build: Build) -> None:
    assert build("thread").run("missing_barrier", 1).returncode == 0
    done = build("thread").run("missing_barrier", 0)
    assert done.returncode != 0
    assert "data race" in done.stderr


def test_a_row_loaded_before_its_barrier_is_found_as_the_race_it_is(build: Build) -> None:
    assert build("thread").run("unwritten_rows", 1).returncode == 0
    done = build("thread").run("unwritten_rows", 0)
    assert done.returncode != 0
    assert "data race" in done.stderr
