from __future__ import annotations

import random
from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megatrace.muse import params, plan
from megatrace.muse.config import RELEASED, MuseConfig
from tests.muse.models import model

BLOCKS = st.sampled_from([4, 132, 144, 152])


@given(total=st.integers(1, 5000), blocks=BLOCKS)
def test_every_unit_has_one_block_that_knows_it(total: int, blocks: int) -> None:
    seen = []
    for block, share in enumerate(plan.shares(total, blocks)):
        seen += list(share)
        assert all(plan.share_owner(total, unit, blocks) == block for unit in share)
    assert seen == list(range(total))


@given(total=st.integers(1, 5000), blocks=BLOCKS)
def test_shares_differ_by_one_unit(total: int, blocks: int) -> None:
    sizes = {len(share) for share in plan.shares(total, blocks)}
    assert max(sizes) - min(sizes) <= 1


@given(rows=st.integers(1, 16), blocks=BLOCKS)
def test_rows_have_blocks_of_their_own_where_there_are_enough(rows: int, blocks: int) -> None:
    owners = [plan.row_owner(rows, row, blocks) for row in range(rows)]
    assert owners == sorted(owners)
    assert set(owners) <= set(range(blocks))
    if rows <= blocks:
        assert len(set(owners)) == rows


@pytest.mark.parametrize("blocks", [1, 4, 132, 144, 152])
@pytest.mark.parametrize("divided", [False, True])
def test_a_projection_is_read_once_and_evenly(blocks: int, divided: bool) -> None:
    for projection in plan.projections(RELEASED, RELEASED.shard(0, 8, divided)).values():
        units = Counter(unit for units in projection.block_units(blocks) for unit in units)
        assert set(units.values()) == {1}
        assert len(units) == params.slices(projection.columns) * projection.tiles
        assert sum(projection.block_bytes(blocks)) == projection.bytes
        # One tile more than the mean of the blocks of a slice is the worst that whole tiles can be.
        if blocks >= params.slices(projection.columns):
            mean = projection.tiles / projection.slice_places(blocks)
            most = max(projection.block_bytes(blocks))
            assert most <= (mean + 1) * projection.tile_bytes(0)


@pytest.mark.parametrize("blocks", [132, 144, 152])
def test_a_block_reads_one_slice_of_a_projection(blocks: int) -> None:
    for projection in plan.projections(RELEASED, RELEASED.shard(0, 8, True)).values():
        for units in projection.block_units(blocks):
            assert len({number for number, _ in units}) <= 1


@given(
    tiles=st.integers(1, 600), columns=st.integers(1, 64), blocks=st.sampled_from([1, 3, 132, 152])
)
def test_every_tile_of_a_slice_has_one_block_that_knows_it(
    tiles: int, columns: int, blocks: int
) -> None:
    projection = plan.Projection("any", tiles * plan.TILE, columns * 128)
    for block, units in enumerate(projection.block_units(blocks)):
        assert all(projection.owner(number, tile, blocks) == block for number, tile in units)


def test_the_last_slice_of_a_projection_may_be_short() -> None:
    projection = plan.Projection("odd", 32, 1024 + 384)
    assert [projection.tile_bytes(number) for number in range(2)] == [32768, 12288]
    assert projection.block_bytes(4) == [32768, 32768, 12288, 12288]


@st.composite
def routes(draw: st.DrawFn) -> tuple[MuseConfig, list[list[int]]]:
    small = model()
    rows = draw(st.integers(1, 16))
    seed = random.Random(draw(st.integers(0, 2**32)))
    hot = draw(st.integers(small.top_k, small.experts))
    return small, [seed.sample(range(hot), small.top_k) for _ in range(rows)]


@given(routed=routes(), ranks=st.sampled_from([1, 2, 4]))
def test_every_pair_is_in_one_group_of_its_expert(
    routed: tuple[MuseConfig, list[list[int]]], ranks: int
) -> None:
    small, ids = routed
    flat = [expert for row in ids for expert in row]
    seen = []
    for shape in (small.shard(rank, ranks) for rank in range(ranks)):
        groups = plan.expert_groups(ids, shape)
        assert [group.expert for group in groups] == sorted(group.expert for group in groups)
        for group in groups:
            assert 1 <= len(group.pairs) <= plan.GROUP_TOKENS
            assert all(flat[pair] == shape.first_expert + group.expert for pair in group.pairs)
            seen += list(group.pairs)
        # No group of an expert is short but the last.
        sizes = [(g.expert, len(g.pairs)) for g in groups]
        for (expert, size), (following, _) in pairwise(sizes):
            assert expert != following or size == plan.GROUP_TOKENS
    assert sorted(seen) == list(range(len(flat)))


def test_experts_are_shared_over_all_blocks_however_few_are_hit() -> None:
    shape = RELEASED.shard(0, 8, True)
    groups = plan.expert_groups([list(range(8)) for _ in range(16)], shape)
    assert len(groups) == 2 * 8
    for rows in (2 * RELEASED.expert_inner, RELEASED.expert_width):
        tiles = len(groups) * rows // plan.TILE
        shares = [len(share) for share in plan.shares(tiles, 132)]
        assert min(shares) > 0, "no block is idle"
        assert max(shares) < 1.05 * tiles / 132
    up = plan.expert_matrix_bytes(2 * RELEASED.expert_inner, RELEASED.expert_width, "nvfp4")
    assert len(groups) * up == 2 * 8 * 8192 * (4096 // 2 + 4096 // 16)


def test_a_rank_that_no_row_hits_reads_no_experts() -> None:
    assert plan.expert_groups([[0] * 8], RELEASED.shard(7, 8)) == []


def test_the_floor_of_a_verify_layer_is_the_design_s() -> None:
    shape = RELEASED.shard(0, 8)
    missed = (1 - RELEASED.top_k / RELEASED.experts) ** 16
    assert shape.local_experts * (1 - missed) == pytest.approx(12.75, abs=0.01)
    floor = plan.layer_floor(RELEASED, shape, 1, kind="nvfp4", distinct=12.75, context=0, rows=16)
    assert floor.attention == 37_748_736 + 16_777_216
    assert floor.router == 8_388_608
    assert floor.around_experts == 2 * 8_388_608
    assert floor.experts == pytest.approx(361e6, rel=1e-3)
    assert floor.total == pytest.approx(441e6, rel=1e-3)


def test_a_window_bounds_the_keys_that_must_be_read() -> None:
    shape = RELEASED.shard(0, 8)

    def kv(layer: int, context: int) -> int:
        floor = plan.layer_floor(
            RELEASED, shape, layer, kind="nvfp4", distinct=0, context=context, rows=8
        )
        return floor.kv // (2 * shape.kv_heads * 64 * 2)

    assert (kv(1, 100_000), kv(0, 100_000), kv(0, 100)) == (100_008, 2047 + 8, 108)


def test_the_floor_of_a_step_is_the_sum_of_its_layers() -> None:
    small = model()
    shape = small.shard(0, 2)
    kinds: list[plan.ExpertKind] = ["bf16", "nvfp4", "bf16"]
    step = plan.step_floor(small, shape, kinds=kinds, distinct=[1, 2, 3], context=9, rows=4)
    parts = [
        plan.layer_floor(small, shape, i, kind=kind, distinct=i + 1, context=9, rows=4)
        for i, kind in enumerate(kinds)
    ]
    assert step.total == sum(part.total for part in parts)
    assert step.experts == sum(part.experts for part in parts)


@pytest.mark.parametrize(("blocks", "fits"), [(132, True), (22, True), (21, False), (4, False)])
def test_a_grid_too_small_for_the_rows_of_a_step_shows_in_its_scratch_memory(
    blocks: int, fits: bool
) -> None:
    assert (plan.scratch_bytes(RELEASED, 16, blocks) <= plan.WORK_BYTES) == fits


@pytest.mark.parametrize("context", [None, 4096])
def test_bytes_of_launches_and_of_layers_are_the_same_bytes(context: int | None) -> None:
    """Of a step: all but the projection for layer 0, which the first launch does."""
    kinds: list[plan.ExpertKind] = ["bf16", *["nvfp4"] * 60, "bf16"]  # type: ignore[list-item]
    rank = RELEASED.shard(0, 8, True)
    said = plan.launch_bytes(RELEASED, rank, kinds, context=context, rows=16)
    step = plan.step_floor(RELEASED, rank, kinds=kinds, distinct=[3] * 62, context=4096, rows=16)
    qkv = plan.projections(RELEASED, rank)["qkv"].bytes
    kv = 0 if context else step.kv
    assert sum(said.always) + 3 * sum(said.expert) == step.total - qkv - kv
    assert said.left_out == ("" if context else "keys and values")
    assert said.always[-1] < said.always[-2]
