"""Who does what: the kernel's own division of work over SMs, and the bytes a step must read.

Mirrors shared.cuh (shares), gemm.cuh (places at a projection) and routing.cuh (groups of
tokens). Nothing here is sent to the kernel, which divides its work itself: tests hold the two
together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from megatrace.muse.config import HEAD_DIM, MuseConfig, RankShape
from megatrace.muse.params import CHUNK, SLICE, TILE, slices
from megatrace.schema.traffic import LaunchBytes

WORK_BYTES = 72 * 1024
"""A block's scratch memory: ``kWorkBytes``."""
GATE_BYTES, INPUT_BYTES = 1536, 512
"""What 128 columns of a row take of it at a gate and before the experts."""

ExpertKind = Literal["bf16", "nvfp4"]
"""How the weights of a layer's experts are stored."""
CacheKind = Literal["bf16", "e4m3"]
"""How keys and values are stored, those of all layers alike; the scale of e4m3 is 1."""
CACHE_BYTES: dict[CacheKind, int] = {"bf16": 2, "e4m3": 1}
"""Of a key's or value's element."""

GROUP_TOKENS = 8
"""Tokens of a group: ``kTokens``."""
NVFP4_GROUP = 16
"""Columns that share a scale."""


def share_begin(total: int, block: int, blocks: int) -> int:
    """First of ``total`` units that ``block`` of ``blocks`` does; its last is before the next's."""
    return total * block // blocks


def share_owner(total: int, unit: int, blocks: int) -> int:
    """The block whose share holds ``unit``."""
    return (unit * blocks + blocks - 1) // total


def row_owner(rows: int, row: int, blocks: int) -> int:
    """The block that chooses a row's experts."""
    return row * blocks // rows


def scratch_bytes(model: MuseConfig, rows: int, blocks: int) -> int:
    """Scratch memory that the row-wise phases of a block need for its share of ``rows`` rows."""
    hidden, width = (
        -(-rows * columns // CHUNK // blocks) for columns in (model.hidden, model.expert_width)
    )
    return max(hidden * GATE_BYTES, width * INPUT_BYTES)


@dataclass(frozen=True, slots=True)
class Projection:
    """A matrix whose slices of columns go to blocks, which share the row tiles of each."""

    name: str
    rows: int
    columns: int
    element_bytes: int = 2

    @property
    def tiles(self) -> int:
        """Row tiles."""
        return self.rows // TILE

    @property
    def bytes(self) -> int:
        """Bytes of the whole matrix."""
        return self.rows * self.columns * self.element_bytes

    def slice_places(self, blocks: int) -> int:
        """Blocks that share the row tiles of a slice; places go round blocks that are fewer."""
        return max(1, blocks // slices(self.columns))

    def block_units(self, blocks: int) -> list[list[tuple[int, int]]]:
        """The (slice, row tile) pairs that each block does, in its order."""
        places = self.slice_places(blocks)
        done: list[list[tuple[int, int]]] = [[] for _ in range(blocks)]
        for place in range(places * slices(self.columns)):
            number, share = divmod(place, places)
            begin, end = (share_begin(self.tiles, at, places) for at in (share, share + 1))
            done[place % blocks] += [(number, tile) for tile in range(begin, end)]
        return done

    def owner(self, number: int, tile: int, blocks: int) -> int:
        """The block that does a row tile of slice ``number``: ``dense_producer``."""
        places = self.slice_places(blocks)
        return (number * places + share_owner(self.tiles, tile, places)) % blocks

    def tile_bytes(self, number: int) -> int:
        """Weight bytes of a row tile of slice ``number``."""
        return TILE * min(SLICE, self.columns - SLICE * number) * self.element_bytes

    def block_bytes(self, blocks: int) -> list[int]:
        """Weight bytes that each block reads."""
        return [
            sum(self.tile_bytes(number) for number, _ in units)
            for units in self.block_units(blocks)
        ]


def shares(total: int, blocks: int) -> Iterator[range]:
    """The units of every block, in the order of blocks."""
    for block in range(blocks):
        yield range(share_begin(total, block, blocks), share_begin(total, block + 1, blocks))


def projections(model: MuseConfig, rank: RankShape) -> dict[str, Projection]:
    """The projections of a layer on one rank, by the names of ``PackedLayer``."""
    hidden, width = model.hidden, model.expert_width
    made = (
        Projection("qkv", rank.qkv_rows, hidden),
        Projection("o_proj", hidden, rank.heads * HEAD_DIM),
        Projection("router", model.experts, hidden, 4),
        Projection("pre_proj", rank.pre_rows, hidden),
        Projection("post_proj", rank.post_rows, width),
    )
    return {projection.name: projection for projection in made}


@dataclass(frozen=True, slots=True)
class Group:
    """Tokens that one pass over an expert's weights serves."""

    expert: int
    """Local."""
    pairs: tuple[int, ...]
    """``row * top_k + slot``, ascending, at most ``GROUP_TOKENS``."""


def expert_groups(ids: Sequence[Sequence[int]], rank: RankShape) -> list[Group]:
    """The groups of a step on one rank: experts ascend, and so do the pairs of each.

    ``ids[row][slot]`` are experts of the model.
    """
    pairs: dict[int, list[int]] = {}
    for pair, expert in enumerate(expert for row in ids for expert in row):
        local = int(expert) - rank.first_expert
        if 0 <= local < rank.local_experts:
            pairs.setdefault(local, []).append(pair)
    return [
        Group(expert, tuple(mine[begin : begin + GROUP_TOKENS]))
        for expert, mine in sorted(pairs.items())
        for begin in range(0, len(mine), GROUP_TOKENS)
    ]


def expert_matrix_bytes(rows: int, columns: int, kind: ExpertKind) -> int:
    """Packed bytes of one expert's matrix, or of some of its rows."""
    if kind == "bf16":
        return rows * columns * 2
    return rows * (columns // 2 + columns // NVFP4_GROUP)


def packed_layer_bytes(model: MuseConfig, rank: RankShape, kind: ExpertKind) -> int:
    """Bytes of a ``PackedLayer``."""
    inner, width, hidden = model.expert_inner, model.expert_width, model.hidden
    expert = expert_matrix_bytes(2 * inner, width, kind) + expert_matrix_bytes(width, inner, kind)
    vectors = 4 * (model.experts + 4 * hidden) + 2 * (3 * hidden + 2 * width)
    if kind == "nvfp4":
        expert += 3 * 4
    dense = sum(projection.bytes for projection in projections(model, rank).values())
    return dense + vectors + rank.local_experts * expert


@dataclass(frozen=True, slots=True)
class FloorBytes:
    """Bytes that one rank must read, whatever the kernel really reads."""

    attention: int = 0
    """QKV, gate and output projection."""
    router: int = 0
    around_experts: int = 0
    """Projections before and after the experts, divided over the ranks."""
    experts: int = 0
    """Of the distinct experts that were hit."""
    kv: int = 0

    @property
    def total(self) -> int:
        """All of it."""
        return self.attention + self.router + self.around_experts + self.experts + self.kv

    def __add__(self, other: FloorBytes) -> FloorBytes:
        return FloorBytes(
            self.attention + other.attention,
            self.router + other.router,
            self.around_experts + other.around_experts,
            self.experts + other.experts,
            self.kv + other.kv,
        )


def layer_floor(
    model: MuseConfig,
    rank: RankShape,
    layer: int,
    *,
    kind: ExpertKind,
    distinct: float,
    context: int,
    rows: int,
    cache: CacheKind = "bf16",
) -> FloorBytes:
    """What one layer must read on one rank.

    ``distinct`` is how many of this rank's experts the rows hit, a mean if one likes;
    ``context`` the keys in the cache before the first of ``rows`` rows.
    """
    parts = rank.ranks
    sharded = replace(rank, pre_rows=model.expert_width // parts, post_rows=model.hidden // parts)
    size = {name: p.bytes for name, p in projections(model, sharded).items()}
    inner, width = model.expert_inner, model.expert_width
    expert = expert_matrix_bytes(2 * inner, width, kind) + expert_matrix_bytes(width, inner, kind)
    window = model.layers[layer].window
    keys = (min(context, window - 1) if window else context) + rows
    return FloorBytes(
        attention=size["qkv"] + size["o_proj"],
        router=size["router"],
        around_experts=size["pre_proj"] + size["post_proj"],
        experts=round(distinct * expert),
        kv=2 * keys * rank.kv_heads * HEAD_DIM * CACHE_BYTES[cache],
    )


def step_floor(
    model: MuseConfig,
    rank: RankShape,
    *,
    kinds: Sequence[ExpertKind],
    distinct: Sequence[float],
    context: int,
    rows: int,
    cache: CacheKind = "bf16",
) -> FloorBytes:
    """What all layers of a step must read on one rank; ``kinds`` and ``distinct`` a layer each."""
    total = FloorBytes()
    for layer, (kind, hit) in enumerate(zip(kinds, distinct, strict=True)):
        total += layer_floor(
            model, rank, layer, kind=kind, distinct=hit, context=context, rows=rows, cache=cache
        )
    return total


def launch_bytes(
    model: MuseConfig,
    rank: RankShape,
    kinds: Sequence[ExpertKind],
    *,
    context: int | None = None,
    rows: int = 1,
    cache: CacheKind = "bf16",
) -> LaunchBytes:
    """What launches of the fused kernel must read on one rank, as its capture says it.

    A launch projects the queries, keys and values of the layer after it; the last one has none.
    Keys and values are left out unless every step has ``rows`` over ``context`` keys.
    """
    qkv = projections(model, rank)["qkv"].bytes
    always, expert = [], []
    for layer, kind in enumerate(kinds):
        none, one = (
            layer_floor(
                model,
                rank,
                layer,
                kind=kind,
                distinct=hit,
                context=context or 0,
                rows=rows,
                cache=cache,
            )
            for hit in (0, 1)
        )
        last = layer == len(kinds) - 1
        always.append(none.total - last * qkv - (context is None) * none.kv)
        expert.append(one.experts)
    left_out = "keys and values" if context is None else ""
    return LaunchBytes("layer", tuple(always), tuple(expert), left_out)
