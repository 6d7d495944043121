"""Blocks as tracks: their launches, and under them what the lead warp does.

A block's own track is what is seen while it is closed, so it tells the story of its
warps by that of one: the warp whose spans last longest in sum.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from megatrace.export.frames import Rank, RankRecords
from megatrace.export.launches import Envelopes, launch_labels
from megatrace.export.scene import Scene
from megatrace.export.slices import COLOUR
from megatrace.export.tracks import Track, fitting_tracks
from megatrace.export.wire import I8, Mask
from megatrace.schema import Kind


@dataclass(frozen=True, slots=True)
class Blocks:
    """Tracks of the blocks.

    ``track`` has that of each block number, -1 for blocks without launches;
    ``of_launch`` that of each launch row, which is another lane of it where launches of
    one block overlap. ``lead`` is the lead warp, -1 where there are no spans.
    """

    track: I8
    of_launch: I8
    lead: int


def draw_blocks(scene: Scene, rank: Rank, root: int, order: int) -> Blocks:
    """Add the blocks of ``rank`` below ``root``, the first at place ``order``."""
    tracks = _block_tracks(scene, rank, root, order)
    launches = rank.launches
    _, number = np.unique(launches.launch, return_inverse=True)
    each = Envelopes.of(number * len(tracks) + launches.block, launches)
    own = tracks[launches.block[each.first]].astype(np.int32)
    # A launch takes its phases along to its lane, so the lane is settled before them.
    fitting = fitting_tracks(own, each.begin_ns, each.dur_ns, scene.tracks)
    labels = launch_labels(scene, launches, each.first)
    rows = scene.add(fitting, labels, each.begin_ns, each.dur_ns)
    scene.extra(rows, COLOUR, launches.layer[each.first].astype(np.int64) + 1)
    lead = _lead_warp(rank.records)
    blocks = Blocks(tracks, fitting[each.group].astype(np.int64), lead)
    _draw_phases(scene, rank.records, blocks)
    return blocks


def _block_tracks(scene: Scene, rank: Rank, root: int, order: int) -> I8:
    """The track of each block number, -1 for blocks without launches."""
    launches = rank.launches
    tracks = np.full(int(launches.block.max()) + 1, -1, np.int64)
    for block in np.unique(launches.block).tolist():
        sms = np.unique(launches.sm[launches.block == block])
        name = f"block {block} (SM {sms[0]})" if len(sms) == 1 else f"block {block}"
        # Launches of one block may overlap: the next begins on other warps of its SM.
        track = Track(name, root, order + block, async_=True)
        tracks[block] = scene.tracks.add(track)
    return tracks


def _lead_warp(records: RankRecords) -> int:
    """The warp whose spans last longest in sum: what it does is what its block does."""
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


def _draw_phases(scene: Scene, records: RankRecords, blocks: Blocks) -> None:
    """The lead warp's outermost spans on its block; repeats in a row are one phase."""
    rows = np.flatnonzero(records.kind_mask(Kind.SPAN) & (records.warp == blocks.lead))
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
    drawn = scene.add(blocks.of_launch[launch[first]], labels[event[first]], begin, end - begin)
    scene.arg(drawn[count > 1], "repeats", count[count > 1])
