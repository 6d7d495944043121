"""A Trace laid out as tracks and slices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from megatrace import __version__
from megatrace.analysis import Trace
from megatrace.analysis.numbers import numbers_of
from megatrace.export.about import clock_texts, draw_about, loss_text, steps_text
from megatrace.export.edges import Placed, draw_flows
from megatrace.export.frames import ranks
from megatrace.export.gpu import Drawn, draw_rank
from megatrace.export.host import draw_host
from megatrace.export.scene import Scene
from megatrace.export.select import Selection, Steps, select
from megatrace.export.slices import SAMPLE, Names, Slices
from megatrace.export.tables import Tables, tell_prefetches, tell_waits
from megatrace.export.timeline import Timeline, timeline
from megatrace.export.tracks import Tracks, spread
from megatrace.export.wire import Mask
from megatrace.schema.processes import rank_of, rank_text


@dataclass(frozen=True, slots=True)
class PerfettoOptions:
    """What goes into the file.

    Attributes:
        steps: ``"one"`` typical step, ``"all"``, or their ids.
        budget: Slices of records at most; whole launches are left out beyond it, never all.
        flows: Whether arrows lead from publish and prefetch to the wait.
        max_flows: Arrows at most, the longest waits first.
        args: Whether slices carry slots, arguments, and what the tables say of them.
    """

    steps: Steps = "one"
    budget: int = 2_000_000
    flows: bool = True
    max_flows: int = 20_000
    args: bool = True


@dataclass(frozen=True, slots=True)
class Picture:
    """A trace drawn, not yet encoded.

    Attributes:
        slices: In order and nested on each track.
        names: The strings they use.
        tracks: What they are drawn on.
        facts: What the trace says of itself: name and text.
        edges: The dependency that each event's name is about.
        steps: Ids of the steps shown.
        left_out: One phrase for each thing that is not.
        flows: Arrows.
        misplaced: Slices that overlapped and got a lane of their own.
        unfinished: Spans drawn to the end of their launch.
        clock_error_ns: Of GPU times; None without launches.
        host_error_ns: Of host times; 0 on their own clock, None where they are not shown.
    """

    slices: Slices
    names: Names
    tracks: Tracks
    facts: Mapping[str, str]
    edges: Mapping[str, str]
    steps: tuple[int, ...]
    left_out: tuple[str, ...]
    flows: int
    misplaced: int
    unfinished: int
    clock_error_ns: float | None
    host_error_ns: float | None

    @property
    def samples(self) -> int:
        """How many of ``slices`` are samples of counters."""
        return int((self.slices.extras.key == SAMPLE).sum())


def draw(
    trace: Trace,
    options: PerfettoOptions,
    *,
    command: str = "",
    left_out: tuple[str, ...] = (),
    recorded: str = "",
) -> Picture:
    """Lay ``trace`` out. Raises UsageError for unknown steps, ClockError without a clock.

    ``left_out`` is what the caller has left out of ``trace``, in phrases; ``recorded``
    what the recorder did, where it was asked for a part alone.
    """
    chosen = select(trace.launches, trace.records, options.steps, options.budget)
    of_launch = numbers_of(trace.launches)[chosen.launches]
    axis = timeline(trace.clock, np.unique(of_launch).tolist())
    scene = Scene()
    on_axis = list(ranks(trace, chosen.launches, axis))
    names = _rank_names(trace)
    tables = Tables.of(trace)
    drawn = {
        rank.rank: draw_rank(scene, rank, names[rank.rank], tables, args=options.args)
        for rank in on_axis
    }
    placed = Placed.of(len(trace.records), on_axis, drawn)
    if options.args:
        for rank in on_axis:
            tell_prefetches(scene, rank, tables, placed.slice_row, placed.block)
            tell_waits(scene, rank, tables, placed.slice_row, placed.block)
    launched_by = {} if axis.host_missing else _draw_hosts(scene, trace, axis, chosen, names)
    flows = 0
    cut: tuple[str, ...] = ()
    if options.flows:
        flows, cut = draw_flows(scene, placed, tables, drawn, launched_by, options.max_flows)
    steps = chosen.steps if len(trace.launches) else _host_steps(trace)
    missing = (*left_out, *chosen.left_out, *cut)
    if axis.host_missing and len(trace.host):
        missing = (*missing, f"host events ({axis.host_missing})")
    facts = _facts(trace, axis, steps, drawn, command, missing, recorded)
    draw_about(scene, facts, scene.bounds_ns())
    slices, misplaced = spread(scene.slices(), scene.tracks)
    return Picture(
        slices=slices,
        names=scene.names(),
        tracks=scene.tracks,
        facts=facts,
        edges=tables.edges,
        steps=steps,
        left_out=missing,
        flows=flows,
        misplaced=misplaced,
        unfinished=sum(one.unfinished for one in drawn.values()),
        clock_error_ns=_clock_error(axis),
        host_error_ns=axis.host_error_ns,
    )


def _rank_names(trace: Trace) -> dict[int, str]:
    """``rank 0``, or ``rank 00`` where there are ten: the viewer sorts roots as strings.

    Of a second process ``rank 0#2``.
    """
    ranks = [*np.unique(numbers_of(trace.launches)).tolist(), *trace.tables]
    if len(trace.host):
        ranks += np.unique(numbers_of(trace.host)).tolist()
    digits = len(str(max(map(rank_of, ranks), default=0)))
    zeros = {rank: "0" * (digits - len(str(rank_of(rank)))) for rank in ranks}
    return {rank: f"rank {zeros[rank]}{rank_text(rank)}" for rank in ranks}


def _draw_hosts(
    scene: Scene, trace: Trace, axis: Timeline, chosen: Selection, names: Mapping[int, str]
) -> dict[int, dict[int, int]]:
    """Draw the host of each rank during what is shown; returns the slice of each step."""
    host = trace.host
    if not len(host):
        return {}
    first, last = scene.bounds_ns()
    begin = axis.host(host["host_begin_ns"].to_numpy())
    end = axis.host(host["host_end_ns"].to_numpy())
    during: Mask = (begin <= last) & (end >= first)
    # A step of another process has the same id, and is of another time.
    processes = trace.launches["process"][chosen.launches].unique()
    named: Mask = (host["step"].isin(chosen.steps) & host["process"].isin(processes)).to_numpy()
    shown = during | named
    if not axis.clocks:
        shown[:] = True
    of_rank = numbers_of(host)
    return {
        rank: draw_host(scene, names[rank], host[shown & (of_rank == rank)], axis)
        for rank in np.unique(of_rank[shown]).tolist()
    }


def _host_steps(trace: Trace) -> tuple[int, ...]:
    """Ids of the steps that the host tells of: without launches all of it is shown."""
    if not len(trace.host):
        return ()
    steps = np.unique(trace.host["step"].to_numpy())
    return tuple(steps[steps > 0].tolist())


def _clock_error(axis: Timeline) -> float | None:
    return max((axis.gpu_error_ns(rank) for rank in axis.clocks), default=None)


def _facts(
    trace: Trace,
    axis: Timeline,
    steps: tuple[int, ...],
    drawn: Mapping[int, Drawn],
    command: str,
    left_out: tuple[str, ...],
    recorded: str,
) -> dict[str, str]:
    """What the trace says of itself, most important first; all texts are one line."""
    loss = loss_text(trace.loss)
    if not trace.complete:
        loss += "; the capture was cut short"
    facts = {
        "shows": steps_text(steps),
        "loss": loss,
        "clock": ", ".join(clock_texts(_clock_error(axis), axis.host_error_ns)),
        "left out": ", ".join(left_out) or "nothing",
        **({"recorded": recorded} if recorded else {}),
        "time axis": axis.axis,
        "device": ", ".join(
            f"rank {rank_text(rank)}: {name}" for rank, name in trace.devices.items()
        )
        or "no traced kernel; host spans only",
    }
    if command:
        facts["command"] = command
    if leads := sorted({one.lead_warp for one in drawn.values() if one.lead_warp}):
        facts["phases of an SM"] = "spans of " + ", ".join(leads)
    if trace.problems:
        facts["problems"] = "; ".join(trace.problems)
    facts["version"] = f"megatrace {__version__}"
    return facts
