"""The counters of one ring, added up by role: small enough to keep when the ring has gone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megatrace.schema.layout import CAUSE_SLOTS, stall_counts


@dataclass(frozen=True, slots=True)
class RoleSums:
    """Since the ring was made; roles in the order of the warps.

    Attributes:
        roles: their names.
        cycles: stalled, u8 ``(layers, roles, causes)``; ``count`` how often.
        block_cycles: ``cycles`` by block, ``(blocks, roles, causes)``.
    """

    roles: tuple[str, ...]
    cycles: NDArray[np.uint64]
    count: NDArray[np.uint64]
    block_cycles: NDArray[np.uint64]


def role_sums(
    counters: NDArray[Any],
    block_cycles: NDArray[np.uint64],
    header: Any,
    role_of_warp: Sequence[str],
) -> RoleSums:
    """The sums of COUNTERS ``(layers, rings)`` and ``block_cycles`` ``(causes, rings)``.

    As a :class:`megatrace.ring.records.CounterReader` of a ring with ``header`` has them.
    """
    blocks, warps, layers = (int(header[name]) for name in ("blocks", "warps", "layers"))
    roles = tuple(dict.fromkeys(role_of_warp))
    now = counters.reshape(layers, counters.shape[1] // max(1, warps), warps)
    by_block = block_cycles.reshape(CAUSE_SLOTS, blocks, warps)
    sums = RoleSums(
        roles,
        np.zeros((layers, len(roles), CAUSE_SLOTS), np.uint64),
        np.zeros((layers, len(roles), CAUSE_SLOTS), np.uint64),
        np.zeros((blocks, len(roles), CAUSE_SLOTS), np.uint64),
    )
    for at, name in enumerate(roles):
        of_role = [warp for warp, role in enumerate(role_of_warp) if role == name]
        mine = now[:, :, of_role]
        sums.cycles[:, at] = mine["cycles"].sum(axis=(1, 2), dtype=np.uint64)
        sums.count[:, at] = stall_counts(mine).sum(axis=(1, 2), dtype=np.uint64)
        sums.block_cycles[:, at] = by_block[:, :, of_role].sum(axis=2, dtype=np.uint64).T
    return sums
