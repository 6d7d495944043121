"""The paged keys and values of a serving framework, as an engine's caches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from megatrace.errors import UsageError
from megatrace.muse.config import LayerKind
from megatrace.muse.engine import Cache


@dataclass(frozen=True, slots=True)
class Pools:
    """A framework's paged keys and values, in its own memory.

    ``keys`` and ``values``: bf16 or float8_e4m3fn [slots, kv heads, 64] of each layer.
    ``sliding``: the layers that lie in the pool of sliding layers. ``table``: int32 [requests,
    positions], the slot of each position in the pool of all others. ``to_sliding``: from there to
    a slot of the sliding pool; None where both are one.
    """

    keys: Sequence[torch.Tensor]
    values: Sequence[torch.Tensor]
    sliding: Sequence[bool]
    table: torch.Tensor
    to_sliding: torch.Tensor | None = None

    def __post_init__(self) -> None:
        """Raise UsageError where sliding layers have a pool that nothing leads to."""
        if self.to_sliding is None and any(self.sliding):
            raise UsageError("layers in a sliding pool need the way to its slots")


class SlotTables:
    """The slot of every position of the request in progress, in each pool, as steps fill it."""

    def __init__(self, pools: Pools) -> None:
        self.table, self.to_sliding = pools.table, pools.to_sliding
        positions, device = pools.table.shape[1], pools.table.device
        self.full = torch.zeros(positions, dtype=torch.int32, device=device)
        self.sliding = torch.zeros_like(self.full) if self.to_sliding is not None else self.full


def pool_caches(
    kinds: Sequence[LayerKind],
    pools: Pools,
    tables: SlotTables,
    ropes: Sequence[torch.Tensor | None],
) -> list[Cache]:
    """The caches of an engine over ``pools``."""
    return [
        Cache(
            pools.keys[i],
            pools.values[i],
            tables.sliding if pools.sliding[i] else tables.full,
            ropes[i],
            kind.window,
        )
        for i, kind in enumerate(kinds)
    ]
