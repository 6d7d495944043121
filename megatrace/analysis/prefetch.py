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


def edges_of(lut: Lookup) -> dict[str, int]:
    """Edges that a PREFETCH of the table ends, by name, numbered from 1."""
    names = sorted({e.edge for e in lut.events.values() if e.kind is Kind.PREFETCH and e.edge})
    return {name: i + 1 for i, name in enumerate(names)}


def waited_edges(lut: Lookup) -> set[str]:
    """Edges that some WAIT of the table waits for; a prefetch into L2 has none."""
    return {e.edge for e in lut.events.values() if e.kind is Kind.WAIT and e.edge}


def slack(records: Records, lut: Lookup, block: Rows, clock: I8) -> Slack | None:
    """Match the prefetches of a chunk with their first use; None where it has none.

    ``block`` [L] and ``clock`` [L] are of the launches: warps of a block share the SM's
    clock, so their times compare without a clock model.
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
    slot = records.arg(rows, 0)
    slot = np.where(issue, slot, records.arg(rows, 1))
    when = clock[launch] + records.t[rows] + records.dur[rows]
    key = block[launch] * (len(numbers) + 1) + edge_of[records.event[rows]]
    order = np.lexsort((when, slot, key))
    fresh = np.ones(len(rows), bool)
    fresh[1:] = (np.diff(key[order]) != 0) | (np.diff(slot[order].astype(np.int64)) != 0)
    rows, issue, when = rows[order], issue[order], when[order]
    group = np.flatnonzero(fresh | issue)
    blocked = np.maximum.reduceat(records.dur[rows], group)
    uses = np.diff(group, append=len(rows)) - 1
    led = issue[group]
    group, blocked, uses = group[led], blocked[led], uses[led]
    used = uses > 0
    late = used & (blocked > 0)
    first_use = when[np.minimum(group + 1, len(when) - 1)]
    return Slack(rows[group], late, used & ~late, np.where(late, blocked, first_use - when[group]))
