"""The tables of the aggregate page: what runs up while a session is recorded."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from megatrace.schema.layout import CAUSE_SLOTS, SM_MASK_WORDS

U8 = NDArray[np.uint64]

MAX_SMS = 32 * SM_MASK_WORDS
_MAX_CELLS = 1 << 26

TABLES: dict[str, str] = {
    "cycles": "rlwc",
    "count": "rlwc",
    "seen_cycles": "rlwc",
    "seen_busy": "rlw",
    "seen_launches": "rlw",
    "prefetch": "rlp",
    "sm_cycles": "rswc",
    "sm_busy": "rsw",
    "block_cycles": "rbwc",
}
"""Table -> its axes: rank, layer, role of warps, cause, SM, block, part of a prefetch."""


@dataclass(frozen=True, slots=True)
class Shape:
    """How many ranks, layers, roles and blocks the tables have."""

    ranks: int
    layers: int
    roles: int
    blocks: int

    def of(self, table: str) -> tuple[int, ...]:
        """The shape of one table."""
        sizes = {
            "r": self.ranks, "l": self.layers, "w": self.roles, "c": CAUSE_SLOTS,
            "s": MAX_SMS, "b": self.blocks, "p": 3,
        }  # fmt: skip
        return tuple(sizes[axis] for axis in TABLES[table])

    @property
    def nbytes(self) -> int:
        """Bytes of all tables."""
        return 8 * sum(prod(self.of(table)) for table in TABLES)

    @property
    def sane(self) -> bool:
        """Whether a page of this shape could be somebody's."""
        return self.nbytes <= 8 * _MAX_CELLS


@dataclass(frozen=True, slots=True)
class Sums:
    """Running sums, u8. Counters are of launches without a timeline, the rest of those with.

    Attributes:
        cycles: by counters: cycles stalled ``(ranks, layers, roles, causes)``.
        count: by counters: stalls.
        seen_cycles: by timelines: cycles stalled, of the launches that were looked at.
        seen_busy: cycles that the warps spent in those launches, ``(ranks, layers, roles)``.
        seen_launches: launches of warps among them.
        prefetch: ``(ranks, layers, 3)``: first uses of prefetches, those that were blocked,
            cycles they were blocked.
        sm_cycles: ``seen_cycles`` by SM ``(ranks, sms, roles, causes)``, over all layers.
        sm_busy: ``seen_busy`` by SM.
        block_cycles: ``cycles`` by block of the grid: counters do not know the SM.
    """

    cycles: U8
    count: U8
    seen_cycles: U8
    seen_busy: U8
    seen_launches: U8
    prefetch: U8
    sm_cycles: U8
    sm_busy: U8
    block_cycles: U8

    @classmethod
    def zeros(cls, shape: Shape) -> Sums:
        """All zero."""
        return cls(**{name: np.zeros(shape.of(name), np.uint64) for name in TABLES})

    def copy(self) -> Sums:
        """The caller's own."""
        return Sums(**{name: getattr(self, name).copy() for name in TABLES})

    def since(self, before: Sums) -> Sums:
        """What has been added since ``before``; a sum that went back counts from zero."""
        return Sums(**{n: _less(getattr(self, n), getattr(before, n)) for n in TABLES})


def _less(now: U8, before: U8) -> U8:
    return np.where(now >= before, now - before, now)
