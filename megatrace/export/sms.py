"""SMs as tracks: the launches of each one after the other, and under them what the lead warp does.

An SM's own track is what is seen while it is closed, so it tells the story of its
warps by that of one: the warp whose spans last longest in sum.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from megatrace.analysis.pick import number_keys
from megatrace.export.frames import Rank, RankLaunches, RankRecords
from megatrace.export.launches import Envelopes, launch_labels
from megatrace.export.scene import Scene
from megatrace.export.slices import COLOUR, I4
from megatrace.export.tracks import Track, fitting_tracks
from megatrace.export.wire import I8, Mask
from megatrace.schema import Kind


@dataclass(frozen=True, slots=True)
class Sms:
    """Tracks of the SMs, one more for each block that an SM runs beside another of a launch.

    ``track`` has them in their order, ``index`` that of each launch row among them;
    ``several`` says of each launch row whether its track is of several block numbers.
    ``lane`` is the track that the block of each launch row is drawn on: another lane of it
    where launches of one SM overlap. ``lead`` is the lead warp, -1 where there are no spans.
    """

    track: I8
    index: I8
    lane: I8
    several: Mask
    lead: int


def draw_sms(scene: Scene, rank: Rank, root: int, order: int) -> Sms:
    """Add the SMs of ``rank`` below ``root``, the first at place ``order``."""
    launches = rank.launches
    each = _blocks_in_launches(launches)
    block, sm = launches.block[each.first], launches.sm[each.first]
    beside = _beside(number_keys(launches.launch[each.first], sm), block, each)
    index = number_keys(sm, beside)
    _, shown = np.unique(index, return_index=True)
    least, several = _block_numbers(index, block)
    names = _names(sm[shown], least, several)
    # Launches of one SM may overlap: the next begins before all warps of the last have ended.
    tracks = np.array(
        [
            scene.tracks.add(Track(name, root, order + i, async_=True))
            for i, name in enumerate(names)
        ]
    )
    # A launch takes its phases along to its lane, so the lane is settled before them.
    lane = fitting_tracks(tracks[index].astype(np.int32), each.begin_ns, each.dur_ns, scene.tracks)
    rows = scene.add(lane, launch_labels(scene, launches, each.first), each.begin_ns, each.dur_ns)
    scene.extra(rows, COLOUR, launches.layer[each.first].astype(np.int64) + 1)
    scene.arg(rows, "block", block)
    lead = _lead_warp(rank.records)
    of_row = index[each.group]
    sms = Sms(tracks, of_row, lane[each.group].astype(np.int64), several[of_row], lead)
    _draw_phases(scene, rank.records, sms)
    return sms


def _blocks_in_launches(launches: RankLaunches) -> Envelopes:
    """Each block of each launch; a damaged word may put warps of one on several SMs."""
    return Envelopes.of(number_keys(launches.launch, launches.sm, launches.block), launches)


def _beside(together: I8, block: I4, each: Envelopes) -> I8:
    """Which of the blocks that its SM runs at once each is, from 0, by block number.

    Blocks of one launch on one SM have equal ``together``. Those that follow each other
    there have the same place.
    """
    beside = np.zeros(len(block), np.int64)
    rows = np.flatnonzero(np.bincount(together)[together] > 1)
    rows = rows[np.lexsort((block[rows], together[rows]))]
    taken: list[list[tuple[int, int]]] = []
    before = -1
    for row, of, begin, dur in zip(
        rows.tolist(), together[rows].tolist(), each.begin_ns[rows].tolist(),
        each.dur_ns[rows].tolist(), strict=True,
    ):  # fmt: skip
        if of != before:
            taken, before = [], of
        end, at = begin + dur, 0
        while at < len(taken) and any(begin < e and b < end for b, e in taken[at]):
            at += 1
        if at == len(taken):
            taken.append([])
        taken[at].append((begin, end))
        beside[row] = at
    return beside


def _block_numbers(index: I8, block: I4) -> tuple[I8, Mask]:
    """The lowest block number of each track, and whether it has others.

    ``index`` says of each block which track it is on.
    """
    least = np.full(int(index.max()) + 1, np.iinfo(np.int64).max)
    most = np.full(len(least), -1, np.int64)
    np.minimum.at(least, index, block)
    np.maximum.at(most, index, block)
    return least, least < most


def _names(sm: I4, block: I8, several: Mask) -> list[str]:
    """``SM 17 (block 12)`` where that is the only block number of a track, else ``SM 17``.

    ``SM 17 (2 of 3 blocks)`` is the second of three tracks of an SM that runs as many at once.
    """
    first = np.searchsorted(sm, sm)
    count = np.searchsorted(sm, sm, side="right") - first
    names = []
    for at, number in enumerate(sm.tolist()):
        if not several[at]:
            names.append(f"SM {number} (block {block[at]})")
        elif count[at] == 1:
            names.append(f"SM {number}")
        else:
            names.append(f"SM {number} ({at - first[at] + 1} of {count[at]} blocks)")
    return names


def _lead_warp(records: RankRecords) -> int:
    """The warp whose spans last longest in sum: what it does is what its SM does."""
    spans = records.kind_mask(Kind.SPAN)
    if not spans.any():
        return -1
    outer = np.flatnonzero(spans)[_outermost(records, np.flatnonzero(spans))]
    return int(np.bincount(records.warp[outer], records.dur_ns[outer]).argmax())


def _outermost(records: RankRecords, rows: I8) -> Mask:
    """Which of ``rows``, sorted by launch and begin, lie in no other of their launch."""
    launch, begin = records.launch[rows], records.begin_ns[rows]
    end = begin + records.dur_ns[rows]
    first = int(begin.min(initial=np.iinfo(np.int64).max)) if len(rows) else 0
    shift = launch * (int(end.max(initial=0)) - first + 1) - first
    reach = np.maximum.accumulate(end + shift) if len(rows) else end
    outer = np.ones(len(rows), np.bool_)
    outer[1:] = begin[1:] + shift[1:] >= reach[:-1]
    return outer


def _draw_phases(scene: Scene, records: RankRecords, sms: Sms) -> None:
    """The lead warp's outermost spans on its SM; repeats in a row are one phase."""
    rows = np.flatnonzero(records.kind_mask(Kind.SPAN) & (records.warp == sms.lead))
    rows = rows[_outermost(records, rows)]
    if not len(rows):
        return
    launch, event = records.launch[rows], records.event[rows]
    fresh = np.ones(len(rows), np.bool_)
    fresh[1:] = (launch[1:] != launch[:-1]) | (event[1:] != event[:-1])
    first = np.flatnonzero(fresh)
    count = np.diff(first, append=len(rows))
    last = rows[first + count - 1]
    begin = records.begin_ns[rows[first]]
    end = records.begin_ns[last] + records.dur_ns[last]
    labels = np.array([scene.label(event.name, "phase") for event in records.events])
    drawn = scene.add(sms.lane[launch[first]], labels[event[first]], begin, end - begin)
    scene.arg(drawn[count > 1], "repeats", count[count > 1])
