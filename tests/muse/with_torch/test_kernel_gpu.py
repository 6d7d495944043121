"""The layer kernel on a GPU at released sizes: one rank of eight, its peers emulated.

The reference's keys and values go through the same cache; what that means for one in e4m3, and
what it is held to, is said in test_kernel.py.

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

FORMS: tuple[Form, ...] = ("fused", "twin")
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
    builds = [Build.here("nvfp4"), Build.here("nvfp4", cache="e4m3"), Build.here("bf16")]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(Build.library, builds))


@pytest.fixture(
    scope="module",
    params=[
        ("nvfp4", 16, 4096, WINDOWED, "bf16"),
        ("nvfp4", 8, 1, WINDOWED, "bf16"),
        ("nvfp4", 1, 32_768, FULL, "bf16"),
        ("nvfp4", 11, 2047, WINDOWED, "bf16"),
        ("bf16", 16, 4096, FULL, "bf16"),
        ("nvfp4", 16, 4096, WINDOWED, "e4m3"),
        ("nvfp4", 8, 32_768, FULL, "e4m3"),
        ("nvfp4", 1, 2047, WINDOWED, "e4m3"),
    ],
    ids=lambda made: "-".join(map(str, made)),
)
def case(request: pytest.FixtureRequest) -> Iterator[Case]:
    kind, rows, context, layer, cache = request.param
    rank = RELEASED.shard(3, RANKS, True)
    blocks = block_count(Build.here(kind))
    yield Case(
        *(RELEASED, rank, kind, rows, context, "cuda", blocks),
        seed=rows,
        layer=layer,
        cache=cache,
    )
    torch.cuda.empty_cache()


def test_every_phase_makes_of_the_references_inputs_what_the_reference_makes(case: Case) -> None:
    found = {"attention": beyond(check_attention(case))}
    found |= {check.phase.name.lower(): beyond(check_phase(case, check)) for check in CHECKS}
    assert {phase: off for phase, off in found.items() if off} == {}


def test_the_fused_layer_and_its_twin_agree_in_every_bit(case: Case) -> None:
    made = []
    for form in FORMS:
        check_layer(case, form)
        engine, cache = case.engine, case.caches[1]
        tensors = (engine.stream, engine.q, engine.gate, cache.keys, cache.values)
        made.append([tensor.clone().view(torch.uint8) for tensor in tensors])
    assert all(torch.equal(a, b) for a, b in zip(*made, strict=True))


@pytest.mark.parametrize("form", FORMS)
def test_a_layer_is_close_to_the_references(case: Case, form: Form) -> None:
    assert beyond_in_a_layer(check_layer(case, form)) == {}


@pytest.fixture(scope="module", params=["bf16", "e4m3"])
def steps(request: pytest.FixtureRequest) -> Iterator[Steps]:
    few = replace(RELEASED, layers=RELEASED.layers[:LAYERS], vocabulary=4096)
    build = Build.here("nvfp4", cache=request.param)
    yield Steps(few, few.shard(3, RANKS, True), build, POSITIONS, "cuda", block_count(build))
    torch.cuda.empty_cache()


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
