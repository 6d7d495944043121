"""What a cache in e4m3 adds to the layer kernel, in the host build: its roundings, its refusals.

Every phase and whole layers over such a cache are in test_kernel.py, with what they are held to.
"""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import replace
from multiprocessing import get_context

import numpy as np
import pytest
import torch

from megatrace.errors import UsageError
from megatrace.jit import HOST
from megatrace.muse.engine import CACHE_DTYPES, Engine, new_cache
from megatrace.muse.memory import kv_bytes
from megatrace.muse.params import Phase
from megatrace.muse.plan import CacheKind
from megatrace.muse.program import Build, Program
from megatrace.muse.reference import stored
from tests.kernels import arithmetic
from tests.muse.models import model
from tests.muse.phases import (
    CHECKS,
    CODES_OF_A_LAYER,
    NEAR_TIE,
    WHOLE_LAYER,
    Case,
    beyond,
    check_attention,
    check_phase,
    error,
    kept,
    margins,
)
from tests.muse.with_torch.paged import Paged
from tests.muse.with_torch.steps import Inputs, Steps, digests, digests_under

SMALL = replace(model(), positions=1024)
SECOND = SMALL.shard(1, 2, True)
POSITIONS = 200
INPUTS: tuple[Inputs, ...] = ((1, 0), (16, 33), (5, 130), (9, 15))
E4M3 = Build(cache="e4m3")
QKV_FINISH = next(check for check in CHECKS if check.phase is Phase.QKV_FINISH)


@pytest.fixture(scope="module", autouse=True)
def built() -> None:
    torch.set_num_threads(1)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(Build.library, [E4M3, Build()]))


E4M3_AND_BF16: tuple[CacheKind, ...] = ("e4m3", "bf16")


def both(rows: int, context: int, layer: int) -> tuple[Case, Case]:
    """The same case over a cache in e4m3, and over one in bf16 that holds the same numbers."""
    codes, wide = (
        Case(SMALL, SMALL.shard(0, 1), "nvfp4", rows, context, "cpu", 4, layer=layer, cache=cache)
        for cache in E4M3_AND_BF16
    )
    for to, source in zip(wide.caches, codes.caches, strict=True):
        to.keys.copy_(source.keys.bfloat16())
        to.values.copy_(source.values.bfloat16())
    return codes, wide


# -- roundings -------------------------------------------------------------------------


def test_every_bf16_becomes_the_code_that_torch_gives_it() -> None:
    every = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
    words = every.float().numpy().view(np.uint32)
    codes, _ = arithmetic.Arithmetic(HOST).convert(arithmetic.E4M3_PACK, words, words)
    found = torch.from_numpy((codes & 255).astype(np.uint8)).view(torch.float8_e4m3fn).float()
    expected = every.clamp(-448, 448).to(torch.float8_e4m3fn).float()
    assert torch.equal(found.nan_to_num(1000.0), expected.nan_to_num(1000.0))
    assert torch.equal(stored(every, "e4m3").float().nan_to_num(0), expected.nan_to_num(0))


@pytest.mark.parametrize(
    ("rows", "context", "layer"), [(1, 0, 0), (8, 63, 1), (16, 40, 0), (9, 700, 1)]
)
def test_the_attention_has_the_bits_of_one_over_bf16_with_the_same_numbers(
    rows: int, context: int, layer: int
) -> None:
    cases = both(rows, context, layer)
    for case in cases:
        check_attention(case)
    codes, wide = (case.views["heads"] for case in cases)
    assert torch.equal(codes, wide)


@pytest.mark.parametrize("layer", [0, 1])
@pytest.mark.parametrize("rows", [1, 8, 16])
def test_new_keys_and_values_are_those_of_a_bf16_cache_rounded_once_more(
    rows: int, layer: int
) -> None:
    cases = both(rows, 37, layer)
    cases[1].taps = cases[0].taps
    assert beyond(check_phase(cases[0], QKV_FINISH)) == {}
    check_phase(cases[1], QKV_FINISH)
    codes, wide = (case.caches[1] for case in cases)
    new = codes.slots[37 : 37 + rows].long()
    assert torch.equal(kept(codes.keys, new), wide.keys[new].to(torch.float8_e4m3fn).bfloat16())
    assert torch.equal(kept(codes.values, new), wide.values[new].to(torch.float8_e4m3fn).bfloat16())


def test_values_beyond_the_largest_code_are_that_code() -> None:
    """As SGLang's store of this model clamps them; a cast of torch's would make them NaN."""
    case, _ = both(4, 5, 0)
    first = (case.rank.heads + case.rank.kv_heads) * 64
    qkv = case.taps["next_qkv"]["qkv"]
    qkv[:, first] = torch.tensor([440.0, 460.0, -1e4, 3e38])
    check_phase(case, QKV_FINISH)
    new = case.caches[1].slots[5:9].long()
    assert kept(case.caches[1].values, new)[:, 0, 0].tolist() == [448.0, 448.0, -448.0, 448.0]


def test_a_row_whose_slot_pads_is_not_written() -> None:
    case, _ = both(4, 5, 0)
    cache = case.caches[1]
    cache.slots[6] = 0
    check_phase(case, QKV_FINISH)
    assert kept(cache.keys, torch.tensor([0])).isnan().all()
    assert kept(cache.values, torch.tensor([0])).isnan().all()
    assert not kept(cache.keys, cache.slots[[5, 7, 8]].long()).isnan().any()


# -- steps -----------------------------------------------------------------------------


@pytest.mark.parametrize("inputs", [(5, 40), (16, 9)])
def test_every_layer_of_a_step_follows_the_reference(inputs: Inputs) -> None:
    steps = Steps(SMALL, SMALL.shard(0, 1), E4M3, POSITIONS)
    streams = steps.streams(inputs)
    _, *taps = steps.reference(inputs, streams)
    for i, tap in enumerate(taps):
        logits, bias = tap["router"]["logits"], steps.tensors[i].router_bias
        clear = margins(logits, bias, steps.model) >= NEAR_TIE
        assert clear.sum() > inputs[0] // 2
        assert error(streams[i + 1][clear], tap["ffn_boundary"]["stream"][clear]) <= WHOLE_LAYER
        for found, name in zip(steps.new_keys(i, inputs), ("keys", "values"), strict=True):
            assert error(found, tap["qkv_finish"][name]) <= CODES_OF_A_LAYER
    steps.restore(inputs)
    assert steps.disturbed() == 0


def test_neither_what_came_before_nor_the_schedule_nor_the_form_changes_a_bit() -> None:
    expected = [digests(Steps(SMALL, SECOND, E4M3, POSITIONS), [one])[0] for one in INPUTS]
    assert len(set(expected)) == len(INPUTS)
    with ProcessPoolExecutor(2, get_context("spawn"), max_tasks_per_child=1) as pool:
        running = [
            pool.submit(
                digests_under,
                {
                    "MEGATRACE_HOST_SEED": seed,
                    "MEGATRACE_HOST_CHAOS": "1",
                    "MEGATRACE_HOST_OVERLAP": "1",
                },
                *(SMALL, SECOND, POSITIONS, INPUTS, form, E4M3),
            )
            for seed, form in (("21", "fused"), ("22", "twin"))
        ]
        assert [task.result() for task in running] == [expected] * 2


def test_a_step_over_scattered_pools_has_the_bits_of_one_in_order() -> None:
    paged = Paged(model(), ("nvfp4", "nvfp4", "nvfp4"), HOST, "cpu", blocks=4, cache="e4m3")
    inputs = paged.inputs(4, 37)
    stream = paged.decoder.step(*inputs)
    assert torch.equal(stream, paged.in_order(4, 37, inputs[0]).stream[:4])
    for layer, cache in enumerate(paged.caches):
        new, slots = cache.slots[inputs[1]].long(), paged.slot(layer, inputs[1])
        assert torch.equal(kept(paged.pools.keys[layer], slots), kept(cache.keys, new))
        assert torch.equal(kept(paged.pools.values[layer], slots), kept(cache.values, new))


# -- refusals --------------------------------------------------------------------------


@pytest.mark.parametrize("cache", E4M3_AND_BF16)
def test_a_build_for_another_cache_is_refused(cache: CacheKind) -> None:
    """It would read past the end of the pool, or half of every key."""
    steps = Steps(SMALL, SECOND, Build(cache=cache), POSITIONS)
    other = E4M3 if cache == "bf16" else Build()
    here, there = (1, 2) if cache == "bf16" else (2, 1)
    said = f"an element of keys and values has {there} bytes: this build reads {here}"
    with pytest.raises(RuntimeError, match=said):
        Program(steps.launches(4), other, blocks=4)


def engine_over(*dtypes: torch.dtype) -> Engine:
    few = replace(SMALL, layers=SMALL.layers[: len(dtypes)])
    steps = Steps(few, few.shard(0, 1), Build(), 20)
    caches = [
        replace(cache, keys=cache.keys.to(dtype), values=cache.values.to(dtype))
        for cache, dtype in zip(steps.engine.caches, dtypes, strict=True)
    ]
    return replace(steps.engine, caches=caches)


def test_layers_with_different_caches_are_refused() -> None:
    said = r"layer 1 are in .*e4m3fn, those of layer 0 in .*bfloat16"
    with pytest.raises(UsageError, match=said):
        engine_over(*CACHE_DTYPES.values())


def test_a_cache_in_anything_else_is_refused_with_what_is_covered() -> None:
    covered = "torch.float8_e5m2; the megakernel reads torch.bfloat16 and torch.float8_e4m3fn"
    with pytest.raises(UsageError, match=covered):
        engine_over(torch.float8_e5m2)


def test_keys_and_values_take_half_the_memory() -> None:
    rank = SMALL.shard(0, 1)
    assert 2 * kv_bytes(SMALL, rank, 1000, "e4m3") == kv_bytes(SMALL, rank, 1000)
    caches = [new_cache(SMALL, rank, 0, 8, "cpu", kind) for kind in CACHE_DTYPES]
    assert caches[0].keys.nbytes == 2 * caches[1].keys.nbytes
