"""The tree of tracks, and what describes it to the viewer.

Every track says where it stands among its siblings, and is kept apart from those of the
same name: by default the viewer sorts by name and merges. A row that needs several
lanes is several tracks that share a merge key, drawn as one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb

from megatrace.export.encoder import track_uuid
from megatrace.export.nesting import MAX_DEPTH, lanes
from megatrace.export.slices import I4, Extras, Slices, in_order
from megatrace.export.wire import I8, Mask

NO_PARENT = -1


@dataclass(frozen=True, slots=True)
class Track:
    """One track.

    Attributes:
        name: What the viewer shows.
        parent: Index of the parent, or ``NO_PARENT``.
        order: Place among its siblings.
        row: Tracks of one parent and equal, not empty ``row`` are drawn as one.
        async_: Its slices may overlap by nature, so that lanes are no defect.
        unit: Of a counter's values.
        counter: Whether it holds samples in place of slices.
        scale: Counters of one parent and equal, not empty ``scale`` share the y axis.
    """

    name: str
    parent: int = NO_PARENT
    order: int = 0
    row: str = ""
    async_: bool = False
    counter: bool = False
    unit: str = ""
    scale: str = ""


class Tracks:
    """A growing list of tracks; the index is what slices carry."""

    def __init__(self) -> None:
        """Start with none."""
        self._tracks: list[Track] = []

    def __len__(self) -> int:
        """How many."""
        return len(self._tracks)

    def __iter__(self) -> Iterator[Track]:
        """All, by index."""
        return iter(self._tracks)

    def __getitem__(self, index: int) -> Track:
        """The track of one index."""
        return self._tracks[index]

    def add(self, track: Track) -> int:
        """Append ``track`` and return its index."""
        self._tracks.append(track)
        return len(self._tracks) - 1

    def async_mask(self) -> Mask:
        """Which of the tracks are ``async_``."""
        return np.array([track.async_ for track in self._tracks], np.bool_)

    def add_lane(self, index: int) -> int:
        """A new track that is drawn as one with track ``index``."""
        track = self._tracks[index]
        if not track.row:
            track = replace(track, row=f"lanes of {index}")
            self._tracks[index] = track
        return self.add(track)

    def descriptors(self) -> bytes:
        """The packets that describe all tracks."""
        trace = pb.Trace()
        for index, track in enumerate(self._tracks):
            one = trace.packet.add(trusted_packet_sequence_id=1).track_descriptor
            one.uuid = track_uuid(index)
            one.name = track.name
            if track.parent != NO_PARENT:
                one.parent_uuid = track_uuid(track.parent)
            one.sibling_order_rank = track.order
            one.child_ordering = pb.TrackDescriptor.EXPLICIT
            if track.row:
                one.sibling_merge_behavior = (
                    pb.TrackDescriptor.SIBLING_MERGE_BEHAVIOR_BY_SIBLING_MERGE_KEY
                )
                one.sibling_merge_key = track.row
            else:
                one.sibling_merge_behavior = pb.TrackDescriptor.SIBLING_MERGE_BEHAVIOR_NONE
            if track.counter:
                _counter(one.counter, track)
        return bytes(trace.SerializeToString())


def _counter(counter: pb.CounterDescriptor, track: Track) -> None:
    counter.SetInParent()
    if track.unit:
        counter.unit_name = track.unit
    if track.scale:
        counter.y_axis_share_key = track.scale


def spread(slices: Slices, tracks: Tracks) -> tuple[Slices, int]:
    """``slices`` in order and nested on every track, and how many were misplaced.

    What does not nest moves to a new lane of its track. Only slices of tracks that are
    not ``async_`` count as misplaced.
    """
    slices = in_order(slices)
    track = _with_lanes(slices, tracks)
    moved = track != slices.track
    if not moved.any():
        return slices, 0
    misplaced = int((~tracks.async_mask())[slices.track[moved]].sum())
    slices = Slices(track, slices.label, slices.begin_ns, slices.dur_ns, slices.extras)
    return in_order(slices), misplaced


def fitting_tracks(track: I4, begin_ns: I8, dur_ns: I8, tracks: Tracks) -> I4:
    """The track of each slice after those that overlap have moved to new lanes.

    For slices, in any order, that others will be drawn inside of: one must not lie among
    those of another, though it would nest.
    """
    order = np.lexsort((-(begin_ns + dur_ns), begin_ns, track))
    columns = track[order], track[order], begin_ns[order], dur_ns[order]
    fitting = np.empty(len(track), np.int32)
    fitting[order] = _with_lanes(Slices(*columns, Extras.none()), tracks, depth=1)
    return fitting


def _with_lanes(slices: Slices, tracks: Tracks, depth: int = MAX_DEPTH) -> I4:
    """The track of each slice, where lanes other than the first are new tracks."""
    lane = lanes(slices, depth)
    moved = np.flatnonzero(lane)
    track = slices.track.copy()
    pairs, which = np.unique(np.stack([track[moved], lane[moved]]), axis=1, return_inverse=True)
    new = [tracks.add_lane(index) for index in pairs[0].tolist()]
    if len(moved):
        track[moved] = np.array(new, np.int32)[which.ravel()]
    return track
