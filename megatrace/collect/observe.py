"""What the lines of a ring say as they pass: stalls, launches, first uses, a clock rate.

The counters leave out the launches that have a timeline, and know neither how long a launch
took nor on which SM it ran. So the recorder looks at the lines it drains. This is no decoder:
a stall says its own length, a header and a closing say when, and the rest is left to
:mod:`megatrace.analysis`. It takes SHARE of a core at most; what comes beyond that is not
looked at, and since only launches seen from header to closing count, shares stay true.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megatrace.errors import MegatraceError
from megatrace.ring.file import RingFile
from megatrace.ring.sums import MAX_SMS
from megatrace.schema import CAUSES, EventTable, Kind
from megatrace.schema.layout import (
    ARG_BIT,
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
GRACE_S = 0.03
"""Looked at whatever it takes, so that short recordings are seen whole."""
_MAX_LINES = 1 << 12
"""Lines looked at together: some milliseconds, in which rings fill up."""
_RATE_NS = 100_000
"""Two headers this far apart tell a clock's rate to a part in a thousand; later ones better."""
_RENEW_NS = 1_000_000_000
"""By then the frequency may be another."""

_HEADER, _CLOSING = 1, 2
_FIRST_WORD = _CLOSING << TIME_BITS
_CODES = 256
_COLUMNS = CAUSE_SLOTS + 3
_CLOSES, _NOTHING = CAUSE_SLOTS, CAUSE_SLOTS + 1

Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]
Words = NDArray[np.uint32]
U8 = NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class _Runs:
    """Runs of lines of one ring without a gap, of one launch at most; arrays ``(n,)``."""

    ring: Ints
    layer: Ints
    """-1: its header was not seen."""
    sm: Ints
    clock: Ints
    goes_on: Flags
    """It begins in the middle of a launch that the last look has seen the beginning of."""


class Budget:
    """How long the observers of one recorder may look, together."""

    def __init__(self, share: float = SHARE, grace_s: float = GRACE_S) -> None:
        """``share`` of a core, and ``grace_s`` whatever comes first."""
        self._share, self._grace_s = share, grace_s
        self._begin_s = time.monotonic()
        self._spent_s = 0.0

    @property
    def left(self) -> bool:
        """Whether there is time for another look."""
        return self._spent_s <= self._share * (time.monotonic() - self._begin_s) + self._grace_s

    def spend(self, seconds: float) -> None:
        """Count one look."""
        self._spent_s += seconds


class Observer:
    """Running sums of one ring file, from the lines that were drained of it.

    Attributes:
        cycles: u8 ``(layers, roles, causes)``, ``busy`` and ``launches`` ``(layers, roles)``,
            ``prefetch`` ``(layers, 3)``, ``sm_cycles`` ``(sms, roles, causes)``, ``sm_busy``
            ``(sms, roles)``: as :class:`megatrace.ring.sums.Sums` has them of a rank.
        ns_per_cycle: of the SM clocks; nan while not known.
        skipped: lines that were not looked at.
    """

    def __init__(
        self,
        table: EventTable,
        role_of_warp: Sequence[int],
        rings: int,
        layers: int,
        budget: Budget | None = None,
    ) -> None:
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
        self._kind, self._first_use = _lookup(table)
        self._next = np.zeros(rings, np.uint32)
        """Number the next line of each ring has if none is missing."""
        self._layer = np.full(rings, -1, np.int64)
        self._sm = np.zeros(rings, np.int64)
        self._clock = np.zeros(rings, np.int64)
        self._pending = np.zeros((rings, _COLUMNS), np.int64)
        """Of the launch each ring is in: cycles by cause, first uses, late ones, their cycles."""
        self._turn = 0
        self._pair: tuple[int, int, int] | None = None
        self._budget = budget or Budget()

    @classmethod
    def of(
        cls, ring: RingFile, roles: Sequence[str], budget: Budget | None = None
    ) -> Observer | None:
        """For ``ring``, whose warps have ``roles``; None where its table cannot be read."""
        try:
            table = EventTable.from_json(str(ring.meta["table"]))
        except (KeyError, ValueError, TypeError, MegatraceError):
            return None
        if not ring.rings or not roles:
            return None
        names = list(dict.fromkeys(roles))
        numbers = [names.index(role) for role in roles]
        return cls(table, numbers, ring.rings, int(ring.header["layers"]), budget)

    def feed(self, ring: Words, lines: Words) -> None:
        """Look at a drain: lines ``(n, 32)`` of warp rings ``(n,)``.

        What is not looked at leaves a gap, as a lost line does. Of a large drain it looks at
        some of the rings: the next is waiting to be drained.
        """
        if not self._budget.left:
            self.skipped += len(lines)
            return
        begin = time.monotonic()
        parts = -(-len(lines) // _MAX_LINES)
        if parts > 1:
            self._turn = (self._turn + 1) % parts
            some = ring % np.uint32(parts) == self._turn
            self.skipped += len(lines) - int(some.sum())
            ring, lines = ring[some], lines[some]
        if len(ring):
            narrow = ring.astype(np.uint16 if ring.max() < 1 << 16 else np.uint32)
            order = np.argsort(narrow, kind="stable")
            self._look(ring[order].astype(np.int64), lines[order])
        self._budget.spend(time.monotonic() - begin)

    def _look(self, ring: Ints, lines: Words) -> None:
        """Look at lines that are sorted by ring."""
        number = lines[:, 0]
        head = (lines[:, 1] >> TIME_BITS == _HEADER) & (number != 0)
        fresh = np.ones(len(ring), bool)
        fresh[1:] = ring[1:] != ring[:-1]
        follows = np.empty(len(ring), bool)
        follows[1:] = number[1:] == number[:-1] + np.uint32(1)
        follows[fresh] = number[fresh] == self._next[ring[fresh]]
        first = np.flatnonzero(fresh | head | ~follows)
        last = np.flatnonzero(np.append(fresh[1:], True))
        self._next[ring[last]] = number[last] + np.uint32(1)
        runs = self._runs(ring, lines, first, head[first], follows[first])
        run_of_line = np.repeat(np.arange(len(first)), np.diff(first, append=len(ring)))
        sums, ends = self._sums(lines, run_of_line, runs)
        sums[runs.goes_on] += self._pending[runs.ring[runs.goes_on]]
        self._commit(runs, sums, ends)
        final = run_of_line[last]
        at = ring[last]
        self._layer[at], self._sm[at] = runs.layer[final], runs.sm[final]
        self._clock[at] = runs.clock[final]
        self._pending[at] = np.where((ends[final] < 0)[:, None], sums[final], 0)
        self._layer[at[ends[final] >= 0]] = -1

    def _runs(self, ring: Ints, lines: Words, first: Ints, head: Flags, follows: Flags) -> _Runs:
        """The runs of lines without a gap that begin at ``first``, one launch each at most."""
        at = ring[first]
        goes_on = follows & ~head
        layer = np.where(goes_on, self._layer[at], -1)
        sm, clock = self._sm[at], self._clock[at]
        if head.any():
            opening = (lines[first[head], 1:10] & np.uint32(ARG_MASK)).astype(np.int64)
            layer[head] = opening[:, 3] & LAYER_MASK
            sm[head] = opening[:, 0] & (HEADER_EDGE - 1)
            clock[head] = opening[:, 6]
            self._learn_rate(opening)
        layer[(layer >= self._layers) | (sm >= MAX_SMS)] = -1
        return _Runs(at, layer, sm, clock, goes_on)

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

    def _sums(self, lines: Words, run_of_line: Ints, runs: _Runs) -> tuple[Ints, Ints]:
        """What each run adds up to, by column of _pending; and the clock it closes at, or -1."""
        words = np.empty((len(lines), RECORDS_PER_LINE), np.uint32)
        words[:, :RECORDS_PER_HALF] = lines[:, 1:HALF_WORDS]
        words[:, RECORDS_PER_HALF:] = lines[:, HALF_WORDS + 1 :]
        half = lines[:, 0] != lines[:, HALF_WORDS]
        if half.any():
            words[half, RECORDS_PER_HALF:] = 0
        flat = words.ravel()
        # Its first argument follows a record, perhaps in the next line.
        at = np.flatnonzero(flat.view(np.int32)[:-1] >= _FIRST_WORD)
        event = flat[at] >> np.uint32(TIME_BITS)
        kind = self._kind[event]
        run = run_of_line[at // RECORDS_PER_LINE]
        told = (kind != _NOTHING) & (runs.layer[run] >= 0) & (flat[at + 1] >= ARG_BIT)
        at, event, kind, run = at[told], event[told], kind[told].astype(np.int64), run[told]
        value = (flat[at + 1] & np.uint32(ARG_MASK)).astype(np.int64)
        ends = np.full(len(runs.ring), -1, np.int64)
        closes = kind == _CLOSES
        ends[run[closes]] = value[closes]
        stalls = ~closes
        run, kind, value, event = run[stalls], kind[stalls], value[stalls], event[stalls]
        sums = np.zeros((len(runs.ring), _COLUMNS), np.int64)
        flat_sums = sums.reshape(-1)
        _add_at(flat_sums, run * _COLUMNS + kind, value)
        uses = self._first_use[event]
        if uses.any():
            place, value = run[uses] * _COLUMNS + CAUSE_SLOTS, value[uses]
            _add_at(flat_sums, place)
            _add_at(flat_sums, place + 1, (value > 0).astype(np.int64))
            _add_at(flat_sums, place + 2, value)
        return sums, ends

    def _commit(self, runs: _Runs, sums: Ints, ends: Ints) -> None:
        """Count the launches that were seen to their closing, whole: shares stay true."""
        done = np.flatnonzero(ends >= 0)
        role = self._role_of_ring[runs.ring[done]]
        group = runs.layer[done] * self._roles + role
        by_sm = runs.sm[done] * self._roles + role
        cycles = (ends[done] - runs.clock[done]) & ARG_MASK
        _add_at(self.busy.reshape(-1), group, cycles)
        _add_at(self.launches.reshape(-1), group)
        _add_at(self.sm_busy.reshape(-1), by_sm, cycles)
        for cause in range(CAUSE_SLOTS):
            stalled = sums[done, cause]
            _add_at(self.cycles.reshape(-1), group * CAUSE_SLOTS + cause, stalled)
            _add_at(self.sm_cycles.reshape(-1), by_sm * CAUSE_SLOTS + cause, stalled)
        for part in range(3):
            uses = sums[done, CAUSE_SLOTS + part]
            _add_at(self.prefetch.reshape(-1), 3 * runs.layer[done] + part, uses)


def _lookup(table: EventTable) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
    """By event: the cause's slot of what blocks, or _CLOSES; and the first use of a prefetch."""
    kind = np.full(_CODES, _NOTHING, np.uint8)
    kind[_CLOSING] = _CLOSES
    first_use = np.zeros(_CODES, bool)
    asked = {event.edge for event in table if event.kind is Kind.PREFETCH and event.edge}
    for event in table:
        if event.kind in (Kind.STALL, Kind.WAIT) and event.cause is not None:
            kind[event.id] = CAUSES.index(event.cause)
            first_use[event.id] = event.kind is Kind.WAIT and event.edge in asked
    return kind, first_use


def _add_at(table: NDArray[Any], place: Ints, values: Ints | None = None) -> None:
    """Add ``values`` (or 1 each) at ``place`` of a flat ``table``; exact below 2**53 a call."""
    if len(place):
        table += np.bincount(place, values, table.size).astype(table.dtype)
