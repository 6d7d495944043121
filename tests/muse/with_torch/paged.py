"""The same request twice: over caches in the order of positions, and over scattered pools."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch

from megatrace.muse.config import MuseConfig
from megatrace.muse.decoder import Decoder
from megatrace.muse.engine import Cache, Engine, new_cache
from megatrace.muse.layout import TARGET_LAYOUT
from megatrace.muse.pack import PackedLayer, pack_layer
from megatrace.muse.plan import CacheKind, ExpertKind
from megatrace.muse.pools import Pools, SlotTables, pool_caches
from megatrace.muse.program import Build, Program
from megatrace.muse.tensors import random_layer
from tests.muse.phases import keep, kept

POSITIONS, REQUESTS, REQUEST = 200, 3, 2
TAPS = (0, 2)


@dataclass
class Paged:
    """Random layers, some of each kind of expert; ``decoder`` reads the pools."""

    model: MuseConfig
    kinds: tuple[ExpertKind, ...]
    target: str
    device: str
    blocks: int
    cache: CacheKind = "bf16"
    packed: list[PackedLayer] = field(init=False)
    caches: list[Cache] = field(init=False)
    pools: Pools = field(init=False)
    decoder: Decoder = field(init=False)

    def __post_init__(self) -> None:
        model, device = self.model, self.device
        self.rank = model.shard(0, 1)
        self.draw = torch.Generator().manual_seed(3)
        self.packed = [
            pack_layer(
                random_layer(model, self.rank, i, experts=kind, device=device),
                model,
                TARGET_LAYOUT[self.target],
            )
            for i, kind in enumerate(self.kinds)
        ]
        self.embedding = self._random(model.vocabulary, model.hidden)
        self.caches = [
            new_cache(model, self.rank, i, POSITIONS, device, self.cache)
            for i in range(len(model.layers))
        ]
        for cache in self.caches:
            cache.keys.copy_(self._random(*cache.keys.shape))
            cache.values.copy_(self._random(*cache.values.shape))
        self.pools = self._scatter()
        tables = SlotTables(self.pools)
        ropes = [cache.rope for cache in self.caches]
        engine = self._engine(pool_caches(model.layers, self.pools, tables, ropes))
        self.final_gain = 1 + 0.1 * self._random(model.hidden).float()
        self.decoder = Decoder(engine, self._build, tables, taps=TAPS, final_gain=self.final_gain)

    def slot(self, layer: int, positions: torch.Tensor) -> torch.Tensor:
        """Where a layer's pool has ``positions``."""
        full = self.pools.table[REQUEST][positions].long()
        if not self.pools.sliding[layer]:
            return full
        assert self.pools.to_sliding is not None
        return self.pools.to_sliding[full]

    def inputs(self, rows: int, context: int) -> tuple[torch.Tensor, ...]:
        """Tokens, positions, request and new slots of a step, as SGLang has them."""
        tokens = torch.randint(self.model.vocabulary, (rows,), generator=self.draw)
        positions = torch.arange(context, context + rows, device=self.device)
        request = torch.tensor([REQUEST], device=self.device)
        return tokens.to(self.device), positions, request, self.slot_of_rows(positions)

    def slot_of_rows(self, positions: torch.Tensor) -> torch.Tensor:
        """The slots a framework hands out for the rows of a step."""
        return self.pools.table[REQUEST][positions].long()

    def in_order(self, rows: int, context: int, tokens: torch.Tensor) -> Engine:
        """The step over the caches in the order of positions, run to its end."""
        engine = self._engine(self.caches)
        for tap in TAPS:
            engine.tap(tap)
        engine.empty()
        engine.context.fill_(context)
        engine.tokens[:rows].copy_(tokens)
        launches = engine.step(rows, embed=True)
        for kind, launch in zip((self.kinds[0], *self.kinds), launches, strict=True):
            with Program([launch], self._build(kind), blocks=self.blocks) as program:
                if self.device == "cuda":
                    torch.cuda.synchronize()
                program.replay()
                program.synchronize()
        return engine

    def _build(self, kind: ExpertKind) -> Build:
        return Build(self.target, kind, native=self.target == "sm_103a", cache=self.cache)

    def _engine(self, caches: list[Cache]) -> Engine:
        rows = self.model.max_rows
        return Engine(
            *(self.model, self.rank, self.packed, caches, self.blocks, rows, self.device),
            embedding=self.embedding,
        )

    def _random(self, *shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=self.draw).bfloat16().to(self.device)

    def _scatter(self) -> Pools:
        """The caches' rows at random slots of two pools; slot 0 is left free."""
        full_size, sliding_size = REQUESTS * POSITIONS, POSITIONS + 50
        drawn = 1 + torch.randperm(full_size - 1, generator=self.draw)[:POSITIONS]
        table = torch.zeros(REQUESTS, POSITIONS, dtype=torch.int32)
        table[REQUEST] = drawn
        to_sliding = torch.zeros(full_size, dtype=torch.int64)
        to_sliding[drawn] = 1 + torch.randperm(sliding_size - 1, generator=self.draw)[:POSITIONS]
        sliding = [kind.window > 0 for kind in self.model.layers]
        pools = Pools([], [], sliding, table.to(self.device), to_sliding.to(self.device))
        every = torch.arange(POSITIONS)
        keys, values = [], []
        for layer, cache in enumerate(self.caches):
            slots = to_sliding[table[REQUEST].long()] if sliding[layer] else table[REQUEST].long()
            size = sliding_size if sliding[layer] else full_size
            for source, pool in ((cache.keys, keys), (cache.values, values)):
                pool.append(self._random(size, *source.shape[1:]).to(source.dtype))
                keep(pool[-1], slots.to(self.device), kept(source, cache.slots[every].long()))
        return replace(pools, keys=keys, values=values)
