"""Steps over a framework's pools: the same bits as over caches in the order of positions."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from megatrace.errors import UsageError
from megatrace.jit import HOST
from megatrace.muse.memory import Memory, kv_bytes, packed_bytes, shortage
from tests.muse.models import model
from tests.muse.with_torch.paged import TAPS, Paged

STEPS = ((4, 37), (1, 41), (4, 41), (16, 150))
"""(rows, context): of another width, of the same again, to the end of the table."""


@pytest.fixture(scope="module")
def paged() -> Paged:
    torch.set_num_threads(1)
    return Paged(model(), ("nvfp4", "bf16", "nvfp4"), HOST, "cpu", blocks=4)


@pytest.mark.parametrize(("rows", "context"), STEPS)
def test_a_step_over_scattered_pools_has_the_bits_of_one_in_order(
    paged: Paged, rows: int, context: int
) -> None:
    inputs = paged.inputs(rows, context)
    stream = paged.decoder.step(*inputs)
    whole = paged.in_order(rows, context, inputs[0])
    assert torch.equal(stream, whole.stream[:rows])
    assert paged.decoder.tapped is not None
    taps = torch.cat([whole.taps[layer][:rows] for layer in TAPS], dim=1)
    assert torch.equal(paged.decoder.tapped[:rows], taps)
    for layer, cache in enumerate(paged.caches):
        new = cache.slots[inputs[1]].long()
        slots = paged.slot(layer, inputs[1])
        assert torch.equal(paged.pools.keys[layer][slots], cache.keys[new])
        assert torch.equal(paged.pools.values[layer][slots], cache.values[new])


def test_slots_of_a_steps_rows_need_not_be_in_the_table_yet(paged: Paged) -> None:
    tokens, positions, request, slots = paged.inputs(4, 60)
    row = paged.pools.table[int(request)]
    there = row[positions].clone()
    expected = paged.decoder.step(tokens, positions, request, slots).clone()
    row[positions] = 0
    assert torch.equal(paged.decoder.step(tokens, positions, request, slots), expected)
    row[positions] = there


def test_pools_of_sliding_layers_need_the_way_to_them(paged: Paged) -> None:
    with pytest.raises(UsageError, match="sliding pool"):
        replace(paged.pools, to_sliding=None)


def test_what_packing_costs_is_known_before(paged: Paged) -> None:
    assert packed_bytes(paged.model, paged.rank, paged.kinds) == sum(
        layer.bytes for layer in paged.packed
    )


def test_keys_of_a_window_do_not_grow_with_the_request(paged: Paged) -> None:
    # The first of three layers sees 16 keys, the others all.
    row = 2 * 2 * 64 * 2
    assert kv_bytes(paged.model, paged.rank, 1000) == row * (16 + 2 * 1000)


def test_memory_is_short_where_keys_would_not_fit_beside_the_packing() -> None:
    memory = Memory(free=40 * 10**9, total=100 * 10**9)
    assert shortage(20 * 10**9, 0, 10**9, 0.1, memory) is None
    assert shortage(35 * 10**9, 20 * 10**9, 10**9, 0.1, memory) is None
    said = shortage(35 * 10**9, 0, 10**9, 0.1, memory)
    assert said is not None
    assert "takes 35.00 GB: of 100.00 GB, 40.00 are free and 10.00 kept" in said
    assert "at least 1.00 GB" in said
