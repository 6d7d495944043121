"""Steps over a framework's pools: the same bits as over caches in the order of positions."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.nn.functional import rms_norm

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


@pytest.mark.parametrize(("rows", "context"), STEPS)
def test_the_heads_input_is_torchs_norm_of_the_stream_in_bf16(
    paged: Paged, rows: int, context: int
) -> None:
    stream = paged.decoder.step(*paged.inputs(rows, context)).bfloat16()
    assert paged.decoder.normed is not None
    found = paged.decoder.normed[:rows]
    hidden = (paged.model.hidden,)
    expected = rms_norm(stream.double(), hidden, paged.final_gain.double(), paged.model.eps_norm)
    # Half an ulp of bf16, and what fp32 loses on the way.
    assert ((found - expected).abs() <= 2**-8 * 1.01 * expected.abs()).all()
    assert (found == expected.bfloat16()).float().mean() > 0.999


def test_whole_numbers_of_four_bytes_are_those_of_eight(paged: Paged) -> None:
    inputs = paged.inputs(4, 60)
    expected = paged.decoder.step(*inputs).clone()
    narrow = [value.to(torch.int32) for value in inputs]
    assert torch.equal(paged.decoder.step(*narrow), expected)


def test_inputs_of_another_kind_are_refused(paged: Paged) -> None:
    tokens, positions, request, slots = paged.inputs(4, 60)
    with pytest.raises(UsageError, match=r"slots: torch\.float32, contiguous"):
        paged.decoder.step(tokens, positions, request, slots.float())
    with pytest.raises(UsageError, match=r"positions: torch\.int64, not contiguous"):
        paged.decoder.step(tokens, positions.repeat(2)[::2], request, slots)
    with pytest.raises(UsageError, match="slots: 3 of them for 4 rows"):
        paged.decoder.step(tokens, positions, request, slots[:3])
    with pytest.raises(UsageError, match="tokens is on meta, the megakernel runs on cpu"):
        paged.decoder.step(tokens.to("meta"), positions, request, slots)


@pytest.mark.parametrize(("rows", "context", "request_row"), [(4, 198, 2), (4, 60, 3)])
def test_a_step_past_the_end_of_the_table_of_slots_is_stopped(
    paged: Paged, rows: int, context: int, request_row: int
) -> None:
    tokens, _, request, slots = paged.inputs(rows, 60)
    positions = torch.arange(context, context + rows)
    with pytest.raises(RuntimeError, match="table of slots does not have"):
        paged.decoder.step(tokens, positions, torch.full_like(request, request_row), slots)
    assert paged.decoder.step(*paged.inputs(rows, 60)).isfinite().all()


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
