"""Which slices arrows connect: publish and prefetch to waits, host steps to GPU steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from megatrace.export.flows import Ends, bounded, first_uses, last_arrivals, number_keys
from megatrace.export.frames import Rank, RankRecords
from megatrace.export.gpu import Drawn
from megatrace.export.scene import Scene
from megatrace.export.slices import FLOW_IN, FLOW_OUT
from megatrace.export.wire import I8
from megatrace.schema import Cause, Kind


@dataclass(frozen=True, slots=True)
class _Side:
    """Producers or waits of all ranks, with what has to agree, arrays of one length."""

    rank: I8
    block: I8
    edge: I8
    slot: I8
    time_ns: I8
    dur_ns: I8
    row: I8

    def ends(self, scope: dict[int, int]) -> tuple[I8, ...]:
        """Columns that must agree, what is out of the edge's scope masked."""
        widest = np.array([scope.get(i, _GLOBAL) for i in range(max(scope, default=0) + 1)])
        reach = widest[self.edge]
        rank = np.where(reach == _GLOBAL, -1, self.rank)
        block = np.where(reach == _BLOCK, self.block, -1)
        return rank, block, self.edge, self.slot


_BLOCK, _RANK, _GLOBAL = 0, 1, 2
_SCOPE = {
    Cause.DATA: _BLOCK,
    Cause.SPACE: _BLOCK,
    Cause.INPUT: _RANK,
    Cause.PEER: _GLOBAL,
}
"""How far a slot of an edge reaches, by why the waiters of the edge wait."""


def draw_flows(
    scene: Scene,
    ranks: Sequence[Rank],
    drawn: Mapping[int, Drawn],
    launched_by: Mapping[int, Mapping[int, int]],
    limit: int,
) -> tuple[int, tuple[str, ...]]:
    """Add the arrows; returns how many, and what is left out.

    ``launched_by`` gives, per rank, the host slice of each step id. An arrow ends at the
    end of a wait, from the last publish that let it go; a prefetch has one to its first
    use. One id is one arrow.
    """
    numbers = _edge_numbers(ranks)
    scope = _scopes(ranks, numbers)
    waits = _side(ranks, drawn, numbers, Kind.WAIT)
    pairs, weights = [], []
    for kind, match in ((Kind.PUBLISH, last_arrivals), (Kind.PREFETCH, first_uses)):
        made = _side(ranks, drawn, numbers, kind)
        key = number_keys(
            *(
                np.concatenate(pair)
                for pair in zip(made.ends(scope), waits.ends(scope), strict=True)
            )
        )
        split = len(made.row)
        producers = Ends(key[:split], made.time_ns, made.dur_ns, made.row)
        waiting = Ends(key[split:], waits.time_ns + waits.dur_ns, waits.dur_ns, waits.row)
        producer, wait = match(producers, waiting)
        pairs.append(np.stack([producers.row[producer], waiting.row[wait]]))
        weights.append(waiting.weight[wait])
    ends = np.concatenate(pairs, axis=1)
    kept, cut = bounded(ends[0], np.concatenate(weights), limit)
    starts = _host_pairs(drawn, launched_by)
    out, into = np.concatenate([starts, ends[:, kept]], axis=1)
    ids = np.arange(1, len(out) + 1)
    scene.extra(out, FLOW_OUT, ids)
    scene.extra(into, FLOW_IN, ids)
    return len(ids), (f"{cut:,} of {cut + int(kept.sum()):,} arrows",) if cut else ()


def _host_pairs(drawn: Mapping[int, Drawn], launched_by: Mapping[int, Mapping[int, int]]) -> I8:
    pairs = [
        (host, drawn[rank].step_rows[step])
        for rank, by_step in launched_by.items()
        if rank in drawn
        for step, host in by_step.items()
        if step in drawn[rank].step_rows
    ]
    return np.array(pairs, np.int64).reshape(len(pairs), 2).T


def _edge_numbers(ranks: Sequence[Rank]) -> dict[str, int]:
    names = {event.edge for rank in ranks for event in rank.records.events if event.edge}
    return {name: number for number, name in enumerate(sorted(names))}


def _scopes(ranks: Sequence[Rank], numbers: Mapping[str, int]) -> dict[int, int]:
    return {
        numbers[event.edge]: _SCOPE[event.cause]
        for rank in ranks
        for event in rank.records.events
        if event.kind is Kind.WAIT and event.edge and event.cause
    }


def _side(
    ranks: Sequence[Rank], drawn: Mapping[int, Drawn], numbers: Mapping[str, int], kind: Kind
) -> _Side:
    parts = [_rank_side(rank, drawn[rank.rank], numbers, kind) for rank in ranks]
    columns = np.concatenate([np.empty((7, 0), np.int64), *parts], axis=1)
    return _Side(*columns)


def _rank_side(rank: Rank, drawn: Drawn, numbers: Mapping[str, int], kind: Kind) -> I8:
    records: RankRecords = rank.records
    edge = np.array([numbers.get(event.edge, -1) for event in records.events] or [-1])
    rows = np.flatnonzero(records.kind_mask(kind) & (drawn.row_of_record >= 0))
    rows = rows[edge[records.event[rows]] >= 0]
    return np.stack([
        np.full(len(rows), rank.rank),
        records.block[rows],
        edge[records.event[rows]],
        records.slot[rows],
        records.begin_ns[rows],
        records.dur_ns[rows],
        drawn.row_of_record[rows],
    ]).astype(np.int64)  # fmt: skip
