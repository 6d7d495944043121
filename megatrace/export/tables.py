"""What the tables say, as arguments of the slices that they speak of.

A slice says the same as its row of the table, to the ns, and the views that read them
out of a trace (``viewers/perfetto/megatrace``) need no rules of their own. The tables are
those of the whole trace: a use in a step that is not drawn still counts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from megatrace.analysis import Trace
from megatrace.analysis.columns import CLASSES
from megatrace.analysis.numbers import numbers_of
from megatrace.analysis.stalls import class_times
from megatrace.analysis.timeliness import Uses, first_uses, prefetch_timing
from megatrace.analysis.waits import Arrivals, last_arrivers, sync_waits
from megatrace.analysis.walls import launch_times
from megatrace.export.frames import Rank
from megatrace.export.scene import Scene
from megatrace.export.wire import I8
from megatrace.schema.processes import rank_of

_LAUNCH_COUNTS = ("blocks_seen", "warps_seen", "clock_error_ns")


@dataclass(frozen=True, slots=True)
class Tables:
    """The tables of a trace, and which rows of its frames they are of.

    ``launch_times`` has a row a launch of the GPU; ``class_ns`` [rows of ``launches``,
    classes]; ``prefetches`` a row each of ``uses``, ``waits`` one each of ``arrivals``.
    ``edges`` is the dependency that each event's name is about.
    """

    launch_times: pd.DataFrame
    class_ns: I8
    uses: Uses
    prefetches: pd.DataFrame
    arrivals: Arrivals
    waits: pd.DataFrame
    edges: dict[str, str]

    @classmethod
    def of(cls, trace: Trace) -> Tables:
        """All of them."""
        return cls(
            launch_times(trace),
            class_times(trace)[0],
            first_uses(trace),
            prefetch_timing(trace),
            last_arrivers(trace),
            sync_waits(trace),
            _edges_by_event(trace),
        )


def tell_launches(scene: Scene, rank: Rank, tables: Tables, numbers: I8, rows: I8) -> None:
    """Say of the slices ``rows`` what the table says of launches ``numbers``."""
    table = tables.launch_times
    table = table[numbers_of(table) == rank.rank].set_index("launch_no").loc[numbers]
    begin, end, dur = (table[name].to_numpy() for name in ("begin_ns", "end_ns", "dur_ns"))
    scene.arg(rows, "launch", numbers)
    scene.arg(rows, "step", table["step"].to_numpy())
    scene.arg(rows, "layer", table["layer"].to_numpy())
    kernels = table["kernel"].astype(str).to_numpy()
    for kernel in np.unique(kernels).tolist():
        scene.text_arg(rows[kernels == kernel], "kernel", kernel)
    # The slice lasts until the last sign of any warp; -1, and so no argument: no end is known.
    scene.arg(rows, "dur_ns", np.where(end >= begin, dur, -1))
    gap = table["gap_ns"].to_numpy()
    scene.arg(rows, "gap_ns", gap)
    scene.arg(rows, "overlap_ns", np.where(gap < -1, -gap, -1))
    for name in _LAUNCH_COUNTS:
        scene.arg(rows, name, table[name].to_numpy())
    scene.arg(rows, "whole", table["whole"].to_numpy().astype(np.int64))


def tell_warps(scene: Scene, rank: Rank, tables: Tables, rows: I8) -> None:
    """Say of the slices ``rows``, one a launch row of ``rank``, where their time goes."""
    launches = rank.launches
    scene.arg(rows, "launch", launches.launch)
    times = tables.class_ns[rank.launch_rows]
    for place, name in enumerate(CLASSES):
        spent = times[:, place]
        scene.arg(rows, f"{name}_ns", np.where(spent > 0, spent, -1))


def tell_prefetches(
    scene: Scene, rank: Rank, tables: Tables, row_of_record: I8, block_of_record: I8
) -> None:
    """Say of the prefetches of ``rank`` whether they were in time.

    ``row_of_record`` is the slice of each record of the trace, -1 where none is drawn;
    ``block_of_record`` the block to say, -1 for none. Each of very many slices: what follows
    from the rest is left to the view.
    """
    table, record = _drawn(tables.prefetches, tables.uses.issue, row_of_record, rank)
    rows = row_of_record[record]
    scene.arg(rows, "launch", table["launch_no"].to_numpy())
    scene.arg(rows, "block", block_of_record[record])
    used = table["use_ns"].to_numpy() >= 0
    after = table["use_ns"].to_numpy() - table["issue_ns"].to_numpy()
    scene.arg(rows, "used_after_ns", np.where(used, after, -1))
    scene.arg(rows, "used_before_ns", np.where(used & (after < 0), -after, -1))
    scene.arg(rows, "use_launch", table["use_launch_no"].to_numpy())
    late = table["late_ns"].to_numpy()
    scene.arg(rows, "late_ns", np.where(late > 0, late, -1))
    verdicts = table["verdict"].astype(str).to_numpy()
    for verdict in np.unique(verdicts).tolist():
        scene.text_arg(rows[verdicts == verdict], "verdict", verdict)


def tell_waits(
    scene: Scene, rank: Rank, tables: Tables, row_of_record: I8, block_of_record: I8
) -> None:
    """Say of the waits of ``rank`` for another warp who ended them; as above."""
    table, record = _drawn(tables.waits, tables.arrivals.wait, row_of_record, rank)
    rows = row_of_record[record]
    scene.arg(rows, "launch", table["launch_no"].to_numpy())
    scene.arg(rows, "block", block_of_record[record])
    block, of = table["from_block"].to_numpy(), table["from_rank"].to_numpy()
    known = block >= 0
    scene.arg(rows[~known], "from_nobody_known", 1)
    other = of != rank_of(rank.rank)
    scene.arg(rows, "from_rank", np.where(other, of, -1))
    scene.arg(rows, "from_block", block)
    sm, places = table["from_sm"].to_numpy(), _places(rank)
    here = known & ~other & (block < len(places))
    told = here & (places[np.where(here, block, 0)] == sm)
    scene.arg(rows, "from_sm", np.where(told, -1, sm))
    scene.arg(rows, "from_warp", table["from_warp"].to_numpy())
    delay = table["delay_ns"].to_numpy()
    scene.arg(rows, "delay_ns", np.where(known, delay, -1))
    scene.arg(rows, "delay_below_0_ns", np.where(known & (delay < 0), -delay, -1))


def _edges_by_event(trace: Trace) -> dict[str, str]:
    """The dependency that each event is about, as the first rank that has it says."""
    found: dict[str, str] = {}
    for table in trace.tables.values():
        for event in table:
            found.setdefault(event.name, event.edge)
    return {name: edge for name, edge in found.items() if edge}


def _drawn(
    table: pd.DataFrame, of_record: I8, row_of_record: I8, rank: Rank
) -> tuple[pd.DataFrame, I8]:
    """The rows of ``table``, one a record, that are of ``rank`` and drawn; and their records."""
    mine = np.flatnonzero((row_of_record[of_record] >= 0) & (numbers_of(table) == rank.rank))
    return table.iloc[mine], of_record[mine]


def _places(rank: Rank) -> I8:
    """[blocks] the SM that a view takes for a block's: the highest that its launches name, or -1.

    Of others that ran there the launch may not be drawn, or was elsewhere.
    """
    block = rank.launches.block
    places = np.full(int(block.max(initial=0)) + 1, -1, np.int64)
    np.maximum.at(places, block, rank.launches.sm)
    return places
