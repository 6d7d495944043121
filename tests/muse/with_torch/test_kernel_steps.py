"""Steps over several layers in the host build: their math, their replays, and what is missing."""

from __future__ import annotations

import random
import re
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import cache
from multiprocessing import get_context

import pytest
import torch

from megatrace.muse.config import RankShape
from megatrace.muse.engine import Form
from megatrace.muse.params import EMPTY, Params, Phase
from megatrace.muse.program import Build, Program
from tests.muse.models import model
from tests.muse.phases import NEAR_TIE, ROUNDED, WHOLE_LAYER, error, margins, ulps
from tests.muse.with_torch.steps import Inputs, Steps, digests, digests_under

SMALL = model()
FOUR = replace(SMALL, layers=(*SMALL.layers, SMALL.layers[0]))
"""With the embedding's an odd number of launches."""
TWO, ONE = (replace(SMALL, layers=SMALL.layers[:count]) for count in (2, 1))
ALONE, SECOND = SMALL.shard(0, 1), SMALL.shard(1, 2, True)
POSITIONS = 200
INPUTS: tuple[Inputs, ...] = ((1, 0), (16, 33), (5, 130), (9, 15), (2, 64))
FORMS: tuple[Form, ...] = ("fused", "twin")


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def make(layers: int, rank: RankShape = ALONE) -> Steps:
    by_count = {1: ONE, 2: TWO, 3: SMALL, 4: FOUR}
    steps = Steps(by_count[layers], rank, Build(), POSITIONS)
    for i in range(layers):
        steps.engine.tap(i)
    return steps


# -- launches --------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
def test_launches_from_the_third_on_may_read_before_the_one_before_has_ended(form: Form) -> None:
    launches = make(3).engine.step(5, form, embed=True)
    assert len(launches) > 3
    assert [p.early for p in launches] == [0, 0] + [1] * (len(launches) - 2)


# -- the math --------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("rank", [ALONE, SECOND], ids=["alone", "second"])
@pytest.mark.parametrize(("layers", "inputs"), [(3, (5, 40)), (4, (16, 9))])
def test_every_layer_of_a_step_follows_the_reference(
    layers: int, inputs: Inputs, rank: RankShape, form: Form
) -> None:
    steps = make(layers, rank)
    streams = steps.streams(inputs, form)
    first, *taps = steps.reference(inputs, streams)
    assert error(streams[0], first["embed"]["stream"]) <= ROUNDED
    for i, tap in enumerate(taps):
        logits, bias = tap["router"]["logits"], steps.tensors[i].router_bias
        clear = margins(logits, bias, steps.model) >= NEAR_TIE
        assert clear.sum() > inputs[0] // 2
        stream = tap["ffn_boundary"]["stream"]
        assert error(streams[i + 1][clear], stream[clear]) <= WHOLE_LAYER
        keys, values = steps.new_keys(i, inputs)
        assert ulps(keys, tap["qkv_finish"]["keys"]) <= 1
        assert ulps(values, tap["qkv_finish"]["values"]) <= 1
        assert torch.equal(steps.engine.taps[i][: inputs[0]], streams[i + 1].bfloat16())
    steps.restore(inputs)
    assert steps.disturbed() == 0


@pytest.mark.parametrize("form", FORMS)
def test_a_step_is_its_launches_one_by_one(form: Form) -> None:
    steps, inputs = make(3), INPUTS[1]
    steps.streams(inputs, form)
    one_by_one = steps.digest(inputs)
    steps.restore(inputs)
    assert digests(steps, [inputs], form) == [one_by_one]


# -- replays ---------------------------------------------------------------------------


@cache
def expected(layers: int, rank: RankShape) -> dict[Inputs, str]:
    """The outcome of each of INPUTS by an engine that has done nothing before."""
    return {one: digests(make(layers, rank), [one])[0] for one in INPUTS}


def shuffled(times: int) -> list[Inputs]:
    order = list(INPUTS) * times
    random.Random(times).shuffle(order)
    return order


def test_outcomes_of_other_inputs_differ() -> None:
    assert len(set(expected(3, ALONE).values())) == len(INPUTS)


@pytest.mark.parametrize(
    ("layers", "rank", "form"),
    [(3, ALONE, "fused"), (4, SECOND, "fused"), (3, SECOND, "twin"), (4, ALONE, "twin")],
    ids=["3-alone-fused", "4-second-fused", "3-second-twin", "4-alone-twin"],
)
def test_the_same_inputs_give_the_same_bits_whatever_came_before(
    layers: int, rank: RankShape, form: Form
) -> None:
    order = shuffled(3)
    wanted = [expected(layers, rank)[one] for one in order]
    assert digests(make(layers, rank), order, form) == wanted


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("layers", [3, 4])
def test_a_step_leaves_the_words_of_its_first_launch_empty(layers: int, form: Form) -> None:
    steps = make(layers)
    empty = EMPTY - (1 << 32)
    with steps.program(16, form) as program:
        for _ in range(3):
            steps.replay(program, (16, 7))
            assert (steps.engine.handoff_words(0) == empty).all()
            assert (steps.engine.handoff_words(2 if layers == 4 else 1) != empty).any()


SCHEDULES: tuple[tuple[Form, str, str, str], ...] = (
    ("fused", "11", "1", "0"),
    ("fused", "12", "0", "1"),
    ("fused", "13", "1", "1"),
    ("twin", "14", "1", "1"),
)
"""Form, then seed, chaos and overlap of the host build."""


def test_no_schedule_changes_a_bit() -> None:
    """Every replay has a schedule of its own; warps switch at stores, launches overlap."""
    order = shuffled(2)
    with ProcessPoolExecutor(2, get_context("spawn"), max_tasks_per_child=1) as pool:
        running = [
            pool.submit(
                digests_under,
                {
                    "MEGATRACE_HOST_SEED": seed,
                    "MEGATRACE_HOST_CHAOS": chaos,
                    "MEGATRACE_HOST_OVERLAP": overlap,
                },
                SMALL,
                SECOND,
                POSITIONS,
                order,
                form,
                Build(),
            )
            for form, seed, chaos, overlap in SCHEDULES
        ]
        found = [task.result() for task in running]
    steps = Steps(SMALL, SECOND, Build(), POSITIONS)
    assert found == [digests(steps, order)] * len(SCHEDULES)


# -- what is missing -------------------------------------------------------------------

WAITED_FOR = {
    Phase.EMBED: "a_wait",
    Phase.ATTENTION: "attn_part_wait",
    Phase.ATTENTION_MERGE: "heads_wait",
    Phase.O_PROJ: "o_part_wait",
    Phase.ATTN_BOUNDARY: "x_wait",
    Phase.ROUTER: "router_part_wait",
    Phase.ROUTE: "routes_wait",
    Phase.EXPERTS_UP: "act_wait",
    Phase.EXPERTS_DOWN: "down_wait",
    Phase.EXPERT_SUM: "expert_row_wait",
    Phase.POST_PROJ: "post_part_wait",
    Phase.FFN_BOUNDARY: "a_wait",
    Phase.QKV: "qkv_part_wait",
}


def without(launches: list[Params], phase: Phase) -> list[Params]:
    """The launches with one phase of the first layer that has it left out."""
    at = next(i for i, p in enumerate(launches) if p.phases >> phase & 1)
    left = launches[at].phases & ~(1 << phase)
    if left == 0:
        return launches[:at] + launches[at + 1 :]
    launches[at].phases = left
    return launches


def test_only_what_the_next_launch_reads_is_not_waited_for() -> None:
    """It begins when the one before has ended."""
    assert set(Phase) - set(WAITED_FOR) == {Phase.QKV_FINISH}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("phase", WAITED_FOR, ids=lambda phase: phase.name.lower())
def test_a_missing_phase_is_a_deadlock_that_names_what_is_waited_for(
    phase: Phase, form: Form
) -> None:
    steps, inputs = make(2), INPUTS[1]
    steps.prepare(inputs)
    launches = without(steps.launches(inputs[0], form), phase)
    deadlock = pytest.raises(RuntimeError, match="deadlock: every lane waits")
    with Program(launches, steps.build, blocks=steps.blocks) as program, deadlock as stopped:
        program.replay()
    spins = set(re.findall(r"spin '(\w+)' slot (\d+)", str(stopped.value)))
    assert WAITED_FOR[phase] in {event for event, _ in spins}
    assert {int(slot) for event, slot in spins if event == WAITED_FOR[phase]} <= set(range(4))


def test_after_a_deadlock_emptied_words_are_as_good_as_new() -> None:
    steps, inputs = make(3), INPUTS[1]
    steps.prepare(inputs)
    launches = without(steps.launches(inputs[0]), Phase.ROUTE)
    with Program(launches, steps.build, blocks=4) as program, pytest.raises(RuntimeError):
        program.replay()
    steps.engine.empty()
    steps.restore(inputs)
    assert digests(steps, [inputs]) == [expected(3, ALONE)[inputs]]


def test_words_that_nobody_emptied_are_taken_for_data() -> None:
    """A kernel cannot tell: emptying is the caller's, or of the launch before."""
    steps = make(1)
    whole = steps.engine.step(4, "twin")
    lacking = without(steps.engine.step(4, "twin"), Phase.O_PROJ)
    with Program(whole, steps.build, blocks=4) as program:
        program.replay()
    with Program(lacking, steps.build, blocks=4) as program:
        program.replay()
        steps.engine.empty()
        with pytest.raises(RuntimeError, match="'o_part_wait'"):
            program.replay()
