"""Did prefetches arrive in time: each against the waits for the same edge and slot.

Late is exact: a warp asked before the data was there and was blocked for so long. Early
is only an interval: where the first warp that asked did not block, the data came at some
time between the prefetch and that. A prefetch nobody is seen to ask for says nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from megatrace.analysis.lines import I8, Mask, Rows
from megatrace.analysis.tables import PREFETCH, WAIT, Lookup
from megatrace.analysis.words import Records
from megatrace.schema import Kind


@dataclass(frozen=True, slots=True)
class Slack:
    """Prefetches of a chunk; arrays [n].

    ``row`` is each one's place in Records. Where ``late``, ``cycles`` is for how long the
    first user was blocked; where ``early``, the upper end of [0, first use - issue];
    where neither, no use was seen.
    """

    row: Rows
    late: Mask
    early: Mask
    cycles: I8

    def of(self, mine: Mask) -> Slack:
        """Those where ``mine`` [n]."""
        return Slack(self.row[mine], self.late[mine], self.early[mine], self.cycles[mine])


def edges_of(lut: Lookup) -> dict[str, int]:
    """Edges that a PREFETCH of the table ends, by name, numbered from 1."""
    names = sorted({e.edge for e in lut.events.values() if e.kind is Kind.PREFETCH and e.edge})
    return {name: i + 1 for i, name in enumerate(names)}


def waited_edges(lut: Lookup) -> set[str]:
    """Edges that some WAIT of the table waits for; a prefetch into L2 has none."""
    return {e.edge for e in lut.events.values() if e.kind is Kind.WAIT and e.edge}


def owners(user: I8, before: I8, key: I8, key_of: I8) -> I8:
    """Which prefetch each use belongs to, or -1: the one rule of all tables.

    A warp uses what was prefetched in the order in which it was, each once: a use belongs
    to the latest prefetch before its end that no later use of that warp belongs to. A warp
    that waits more often than there are prefetches looks again at the latest.

    ``user`` [u] numbers warp and key, in time within each; ``before`` [u] is the latest
    prefetch before its end; ``key`` [u] and ``key_of`` [p] say which belong together.
    """
    if not len(user):
        return before
    prefetches = np.bincount(key_of, minlength=int(key.max()) + 1)
    order = np.argsort(user, kind="stable")
    nth = np.empty(len(user), np.int64)
    uses = np.bincount(user)
    nth[order] = np.arange(len(user)) - np.repeat(np.cumsum(uses) - uses, uses)
    # The least of a use and its user's later ones: users apart by more than values are.
    ahead, apart = before - nth, len(user) + len(key_of) + 1
    last_first = order[::-1]
    lifted = ahead[last_first] + user[last_first] * apart
    ahead[last_first] = np.minimum.accumulate(lifted) - user[last_first] * apart
    owner = ahead + nth
    owner[(owner < 0) | (key_of[np.maximum(owner, 0)] != key)] = -1
    again = uses[user] > prefetches[key]
    found: I8 = np.where(again, before, owner)
    return found


def slack(records: Records, lut: Lookup, ring: Rows, warps: int, clock: I8) -> Slack | None:
    """Match the prefetches of a chunk with their first use; None where it has none.

    ``ring`` [L] and ``clock`` [L] are of the launches, ``warps`` those of a block: they
    share the SM's clock, so their times compare without a clock model.
    """
    numbers = edges_of(lut)
    if not numbers:
        return None
    edge_of = np.zeros(len(lut.kind), np.int64)
    for event in lut.events.values():
        edge_of[event.id] = numbers.get(event.edge, 0)
    kind = lut.kind[records.event]
    rows = np.flatnonzero((edge_of[records.event] > 0) & ((kind == PREFETCH) | (kind == WAIT)))
    issue = kind[rows] == PREFETCH
    if not issue.any():
        return None
    launch = records.launch[rows]
    slot = np.where(issue, records.arg(rows, 0), records.arg(rows, 1))
    begin, dur = clock[launch] + records.t[rows], records.dur[rows]
    place = ring[launch] // warps * (len(numbers) + 1) + edge_of[records.event[rows]]
    # A wait counts at its end: who asks before the prefetch is issued still waits for it.
    order = np.lexsort((~issue, begin + dur, slot, place))
    fresh = np.ones(len(rows), bool)
    fresh[1:] = (np.diff(place[order]) != 0) | (np.diff(slot[order].astype(np.int64)) != 0)
    key, warp = np.cumsum(fresh) - 1, (ring[launch] % warps)[order]
    rows, issue, begin, dur = rows[order], issue[order], begin[order], dur[order]
    before = np.cumsum(issue) - 1
    led = ~issue & (before >= 0)
    led[led] = key[led] == key[issue][before[led]]
    owner = owners(key[led] * warps + warp[led], before[led], key[led], key[issue])
    uses, owner = np.flatnonzero(led)[owner >= 0], owner[owner >= 0]
    blocked = np.full(int(issue.sum()), -1, np.int64)
    first_use = np.full(len(blocked), np.iinfo(np.int64).max)
    np.maximum.at(blocked, owner, np.maximum(dur[uses], 0))
    np.minimum.at(first_use, owner, begin[uses])
    late, early = blocked > 0, blocked == 0
    lead = np.maximum(np.where(early, first_use, begin[issue]) - begin[issue], 0)
    return Slack(rows[issue], late, early, np.where(late, blocked, lead))
