"""Did each prefetch arrive in time: against the first use of its edge and slot by its block.

Late is exact, early an interval, an arrival that nobody saw is not invented; as in
:mod:`megatrace.analysis.prefetch`, but a row each, and across launches.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from megatrace.analysis.columns import (
    CPU,
    EARLY,
    LATE,
    NEVER_USED,
    NOT_SEEN,
    PREFETCH_TIMING,
    VERDICTS,
)
from megatrace.analysis.lines import I8, Mask, Rows
from megatrace.analysis.numbers import numbers_of
from megatrace.analysis.pick import (
    edge_columns,
    edges_ended_by,
    is_one_of,
    launch_columns,
    number_keys,
    numbers_at,
    of_launch,
    sound_launches,
    warp_columns,
)
from megatrace.analysis.prefetch import owners
from megatrace.analysis.trace import Trace
from megatrace.analysis.walls import walls_of
from megatrace.schema import Kind

_NAMES = tuple(VERDICTS)


@dataclass(frozen=True, slots=True)
class Uses:
    """Prefetches and their first use: rows of ``Trace.records``; arrays [n], in record order.

    ``use`` is the wait that began first, ``blocked`` the one that was blocked longest;
    -1 where no use was seen.
    """

    issue: Rows
    use: Rows
    blocked: Rows


def first_uses(trace: Trace) -> Uses:
    """Each prefetch with the waits of its block for its edge and slot, as ``owners`` says."""
    records = trace.records
    issues = is_one_of(records["kind"], (Kind.PREFETCH,))
    edges = edges_ended_by(trace, Kind.PREFETCH)
    waits = is_one_of(records["kind"], (Kind.WAIT,)) & is_one_of(records["edge"], edges)
    rows = np.flatnonzero(issues | waits)
    issue = issues[rows]
    begin = records["begin_ns"].to_numpy()[rows]
    dur = np.maximum(records["dur_ns"].to_numpy()[rows], 0)
    key = number_keys(
        numbers_at(trace, rows),
        of_launch(trace, "block", rows),
        records["edge"].cat.codes.to_numpy()[rows],
        records["slot"].to_numpy()[rows],
    )
    # A wait counts at its end: who asks before the prefetch is issued still waits for it.
    order = np.lexsort((~issue, begin + dur, key))
    rows, issue, key = rows[order], issue[order], key[order]
    warp = of_launch(trace, "warp", rows)
    issued, before = rows[issue], np.cumsum(issue) - 1
    led = ~issue & (before >= 0)
    led[led] = key[led] == key[issue][before[led]]
    owner = owners(number_keys(key[led], warp[led]), before[led], key[led], key[issue])
    mine = owner >= 0
    used, owner = rows[led][mine], owner[mine]
    use, longest = (np.full(len(issued), -1, np.intp) for _ in range(2))
    earliest, longest_by = -records["begin_ns"].to_numpy()[used], _blocked(trace, used)
    for into, by in ((use, earliest), (longest, longest_by)):
        best = np.lexsort((by, owner))  # the last of each group wins
        into[owner[best]] = used[best]
    back = np.argsort(issued, kind="stable")
    return Uses(issued[back], use[back], longest[back])


def _blocked(trace: Trace, rows: Rows) -> I8:
    found: I8 = np.maximum(trace.records["dur_ns"].to_numpy()[rows], 0)
    return found


def prefetch_timing(trace: Trace) -> pd.DataFrame:
    """A row a prefetch; columns as ``PREFETCH_TIMING`` says."""
    uses = first_uses(trace)
    if not len(uses.issue):
        return PREFETCH_TIMING.empty()
    records = trace.records
    launch = records["launch_row"].to_numpy()
    begin, dur = records["begin_ns"].to_numpy(), records["dur_ns"].to_numpy()
    mine, used = launch[uses.issue], uses.use >= 0
    late_ns = np.where(used, np.maximum(dur[uses.blocked], 0), -1)
    early_ns = np.where(late_ns == 0, np.maximum(begin[uses.use] - begin[uses.issue], 0), -1)
    where = launch_columns(trace, mine)
    warp = warp_columns(trace, mine)
    by = launch[uses.use]
    return PREFETCH_TIMING.frame(
        {
            **where,
            "block": warp["block"],
            "sm": warp["sm"],
            **edge_columns(trace, uses.issue),
            "issue_ns": begin[uses.issue],
            "use_ns": np.where(used, begin[uses.use], -1),
            "use_launch_no": np.where(used, trace.launches["launch"].to_numpy()[by], -1),
            "use_layer": np.where(used, trace.launches["layer"].to_numpy()[by], -1),
            "late_ns": late_ns,
            "early_at_most_ns": early_ns,
            "verdict": pd.Categorical.from_codes(
                _verdicts(trace, uses, mine, late_ns), pd.Index(_NAMES, dtype=object)
            ),
        }
    )


def _verdicts(trace: Trace, uses: Uses, launch: Rows, late_ns: I8) -> NDArray[np.int8]:
    """Places in :data:`_NAMES`."""
    visible = (
        is_one_of(trace.records["edge"].iloc[uses.issue], _edges_that_show_each_use(trace))
        & _block_is_whole(trace)[launch]
    )
    verdict = np.where(visible, _NAMES.index(NEVER_USED), _NAMES.index(NOT_SEEN))
    verdict[late_ns == 0] = _NAMES.index(EARLY)
    verdict[late_ns > 0] = _NAMES.index(LATE)
    cpus = [rank for rank, device in trace.devices.items() if device == "cpu"]
    verdict[np.isin(numbers_of(trace.launches)[launch], cpus)] = _NAMES.index(CPU)
    return verdict.astype(np.int8)


def _edges_that_show_each_use(trace: Trace) -> set[str]:
    """Edges of which a wait that did not block has left a word somewhere."""
    records = trace.records
    free = is_one_of(records["kind"], (Kind.WAIT,)) & (records["dur_ns"].to_numpy() == 0)
    return {str(edge) for edge in records["edge"][free].unique()}


def _block_is_whole(trace: Trace) -> Mask:
    """[L] whether no warp of the same block and launch has lost anything."""
    block = trace.launches["block"].to_numpy()
    key = number_keys(walls_of(trace).of_launch, block)
    damaged = np.bincount(key[~sound_launches(trace)], minlength=int(key.max(initial=-1)) + 1)
    whole: Mask = damaged[key] == 0
    return whole
