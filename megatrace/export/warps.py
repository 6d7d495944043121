"""Warps as tracks: their launches, and in them every record with its arguments."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from megatrace.analysis.pick import number_keys
from megatrace.export.frames import Rank, RankRecords
from megatrace.export.launches import launch_labels
from megatrace.export.scene import Scene
from megatrace.export.slices import COLOUR
from megatrace.export.sms import Sms
from megatrace.export.tracks import Track, fitting_tracks
from megatrace.export.wire import I8, Mask
from megatrace.schema import Event, Kind

_INSTANTS = (Kind.PUBLISH, Kind.PREFETCH, Kind.INSTANT)


def draw_warps(
    scene: Scene, rank: Rank, sms: Sms, edges: Mapping[str, str], *, args: bool
) -> tuple[I8, I8, Mask]:
    """Add every record, counters on tracks of their own.

    ``edges`` has the dependency that the trace says an event's name is about; ``args``
    adds slots and arguments.
    Returns the row of each launch, of each record or -1, and which records say their block.
    """
    records, launches = rank.records, rank.launches
    rows = np.full(len(records.event), -1, np.int64)
    warp = number_keys(sms.index, launches.warp)
    _, first = np.unique(warp, return_index=True)
    parents = sms.track[sms.index[first]].tolist()
    tracks = np.array(
        [
            scene.tracks.add(Track(warp_name(rank, number), parent, number))
            for parent, number in zip(parents, launches.warp[first].tolist(), strict=True)
        ]
    )
    dur = np.maximum(launches.end_ns - launches.begin_ns, 0)
    # A launch takes its records along to its lane, so the lane is settled before them.
    on = fitting_tracks(tracks[warp].astype(np.int32), launches.begin_ns, dur, scene.tracks)
    labels = launch_labels(scene, launches, np.arange(len(on)), "warp")
    launch_rows = scene.add(on, labels, launches.begin_ns, dur)
    scene.extra(launch_rows, COLOUR, launches.layer.astype(np.int64) + 1)
    scene.arg(launch_rows, "block", launches.block)
    counts = records.kind_mask(Kind.COUNTER)
    drawn = np.flatnonzero(~counts)
    labels = np.array([scene.label(*_label(event)) for event in records.events], np.int64)
    if len(drawn):
        rows[drawn] = scene.add(
            on[records.launch[drawn]],
            labels[records.event[drawn]],
            records.begin_ns[drawn],
            records.dur_ns[drawn],
        )
    _draw_counters(scene, rank, sms, np.flatnonzero(counts))
    if args:
        _draw_args(scene, records, rows, edges)
    scene.arg(rows[records.unfinished], "unfinished", 1)
    told = _tell_blocks(scene, rank, sms, warp, rows)
    return launch_rows, rows, told


def _tell_blocks(scene: Scene, rank: Rank, sms: Sms, warp: I8, rows: I8) -> Mask:
    """Say the block of records whose place and time are those of two launches' blocks.

    Which records these are; ``warp`` says of each launch whose of which SM it is.
    """
    records, launches = rank.records, rank.launches
    begin, end = launches.begin_ns[records.launch], launches.end_ns[records.launch]
    unsure = _overlapping(warp, launches.begin_ns, launches.end_ns)[records.launch]
    unsure |= (records.begin_ns < begin) | (records.begin_ns + records.dur_ns >= end)
    told: Mask = unsure & sms.several[records.launch] & (rows >= 0)
    scene.arg(rows[told], "block", launches.block[records.launch[told]])
    return told


def _overlapping(group: I8, begin_ns: I8, end_ns: I8) -> Mask:
    """Which of the times of a group overlap another of them."""
    order = np.lexsort((begin_ns, group))
    shift = group[order] * (int(np.ptp(np.concatenate([begin_ns, end_ns]))) + 1)
    begin, end = begin_ns[order] + shift, end_ns[order] + shift
    beside = np.zeros(len(order), np.bool_)
    beside[order[1:]] = begin[1:] < np.maximum.accumulate(end)[:-1]
    beside[order[:-1]] |= begin[1:] < end[:-1]
    return beside


def _draw_counters(scene: Scene, rank: Rank, sms: Sms, rows: I8) -> None:
    """The kernel's own counters, one track an SM and event, below its warps."""
    records, warps = rank.records, int(rank.launches.warp.max()) + 1
    group = sms.index[records.launch[rows]] * len(records.events) + records.event[rows]
    for number in np.unique(group).tolist():
        sm, code = divmod(number, len(records.events))
        event = records.events[code]
        unit = event.all_args[0].unit
        track = Track(event.name, int(sms.track[sm]), warps + code, counter=True, unit=unit)
        mine = rows[group == number]
        order = mine[np.argsort(records.begin_ns[mine], kind="stable")]
        scene.samples(scene.tracks.add(track), records.begin_ns[order], records.args[0, order])


def _label(event: Event) -> tuple[str, str]:
    """Name and category of an event's slices."""
    if event.kind in (Kind.STALL, Kind.WAIT):
        return event.name, f"stall.{event.cause}"
    if event.kind in _INSTANTS:
        return event.name, event.category or str(event.kind)
    if event.kind is Kind.META:
        return event.name.upper(), str(event.kind)
    return event.name, event.category


def _draw_args(scene: Scene, records: RankRecords, rows: I8, edges: Mapping[str, str]) -> None:
    drawn = np.flatnonzero(rows >= 0)
    scene.arg(rows[drawn], "slot", records.slot[drawn])
    _name_edges(scene, records, rows, edges)
    for code, (event, names) in enumerate(zip(records.events, records.arg_names, strict=True)):
        mine = np.flatnonzero((records.event == code) & (rows >= 0))
        if not len(mine):
            continue
        if event.kind is Kind.META and names:
            _name_waits(scene, records, rows, mine)
            continue
        for place, name in enumerate(names):
            scene.arg(rows[mine], name, records.args[place, mine])


def _name_edges(scene: Scene, records: RankRecords, rows: I8, known: Mapping[str, str]) -> None:
    """Say by name which dependency a record is about, where its event's name does not."""
    for code, event in enumerate(records.events):
        if event.edge and known.get(event.name) != event.edge:
            mine = np.flatnonzero((records.event == code) & (rows >= 0))
            scene.text_arg(rows[mine], "edge", event.edge)


def _name_waits(scene: Scene, records: RankRecords, rows: I8, mine: I8) -> None:
    """Say by name which wait a hang is in."""
    names = {event.id: event.name for event in records.events}
    for code in np.unique(records.args[0, mine]).tolist():
        of_code = mine[records.args[0, mine] == code]
        scene.text_arg(rows[of_code], "waits_in", names.get(code, f"event {code}"))


def warp_name(rank: Rank, warp: int) -> str:
    """``loader w0``, or ``warp 0`` where its role has no name."""
    role = rank.roles.get(warp, f"warp {warp}")
    return role if role == f"warp {warp}" else f"{role} w{warp}"
