"""Which slices arrows connect: publish and prefetch to waits, host steps to GPU steps.

Who ended a wait and who first used a prefetch is what the tables say: an arrow and a row
of a table never tell two stories.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from megatrace.export.flows import bounded
from megatrace.export.frames import Rank
from megatrace.export.gpu import Drawn
from megatrace.export.scene import Scene
from megatrace.export.slices import FLOW_IN, FLOW_OUT
from megatrace.export.tables import Tables
from megatrace.export.wire import I8


@dataclass(frozen=True, slots=True)
class Placed:
    """Where the records of a trace are drawn: arrays [rows of ``records``].

    ``slice_row`` is -1 for what is not drawn, ``block`` where the name of a track says it;
    times are of the axis.
    """

    slice_row: I8
    block: I8
    begin_ns: I8
    end_ns: I8

    @classmethod
    def of(cls, count: int, ranks: Sequence[Rank], drawn: Mapping[int, Drawn]) -> Placed:
        """The ``count`` records of a trace of ``ranks``."""
        row, block, begin, end = (np.full(count, -1, np.int64) for _ in range(4))
        for rank in ranks:
            mine, records = rank.record_rows, rank.records
            row[mine] = drawn[rank.rank].row_of_record
            block[mine] = drawn[rank.rank].block_of_record
            begin[mine] = records.begin_ns
            end[mine] = records.begin_ns + records.dur_ns
        return cls(row, block, begin, end)


def draw_flows(
    scene: Scene,
    placed: Placed,
    tables: Tables,
    drawn: Mapping[int, Drawn],
    launched_by: Mapping[int, Mapping[int, int]],
    limit: int,
) -> tuple[int, tuple[str, ...]]:
    """Add the arrows; returns how many, and what is left out.

    ``launched_by`` gives, per rank, the host slice of each step id. An arrow ends at the
    end of a wait, from the publish that ended it; a prefetch has one to its first use. One
    id is one arrow.
    """
    arrivals, uses = tables.arrivals, tables.uses
    made = np.concatenate([arrivals.publish, uses.issue]).astype(np.int64)
    wait = np.concatenate([arrivals.wait, uses.use]).astype(np.int64)
    there = (made >= 0) & (wait >= 0)
    made, wait = made[there], wait[there]
    there = (placed.slice_row[made] >= 0) & (placed.slice_row[wait] >= 0)
    # An arrow that ends where or before it begins is none to the viewer. The error of
    # two clocks makes such.
    there &= placed.begin_ns[made] < placed.end_ns[wait]
    made, wait = made[there], wait[there]
    kept, cut = bounded(made, placed.end_ns[wait] - placed.begin_ns[wait], limit)
    ends = placed.slice_row[np.stack([made, wait])]
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
