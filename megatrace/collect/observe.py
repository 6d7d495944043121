"""What the lines of a ring say as they pass: stalls, launches, first uses, a clock rate.

The counters leave out the launches that have a timeline, and know neither how long a launch
took nor on which SM it ran. So the recorder looks at the lines it drains. This is no decoder:
a stall says its own length, a header and a closing say when, and the rest is left to
:mod:`megatrace.analysis`. It takes SHARE of a core at most; what comes beyond that is not
looked at, and since whole drains are left out the shares stay true.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from megatrace.errors import MegatraceError
from megatrace.ring.file import RingFile
from megatrace.ring.sums import MAX_SMS
from megatrace.schema import CAUSES, EventTable, Kind
from megatrace.schema.layout import (
    ARG_BITS,
    ARG_MASK,
    CAUSE_SLOTS,
    HALF_WORDS,
    HEADER_EDGE,
    LAYER_MASK,
    RECORDS_PER_HALF,
    RECORDS_PER_LINE,
    TIME_BITS,
)

SHARE = 0.05
_GRACE_S = 0.05
"""Looked at whatever it takes, so that short recordings are seen whole."""
_MAX_LINES = 1 << 14
"""Lines looked at together."""
_RATE_NS = 1_000_000
"""Two headers this far apart tell a clock's rate to a few parts in ten thousand."""
_RENEW_NS = 1_000_000_000
"""By then the frequency may be another."""

_HEADER, _CLOSING = 1, 2
_CODES = 512
_NO_CAUSE = CAUSE_SLOTS

Ints = NDArray[np.int64]
Words = NDArray[np.uint32]
U8 = NDArray[np.uint64]


class Observer:
    """Running sums of one ring file, from the lines that were drained of it.

    Attributes:
        cycles: u8 ``(layers, roles, causes)``, ``busy`` and ``launches`` ``(layers, roles)``,
            ``prefetch`` ``(layers, 3)``, ``sm_cycles`` ``(sms, roles, causes)``, ``sm_busy``
            ``(sms, roles)``: as :class:`megatrace.ring.sums.Sums` has them of a rank.
        ns_per_cycle: of the SM clocks; nan while not known.
        skipped: lines that were not looked at.
    """

    def __init__(self, table: EventTable, role_of_warp: Sequence[int], rings: int, layers: int):
        """``role_of_warp`` numbers the role of each warp of a block."""
        roles = max(role_of_warp, default=-1) + 1
        self.cycles = np.zeros((layers, roles, CAUSE_SLOTS), np.uint64)
        self.busy = np.zeros((layers, roles), np.uint64)
        self.launches = np.zeros((layers, roles), np.uint64)
        self.prefetch = np.zeros((layers, 3), np.uint64)
        self.sm_cycles = np.zeros((MAX_SMS, roles, CAUSE_SLOTS), np.uint64)
        self.sm_busy = np.zeros((MAX_SMS, roles), np.uint64)
        self.ns_per_cycle = float("nan")
        self.skipped = 0
        self._layers, self._roles = layers, roles
        warps = max(1, len(role_of_warp))
        self._role_of_ring = np.array(role_of_warp, np.int64)[np.arange(rings) % warps]
        self._cause, self._first_use = _lookup(table)
        self._next = np.zeros(rings, np.uint32)
        """Number the next line of each ring has if none is missing."""
        self._layer = np.full(rings, -1, np.int64)
        self._sm = np.zeros(rings, np.int64)
        self._clock = np.zeros(rings, np.int64)
        self._pair: tuple[int, int, int] | None = None
        self._begin_s = time.monotonic()
        self._spent_s = 0.0

    @classmethod
    def of(cls, ring: RingFile, roles: Sequence[str]) -> Observer | None:
        """For ``ring``, whose warps have ``roles``; None where its table cannot be read."""
        try:
            table = EventTable.from_json(str(ring.meta["table"]))
        except (KeyError, ValueError, TypeError, MegatraceError):
            return None
        if not ring.rings or not roles:
            return None
        names = list(dict.fromkeys(roles))
        numbers = [names.index(role) for role in roles]
        return cls(table, numbers, ring.rings, int(ring.header["layers"]))

    def feed(self, ring: Words, lines: Words) -> None:
        """Look at a drain: lines ``(n, 32)`` of warp rings ``(n,)``."""
        begin = time.monotonic()
        if self._spent_s > SHARE * (begin - self._begin_s) + _GRACE_S:
            self.skipped += len(lines)
            return  # the next line that is looked at does not follow: a gap, as any other
        for at in range(0, len(lines), _MAX_LINES):
            self._look(ring[at : at + _MAX_LINES], lines[at : at + _MAX_LINES])
        self._spent_s += time.monotonic() - begin

    def _look(self, ring: Words, lines: Words) -> None:
        order = np.argsort(ring.astype(np.uint16 if ring.max() < 1 << 16 else ring.dtype),
                           kind="stable")  # fmt: skip
        self._look_in_order(ring[order].astype(np.int64), lines[order])

    def _look_in_order(self, ring: Ints, lines: Words) -> None:
        number = lines[:, 0]
        head = (lines[:, 1] >> TIME_BITS == _HEADER) & (number != 0)
        fresh = np.ones(len(ring), bool)
        fresh[1:] = ring[1:] != ring[:-1]
        follows = np.empty(len(ring), bool)
        follows[1:] = number[1:] == number[:-1] + np.uint32(1)
        follows[fresh] = number[fresh] == self._next[ring[fresh]]
        first = np.flatnonzero(fresh | head | ~follows)
        layer, sm, clock = self._openings(ring, lines, first, head[first], follows[first])
        last = np.flatnonzero(np.append(fresh[1:], True))
        segment = np.zeros(len(ring), np.int64)
        segment[first] = 1
        segment = np.cumsum(segment) - 1
        at = ring[last]
        self._next[at] = number[last] + np.uint32(1)
        self._layer[at], self._sm[at] = layer[segment[last]], sm[segment[last]]
        self._clock[at] = clock[segment[last]]
        self._add(ring, lines, layer[segment], sm[segment], clock[segment])

    def _openings(
        self, ring: Ints, lines: Words, first: Ints, head: NDArray[np.bool_], follows: Ints
    ) -> tuple[Ints, Ints, Ints]:
        """Layer (-1: not known), SM and clock of each run of lines."""
        at = ring[first]
        layer = np.where(follows, self._layer[at], -1)
        sm, clock = self._sm[at], self._clock[at]
        if head.any():
            opening = (lines[first[head], 1:10] & np.uint32(ARG_MASK)).astype(np.int64)
            layer[head] = opening[:, 3] & LAYER_MASK
            sm[head] = opening[:, 0] & (HEADER_EDGE - 1)
            clock[head] = opening[:, 6]
            self._learn_rate(opening)
        layer[(layer >= self._layers) | (sm >= MAX_SMS)] = -1
        return layer, sm, clock

    def _learn_rate(self, opening: Ints) -> None:
        """Two headers of one SM, as far apart as can be: clocks of two SMs do not compare."""
        sm = opening[:, 0] & (HEADER_EDGE - 1)
        ns = opening[:, 4] | opening[:, 5] << ARG_BITS
        clock = opening[:, 6] | opening[:, 7] << ARG_BITS
        if self._pair is None:
            self._pair = (int(sm[0]), int(ns[0]), int(clock[0]))
        same = np.flatnonzero(sm == self._pair[0])
        if not len(same):
            return
        at = int(same[-1])
        passed_ns, passed = int(ns[at]) - self._pair[1], int(clock[at]) - self._pair[2]
        if passed_ns >= _RATE_NS and passed > 0:
            self.ns_per_cycle = passed_ns / passed
            if passed_ns > _RENEW_NS:
                self._pair = (int(sm[at]), int(ns[at]), int(clock[at]))

    def _add(self, ring: Ints, lines: Words, layer: Ints, sm: Ints, clock: Ints) -> None:
        words = np.empty((len(lines), RECORDS_PER_LINE), np.uint32)
        words[:, :RECORDS_PER_HALF] = lines[:, 1:HALF_WORDS]
        words[:, RECORDS_PER_HALF:] = lines[:, HALF_WORDS + 1 :]
        words[lines[:, 0] != lines[:, HALF_WORDS], RECORDS_PER_HALF:] = 0
        words[layer < 0] = 0
        event = (words >> np.uint32(TIME_BITS)).astype(np.uint16)
        cause = self._cause[event]
        self._add_stalls(words, event, cause, layer, sm, self._role_of_ring[ring])
        line, place = np.nonzero(event[:, :-1] == _CLOSING)
        if not len(line):
            return
        end = (words[line, place + 1] & np.uint32(ARG_MASK)).astype(np.int64)
        cycles = (end - clock[line]) & ARG_MASK
        role = self._role_of_ring[ring[line]]
        group = layer[line] * self._roles + role
        _sum_into(self.busy, group, cycles)
        _sum_into(self.launches, group)
        _sum_into(self.sm_busy, sm[line] * self._roles + role, cycles)

    def _add_stalls(
        self, words: Words, event: NDArray[np.uint16], cause: NDArray[np.uint8], layer: Ints,
        sm: Ints, role: Ints,
    ) -> None:  # fmt: skip
        line, place = np.nonzero(cause[:, :-1] != _NO_CAUSE)
        if not len(line):
            return
        why = cause[line, place].astype(np.int64)
        cycles = (words[line, place + 1] & np.uint32(ARG_MASK)).astype(np.int64)
        role = role[line]
        _sum_into(self.cycles, (layer[line] * self._roles + role) * CAUSE_SLOTS + why, cycles)
        _sum_into(self.sm_cycles, (sm[line] * self._roles + role) * CAUSE_SLOTS + why, cycles)
        uses = self._first_use[event[line, place]]
        if uses.any():
            group, cycles = 3 * layer[line[uses]], cycles[uses]
            _sum_into(self.prefetch, group)
            _sum_into(self.prefetch, group + 1, (cycles > 0).astype(np.int64))
            _sum_into(self.prefetch, group + 2, cycles)


def _lookup(table: EventTable) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
    """By event field: the cause's slot of what blocks, and what is a prefetch's first use."""
    cause = np.full(_CODES, _NO_CAUSE, np.uint8)
    first_use = np.zeros(_CODES, bool)
    asked = {event.edge for event in table if event.kind is Kind.PREFETCH and event.edge}
    for event in table:
        if event.kind in (Kind.STALL, Kind.WAIT) and event.cause is not None:
            cause[event.id] = CAUSES.index(event.cause)
            first_use[event.id] = event.kind is Kind.WAIT and event.edge in asked
    return cause, first_use


def _sum_into(table: U8, place: Ints, values: Ints | None = None) -> None:
    """Add ``values`` (or 1 each) at flat ``place`` of ``table``; exact below 2**53 a call."""
    sums = np.bincount(place, values, table.size)
    table.reshape(-1)[:] += sums.astype(np.uint64)
