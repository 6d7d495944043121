"""Counters: what a kernel sums up on steps that count and keep no timeline."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from megatrace.analysis.lines import I8, Rows
from megatrace.capture.reader import CounterSamples
from megatrace.schema.layout import CAUSE_SLOTS, stall_counts


@dataclass(frozen=True, slots=True)
class CounterSums:
    """Totals of one rank since its ring was made, of the launches without a timeline.

    ``cycles`` and ``count`` are [roles, causes]; ``samples``: how often a counter was read.
    """

    cycles: I8
    count: I8
    samples: int


def counter_sums(
    samples: CounterSamples,
    rank: int,
    rings: int,
    roles: tuple[str, ...],
    layers: Collection[int] | None = None,
) -> CounterSums:
    """Add up the last sample of every (layer, warp) of ``rank``, by role.

    ``roles`` names the role of each warp of a block; equal names are one role, in the
    order of :func:`role_names`. ``layers`` None: of all.
    """
    names = role_names(roles)
    role_of_warp = np.array([names.index(r) for r in roles])
    mine = np.flatnonzero(samples.rank == rank)
    if layers is not None:
        mine = mine[np.isin(layers_of(samples, mine, rings), [*layers])]
    slots = samples.slot[mine]
    # The last of each slot in file order.
    _, back = np.unique(slots[::-1], return_index=True)
    final = mine[len(mine) - 1 - back]
    records = samples.records[final]
    ring = samples.slot[final] % max(1, rings)
    role = role_of_warp[ring % len(roles)]
    cycles = np.zeros((len(names), CAUSE_SLOTS), np.int64)
    count = np.zeros((len(names), CAUSE_SLOTS), np.int64)
    np.add.at(cycles, role, records["cycles"].astype(np.int64))
    np.add.at(count, role, stall_counts(records).astype(np.int64))
    return CounterSums(cycles, count, len(mine))


def layers_of(samples: CounterSamples, rows: Rows, rings: int) -> I8:
    """The layer that each of the samples at ``rows`` is of."""
    return (samples.slot[rows] // max(1, rings)).astype(np.int64)


def role_names(roles: tuple[str, ...]) -> tuple[str, ...]:
    """The different names, in the order of the warps."""
    return tuple(dict.fromkeys(roles))
