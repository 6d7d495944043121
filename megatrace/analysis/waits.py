"""Who waited for whom: each wait that blocked, and the publish that ended it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from megatrace.analysis.columns import SYNC_WAITS
from megatrace.analysis.lines import I8, Mask, Rows
from megatrace.analysis.pick import (
    causes_of_edges,
    edge_columns,
    edges_ended_by,
    is_one_of,
    launch_columns,
    number_keys,
    numbers_at,
    of_launch,
    warp_columns,
)
from megatrace.analysis.trace import Trace
from megatrace.errors import ClockError
from megatrace.schema import Cause, Kind

FLIGHT_NS = 5_000
"""A publish may take so long to be seen: one that was earlier ended no wait begun after it.

And it is written down a little after its data left: so much after the wait's end at most.
The host build has no such bound; there the launch is one.
"""
_NO_BOUND = 1 << 60


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Waits that blocked and their last arrivers: rows of ``Trace.records``; arrays [n].

    ``publish`` is -1 where no publish that fits was recorded, ``publish_ns`` its time on
    the waiter's clock.
    """

    wait: Rows
    publish: Rows
    publish_ns: I8


def last_arrivers(trace: Trace) -> Arrivals:
    """For each wait on a hand-off that blocked, the last publish of its edge and slot.

    The last one at or before the wait's end and not longer than :data:`FLIGHT_NS` before the
    wait began, or the first after the end if that is nearer and the two clocks may be off by
    so much; else the first after its end, not longer than that: the data is the flag, and was
    out before the publish was written down. Waiters and publishers of an edge meet within a
    block (causes data and space), a GPU (input) or all of them (peer).
    """
    records = trace.records
    waits = is_one_of(records["kind"], (Kind.WAIT,)) & (records["dur_ns"].to_numpy() > 0)
    waiting = np.flatnonzero(
        waits & ~is_one_of(records["edge"], edges_ended_by(trace, Kind.PREFETCH))
    )
    made = np.flatnonzero(is_one_of(records["kind"], (Kind.PUBLISH,)))
    publish, publish_ns = (np.full(len(waiting), -1, np.int64) for _ in range(2))
    if len(waiting) and len(made):
        peers = {edge for edge, cause in causes_of_edges(trace).items() if cause is Cause.PEER}
        for match, edges in ((_beside, False), (_across, True)):
            mine = np.flatnonzero(is_one_of(records["edge"].iloc[waiting], peers) == edges)
            theirs = made[is_one_of(records["edge"].iloc[made], peers) == edges]
            if len(mine) and len(theirs):
                publish[mine], publish_ns[mine] = match(trace, waiting[mine], theirs)
    return Arrivals(waiting, publish.astype(np.intp), publish_ns)


def _beside(trace: Trace, waiting: Rows, made: Rows) -> tuple[I8, I8]:
    """Of one GPU: the publish of each wait, or -1, and its time."""
    records = trace.records
    begin, dur = records["begin_ns"].to_numpy(), records["dur_ns"].to_numpy()
    within = {Cause.DATA, Cause.SPACE}
    inner = {edge for edge, cause in causes_of_edges(trace).items() if cause in within}
    rows = np.concatenate([made, waiting])
    in_block = is_one_of(records["edge"].iloc[rows], inner)
    block = np.where(in_block, of_launch(trace, "block", rows), -1)
    slow = _of_the_host_build(trace, rows)
    launch = np.where(slow, of_launch(trace, "launch", rows), -1)
    key = _keys(trace, rows, numbers_at(trace, rows), block, launch)
    # Two SMs are each off by as much.
    slack = np.where(in_block[len(made) :], 0, 2 * _errors(trace, waiting))
    flight = np.where(slow[len(made) :], _NO_BOUND, FLIGHT_NS)
    times = (begin[made], begin[waiting], dur[waiting])
    place = _fitting(key, *times, slack, flight)
    # The warps of a block share one clock: between them nothing is in doubt.
    blocks = of_launch(trace, "block", rows)
    near = _fitting(number_keys(key, blocks), *times, np.zeros_like(slack), flight)
    at_home = (place < 0) | (blocks[place] == blocks[len(made) :])
    place = np.where(at_home, near, place)
    return np.where(place >= 0, made[place], -1), np.where(place >= 0, begin[made][place], -1)


def _across(trace: Trace, waiting: Rows, made: Rows) -> tuple[I8, I8]:
    """Of all GPUs, whose clocks compare through the host's; else as :func:`_beside`."""
    records = trace.records
    waiting_at, doubt = _on_the_host(trace, waiting)
    made_at, their_doubt = _on_the_host(trace, made)
    known = made_at >= 0
    made, made_at = made[known], made_at[known]
    unknown = np.full(len(waiting), -1, np.int64)
    if not len(made):
        return unknown, unknown
    rows = np.concatenate([made, waiting])
    slow = _of_the_host_build(trace, rows)
    within = (np.where(slow, of_launch(trace, name, rows), -1) for name in ("step", "layer"))
    key = _keys(trace, rows, of_launch(trace, "process", rows), *within)
    slack = doubt + int(their_doubt[known].max())
    flight = np.where(slow[len(made) :], _NO_BOUND, FLIGHT_NS)
    dur = records["dur_ns"].to_numpy()[waiting]
    place = _fitting(key, made_at, waiting_at, dur, slack, flight)
    place[waiting_at < 0] = -1
    since = made_at[place] - waiting_at
    when = records["begin_ns"].to_numpy()[waiting] + since
    return np.where(place >= 0, made[place], -1), np.where(place >= 0, when, -1)


def _keys(trace: Trace, rows: Rows, *more: I8) -> I8:
    """A number for what a publish and its wait have in common."""
    records = trace.records
    edge, slot = records["edge"].cat.codes.to_numpy()[rows], records["slot"].to_numpy()[rows]
    return number_keys(*more, edge, slot)


def _errors(trace: Trace, rows: Rows) -> I8:
    """Stated error of the clock of each record's SM, whole ns."""
    error = of_launch(trace, "clock_error_ns", rows)
    return np.ceil(np.where(np.isfinite(error), error, 0)).astype(np.int64)


def _on_the_host(trace: Trace, rows: Rows) -> tuple[I8, I8]:
    """Begin of each record on the host's clock, and its error; -1 where nothing ties it."""
    when, doubt = (np.full(len(rows), -1, np.int64) for _ in range(2))
    rank = numbers_at(trace, rows)
    begin = trace.records["begin_ns"].to_numpy()[rows]
    for number, clock in trace.clock.items():
        mine = rank == number
        try:
            when[mine] = clock.to_host_ns(begin[mine])
            doubt[mine] = int(np.ceil(clock.host_error_ns))
        except ClockError:
            continue
    return when, doubt + _errors(trace, rows)


def _of_the_host_build(trace: Trace, rows: Rows) -> Mask:
    cpus = [rank for rank, device in trace.devices.items() if device == "cpu"]
    found: Mask = np.isin(numbers_at(trace, rows), cpus)
    return found


def _fitting(key: I8, made_at: I8, begin: I8, dur: I8, slack: I8, flight: I8) -> I8:
    """For each wait the last producer by its end, or the first after it, or -1.

    ``key`` is of the producers, then of the waits. Times compare to within ``slack``: after
    the end by no more goes the nearer one. Nothing hangs on the bound itself, for slots are
    used again sooner than the bound. A producer is at most ``flight`` before the wait's begin
    or after its end.
    """
    many = len(made_at)
    end = begin + dur
    time = np.concatenate([made_at, end])
    is_wait = np.arange(len(key)) >= many
    order = np.lexsort((is_wait, time, key))
    at = np.arange(len(order))
    latest = np.maximum.accumulate(np.where(is_wait[order], -1, at))
    following = np.where(is_wait[order], len(order), at)[::-1]
    following = np.minimum.accumulate(following)[::-1]
    after = np.flatnonzero(is_wait[order])
    wait = order[after] - many
    place, off = np.full(len(begin), -1, np.int64), np.full(len(begin), _NO_BOUND)
    for near, there, later in (
        (following[after], following[after] < len(order), True),
        (latest[after], latest[after] >= 0, False),
    ):
        producer = order[np.where(there, near, 0)]
        there &= key[producer] == key[wait + many]
        made = made_at[np.where(there, producer, 0)]
        there &= made >= begin[wait] - flight[wait] - slack[wait]
        there &= made <= end[wait] + flight[wait] + slack[wait]
        far = np.abs(made - end[wait])
        # Beyond the clocks' error, what is before the end goes over the first after.
        if not later:
            there &= (off[wait] > slack[wait]) | (far <= off[wait])
        place[wait[there]], off[wait[there]] = producer[there], far[there]
    return place


def sync_waits(trace: Trace) -> pd.DataFrame:
    """A row a wait that blocked; columns as ``SYNC_WAITS`` says."""
    found = last_arrivers(trace)
    if not len(found.wait):
        return SYNC_WAITS.empty()
    records, launches = trace.records, trace.launches
    launch = records["launch_row"].to_numpy()
    mine, known = launch[found.wait], found.publish >= 0
    begin, dur = (records[n].to_numpy()[found.wait] for n in ("begin_ns", "dur_ns"))
    theirs = launch[found.publish]
    by = {
        f"from_{name}": np.where(known, launches[name].to_numpy()[theirs].astype(np.int64), -1)
        for name in ("rank", "block", "sm", "warp")
    }
    return SYNC_WAITS.frame(
        {
            **launch_columns(trace, mine),
            **warp_columns(trace, mine),
            **edge_columns(trace, found.wait),
            "begin_ns": begin,
            "dur_ns": dur,
            **by,
            "publish_ns": np.where(known, found.publish_ns, -1),
            "delay_ns": np.where(known, begin + dur - found.publish_ns, -1),
        }
    )
