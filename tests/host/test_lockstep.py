"""Warps, barriers and clocks of the host build."""

from __future__ import annotations

import pytest

from tests.host.cases import Cases

WHOLE = range(32)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_lanes_of_a_warp_exchange_values(cases: Cases, seed: int) -> None:
    got = cases.numbers("warp", seed)
    for lane in WHOLE:
        assert got[7 * lane : 7 * lane + 7] == [
            (lane + 1) % 32 * 10,
            (lane ^ 5) * 10,
            (lane + 3 if lane + 3 < 32 else lane) * 10,
            (lane - 3 if lane >= 3 else lane) * 10,
            0xAAAAAAAA,
            int(lane == 0),
            sum(WHOLE),
        ]


def test_shuffles_stay_within_their_segment(cases: Cases) -> None:
    got = cases.numbers("widths")
    for lane in WHOLE:
        first = lane // 8 * 8
        down = lane + 3 if lane + 3 < first + 8 else lane
        assert got[3 * lane : 3 * lane + 3] == [first + 2, down, 1]


def test_syncthreads_orders_a_block_under_many_seeds(cases: Cases) -> None:
    assert cases.numbers("reverse", 40) == [0]


def test_syncthreads_does_not_wait_for_threads_that_left(cases: Cases) -> None:
    assert cases.numbers("early_exit", 40) == [0]


def test_named_barriers_make_two_warps_take_turns(cases: Cases) -> None:
    assert cases.numbers("named_barriers", 200) == [0]


def test_lanes_of_a_warp_get_the_same_answer_at_the_same_instruction(cases: Cases) -> None:
    assert cases.numbers("answers", 400) == [0]


def test_a_warp_is_together_again_after_one_lane_has_polled(cases: Cases) -> None:
    assert cases.numbers("rejoin", 1000) == [0]


def test_sm_clocks_start_apart_and_run_at_two_cycles_a_ns(cases: Cases) -> None:
    got = cases.numbers("clocks")
    starts: dict[int, list[int]] = {}
    for sm, begin_ns, begin, end_ns, end in zip(*[iter(got)] * 5, strict=True):
        # The two reads of a pair are apart by what the other warps run in between.
        assert (end - begin) / (end_ns - begin_ns) == pytest.approx(2, rel=0.2)
        starts.setdefault(sm, []).append(begin - 2 * begin_ns)
    assert sorted(starts) == [0, 1, 2]
    first = [min(values) for values in starts.values()]
    assert max(first) - min(first) > 100_000


def test_a_seed_reproduces_its_schedule_and_another_gives_another(cases: Cases) -> None:
    def run(seed: int) -> str:
        return cases.run("schedule", seed).stdout

    assert run(7) == run(7)
    assert len({run(seed) for seed in range(6)}) == 6
