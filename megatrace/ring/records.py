"""Readers of the two small parts of a ring file: sums and host records."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from megatrace.ring.file import RingFile
from megatrace.schema.layout import (
    CAUSE_SLOTS,
    COUNT_BITS,
    COUNTERS,
    HOST_RECORD,
    SUM_GROUPS,
    stall_counts,
)

_MAX_RECORDS = 1 << 14


class CounterReader:
    """Samples the running sums and unrolls them; one slot is a layer and a warp ring.

    Rings are those of the first SUM_GROUPS blocks, whose places of a layer are those of all.
    The sums wrap: sample at least once in the time that the warps that share a place can stall
    2**40 cycles or 2**24 times.
    """

    def __init__(self, ring: RingFile) -> None:
        """Count from here on as if all sums were 0 when the ring was made."""
        self._rings = ring.rings
        self._live = ring.sums[:, :, : SUM_GROUPS * int(ring.header["warps"])]
        self._live_blocks = ring.block_sums
        layers, _, shared = self._live.shape
        self._before = np.zeros(self._live.shape, np.uint64)
        self._total = np.zeros((layers, shared), COUNTERS)
        self._count = np.zeros((layers, shared, CAUSE_SLOTS), np.uint64)
        self._told = np.zeros((layers, shared), np.uint32)
        self._blocks_before = np.zeros(ring.block_sums.shape, np.uint64)
        self._block_cycles = np.zeros(ring.block_sums.shape, np.uint64)

    def resume(self, slots: NDArray[np.uint32], counters: NDArray[Any]) -> None:
        """Count on from COUNTERS ``(n,)`` of ``slots``, another reader's last of this ring.

        Slots that the ring does not have are left out.
        """
        layer, ring = np.divmod(slots, max(1, self._rings))
        inside = (layer < self._told.shape[0]) & (ring < self._told.shape[1])
        at, counters = (layer[inside], ring[inside]), counters[inside]
        count = stall_counts(counters)
        self._total[at], self._count[at] = counters, count
        self._told[at] = counters["seq"]
        before = self._before.swapaxes(1, 2)  # a view
        before[at] = (counters["cycles"] << np.uint64(COUNT_BITS)) + count

    def snapshot(self) -> NDArray[Any]:
        """COUNTERS ``(layers, rings)``: totals since the ring was made, the caller's own."""
        self._sample()
        return self._total.copy()

    def block_cycles(self) -> NDArray[np.uint64]:
        """Cycles that the warps of each ring stalled, of all layers ``(causes, rings)``."""
        now = self._live_blocks.copy()
        self._block_cycles += (now - self._blocks_before) >> np.uint64(COUNT_BITS)
        self._blocks_before = now
        return self._block_cycles.copy()

    def changed(self) -> tuple[NDArray[np.uint32], NDArray[Any]]:
        """Slots ``layer * rings + ring`` that moved since the last call, and their COUNTERS."""
        self._sample()
        at = np.nonzero(self._total["seq"] != self._told)
        changed = self._total[at]
        self._told[at] = changed["seq"]
        return (at[0] * self._rings + at[1]).astype(np.uint32), changed

    def release(self) -> None:
        """Look at the ring no more, so that it can be unmapped; nothing is counted after."""
        self._live = self._live[:0].copy()
        self._live_blocks = self._live_blocks.copy()
        self._before = self._before[:0].copy()
        self._total = self._total[:0].copy()
        self._count = self._count[:0].copy()
        self._told = self._told[:0].copy()

    def _sample(self) -> None:
        now = self._live.copy()  # each sum is one aligned word: whole as it is
        more = (now - self._before).swapaxes(1, 2)
        self._before = now
        self._total["cycles"] += more >> np.uint64(COUNT_BITS)
        self._count += more & np.uint64((1 << COUNT_BITS) - 1)
        self._total["count"] = self._count.astype(np.uint32)
        self._total["count_high"] = (self._count >> np.uint64(32)).astype(np.uint16)
        self._total["seq"] += more.any(axis=2)


class HostReader:
    """Drains the host records of one ring file.

    Attributes:
        read: records handed on.
        lost: records overwritten before they could be.
    """

    def __init__(self, ring: RingFile, *, first: int = 1) -> None:
        """Begin at record number ``first``."""
        self._live = ring.host
        self._next = first
        self.read = 0
        self.lost = 0

    def drain(self, max_records: int = _MAX_RECORDS) -> NDArray[Any]:
        """HOST_RECORD ``(n,)``: new records in order, the caller's own; call until empty."""
        capacity = self._live.size
        if not capacity:
            return np.zeros(0, HOST_RECORD)
        self._skip_overwritten(capacity)
        numbers = self._next + np.arange(min(capacity, max_records))
        places = (numbers - 1) % capacity
        want = numbers.astype(np.uint32)
        good = self._whole(places, want)
        count = good.size if good.all() else int(good.argmin())
        records = self._live[places[:count]]
        kept = self._whole(places[:count], want[:count])
        self._next += count
        self.read += int(kept.sum())
        self.lost += int((~kept).sum())
        return records if kept.all() else records[kept]

    def release(self) -> None:
        """Look at the ring no more, so that it can be unmapped; the counts stay."""
        self._live = self._live[:0].copy()

    def _whole(self, places: NDArray[np.int64], want: NDArray[np.uint32]) -> NDArray[np.bool_]:
        whole: NDArray[np.bool_] = self._live["number_end"][places] == want
        whole &= self._live["number"][places] == want
        return whole

    def _skip_overwritten(self, capacity: int) -> None:
        place = (self._next - 1) % capacity
        lead = _signed(int(self._live["number"][place]), self._next)
        if lead <= 0 or lead % capacity:
            return
        numbers = self._live["number"].copy()
        leads = (numbers - np.uint32(self._next & 0xFFFFFFFF)).view(np.int32).astype(np.int64)
        sound = (numbers != 0) & ((self._next + leads - 1) % capacity == np.arange(capacity))
        oldest = int(leads[sound].max(initial=lead)) - capacity + 1
        self._next += oldest
        self.lost += oldest


def _signed(found: int, want: int) -> int:
    return ((found - want + (1 << 31)) & 0xFFFFFFFF) - (1 << 31) if found else -1
