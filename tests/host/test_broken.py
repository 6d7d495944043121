"""Kernels that cannot end or break a rule: the message names who and what."""

from __future__ import annotations

import re

import pytest

from tests.host.cases import Cases


def test_a_deadlock_names_block_warp_role_what_and_slot(cases: Cases) -> None:
    done = cases.run("stuck")
    assert done.returncode == 1
    assert "deadlock: every lane waits and no bulk copy is in flight" in done.stderr
    rows = [" ".join(line.split()) for line in done.stderr.splitlines()[2:]]
    assert rows == [
        "1 0 loader 32 (0-31) spin 'full' slot 0: mbarrier at shared+64, parity 0 (parity 0 in "
        "progress: 3 of 3 arrivals and 0 bytes to come)",
        "1 1 math 32 (0-31) spin 'partials' slot 7",
        "1 2 store 32 (0-31) named barrier 2: 32 of 64 threads there",
        "1 3 copy 32 (0-31) syncthreads: 32 of 128 threads there",
    ]


def test_a_deadlock_is_found_soon_even_where_the_limit_is_long(cases: Cases) -> None:
    # Nothing spins here, so nothing can change with time.
    done = cases.run("left_behind", MEGATRACE_HOST_STUCK_MS="3600000")
    assert done.returncode == 1
    assert "collective syncwarp: lanes 3,9 have exited" in done.stderr


def test_lanes_at_different_collectives_are_named(cases: Cases) -> None:
    done = cases.run("mixed")
    assert done.returncode == 1
    assert re.search(
        r"divergent warp: this lane is at (syncwarp|ballot), lane \d+ at ", done.stderr
    )


def test_a_spin_without_a_pause_ends_too(cases: Cases) -> None:
    done = cases.run("bare_spin")
    assert done.returncode == 1
    assert "a spin without ptx::spin_pause()?" in done.stderr


UNLAWFUL = [
    "bulk_load: the destination at shared+24 must be aligned to 16 bytes",
    "bulk_load: the source must be aligned to 16 bytes",
    "bulk_load: 24 bytes is not a positive multiple of 16",
    "bulk_load: the destination of 64 bytes is not inside the block's 256 bytes",
    "bulk_load: the destination of 16 bytes is not inside the block's 256 bytes",
    "arrives at an mbarrier that mbar_init never made",
    "mbar_init: a count of 0 is not within 1 and 2^20 - 1",
    "barrier_sync: a block has barriers 0 to 15, not 16",
    "barrier_sync: 40 threads is not a multiple of 32 within the block",
    "a load or store of 8 bytes is not aligned",
    "trap",
    "more arrivals in a phase than mbar_init allows",
    "syncwarp with a mask that leaves out the lane itself",
    "a load or store of 16 bytes is not aligned",
    "prefetch_l2: address and bytes must be multiples of 16",
    "ldmatrix: a row at shared+8 must be aligned to 16 bytes",
    "ldmatrix: a row of 16 bytes is not inside the block's 256 bytes",
]


@pytest.mark.parametrize(("number", "reason"), list(enumerate(UNLAWFUL)))
def test_an_unlawful_instruction_is_refused_with_its_place(
    cases: Cases, number: int, reason: str
) -> None:
    done = cases.run("unlawful", number)
    assert done.returncode == 1
    assert "block 1 warp 1 lane 5: " in done.stderr
    assert reason in done.stderr


def test_waits_write_down_what_they_know_before_the_verdict(cases: Cases) -> None:
    assert cases.numbers("hang") == [64]


def test_an_exception_of_the_kernel_reaches_the_caller(cases: Cases) -> None:
    assert cases.run("throws").stdout == "caught of the body\n"


def test_a_launch_after_a_failed_one_is_whole(cases: Cases) -> None:
    assert cases.numbers("again") == [3 * 128]


def test_device_functions_outside_of_a_launch_say_so(cases: Cases) -> None:
    assert "was called outside of a launch" in cases.run("outside").stdout


def test_a_block_that_exits_before_its_copies_land_is_refused(cases: Cases) -> None:
    assert "bulk copies in flight" in cases.run("unwaited").stderr
