"""The layer kernel on a GPU at released sizes: one rank of eight, its peers emulated.

    python3 -m pytest -q tests/muse/with_torch/test_kernel_gpu.py -m gpu

``MEGATRACE_REPLAYS=10000`` replays the graph more often than the default of 1000 times.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch

from megatrace.muse.config import RELEASED
from megatrace.muse.engine import Form
from megatrace.muse.program import Build, block_count
from tests.muse.phases import (
    CHECKS,
    Case,
    beyond,
    beyond_in_a_layer,
    check_attention,
    check_layer,
    check_phase,
)
from tests.muse.with_torch.steps import Inputs, Steps, digests

pytestmark = pytest.mark.gpu

RANKS = 8
WINDOWED, FULL = 0, 1
"""Layers of the released model by what they see."""
LAYERS, POSITIONS = 4, 32_784
INPUTS: tuple[Inputs, ...] = tuple(
    (rows, context) for rows in (16, 8, 1) for context in (0, 1, 63, 2040, 2047, 2048, 4096, 32_768)
)
REPLAYS = int(os.environ.get("MEGATRACE_REPLAYS", "1000"))


@pytest.fixture(scope="module", autouse=True)
def built() -> None:
    """Compile what is needed, side by side."""
    if not torch.cuda.is_available():
        pytest.skip("this torch has no CUDA")
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(Build.library, [Build.here("nvfp4"), Build.here("bf16")]))


@pytest.fixture(
    scope="module",
    params=[
        ("nvfp4", 16, 4096, WINDOWED),
        ("nvfp4", 8, 1, WINDOWED),
        ("nvfp4", 1, 32_768, FULL),
        ("nvfp4", 11, 2047, WINDOWED),
        ("bf16", 16, 4096, FULL),
    ],
    ids=lambda made: "-".join(map(str, made)),
)
def case(request: pytest.FixtureRequest) -> Iterator[Case]:
    kind, rows, context, layer = request.param
    rank = RELEASED.shard(3, RANKS, True)
    blocks = block_count(Build.here(kind))
    yield Case(RELEASED, rank, kind, rows, context, "cuda", blocks, seed=rows, layer=layer)
    torch.cuda.empty_cache()


def test_every_phase_makes_of_the_references_inputs_what_the_reference_makes(case: Case) -> None:
    found = {"attention": beyond(check_attention(case))}
    found |= {check.phase.name.lower(): beyond(check_phase(case, check)) for check in CHECKS}
    assert {phase: off for phase, off in found.items() if off} == {}


@pytest.mark.parametrize("form", ["fused", "twin"])
def test_a_layer_is_close_to_the_references(case: Case, form: Form) -> None:
    assert beyond_in_a_layer(check_layer(case, form)) == {}


@pytest.fixture(scope="module")
def steps() -> Steps:
    few = replace(RELEASED, layers=RELEASED.layers[:LAYERS], vocabulary=4096)
    build = Build.here("nvfp4")
    return Steps(few, few.shard(3, RANKS, True), build, POSITIONS, "cuda", block_count(build))


@pytest.fixture(scope="module")
def expected(steps: Steps) -> dict[Inputs, str]:
    """The outcome of each of INPUTS."""
    return dict(zip(INPUTS, digests(steps, INPUTS), strict=True))


def test_the_fused_step_and_its_twin_agree_in_every_bit(
    steps: Steps, expected: dict[Inputs, str]
) -> None:
    assert dict(zip(INPUTS, digests(steps, INPUTS, "twin"), strict=True)) == expected


def test_the_same_inputs_give_the_same_bits_whatever_came_before(
    steps: Steps, expected: dict[Inputs, str]
) -> None:
    order = random.Random(1).choices(INPUTS, k=REPLAYS)
    found = zip(order, digests(steps, order), strict=True)
    assert [one for one, bits in found if bits != expected[one]] == []
