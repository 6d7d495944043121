"""Slices to ``TracePacket``s, with numpy.

A sequence is some tracks and all their slices: times are deltas on a clock of the
sequence, names are numbers of its interned table. Few large sequences load faster than
one a track; too large a one is slow to sort. What a slice costs: 15 bytes for its end
and 17 or more for its begin.

Definitions of every message: Perfetto's ``protos/perfetto/trace``; the numbers of the
fields stand beside their names below.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb

from megatrace.export.slices import (
    COLOUR,
    FIRST_ARG,
    FLOW_IN,
    FLOW_OUT,
    SAMPLE,
    Extras,
    Names,
    Slices,
    time_order,
)
from megatrace.export.wire import (
    I8,
    MAX_DELTA,
    U8,
    Integers,
    Mask,
    Rows,
    Tails,
    join_packets,
    tag,
    varint_size,
)

Buffer = bytes | memoryview
_CLOCK = 64
_VARINT, _FIXED64, _SIZED = 0, 1, 2
_SEQUENCE_ID, _TRACK_EVENT, _SEQUENCE_FLAGS = 10, 11, 13
_CATEGORY_IIDS, _DEBUG_ANNOTATIONS, _TYPE, _NAME_IID, _TRACK_UUID = 3, 4, 9, 10, 11
_COUNTER_VALUE, _FLOW_IDS, _TERMINATING_FLOW_IDS, _CORRELATION_ID = 30, 47, 48, 52
_ANNOTATION_NAME_IID, _ANNOTATION_INT, _ANNOTATION_TEXT_IID = 1, 4, 17
_BEGIN, _END, _INSTANT, _COUNTER = 1, 2, 3, 4
_NEEDS_STATE = 2


def track_uuid(track: int) -> int:
    """The uuid of track ``track``: small, since every event repeats it."""
    return track + 1


def encode_sequence(sequence_id: int, slices: Slices, names: Names) -> list[Buffer]:
    """The packets of one sequence, first those that set it up.

    Args:
        sequence_id: Not 0, and of no other sequence in the trace.
        slices: In order, nested on each track (see :mod:`megatrace.export.nesting`),
            not empty. Begin times are not negative.
        names: What their labels and extras refer to.
    """
    interned = _Interned.of(slices, names)
    time, pick, tails = _events(sequence_id, slices, interned)
    delta = np.diff(time, prepend=time[0])
    cuts = [0, *np.flatnonzero(delta > MAX_DELTA).tolist(), len(time)]
    delta[cuts[:-1]] = 0
    out: list[Buffer] = [_clock_packet(sequence_id, int(time[0])), interned.packet(sequence_id)]
    for low, high in itertools.pairwise(cuts):
        if low:
            out.append(_clock_packet(sequence_id, int(time[low])))
        out.append(join_packets(delta[low:high], tails, pick[low:high]))
    return out


def _events(sequence_id: int, slices: Slices, interned: _Interned) -> tuple[I8, I8, Tails]:
    """Time of each event in order, which tail it has, and the tails."""
    tracks = _Used.of(slices.track)
    width, labels = len(tracks.values), interned.labels
    track = np.take(tracks.place, slices.track)
    lasting = slices.dur_ns > 0
    ends, instants = np.flatnonzero(lasting), np.flatnonzero(~lasting)
    # 0..width: the end of a slice; then two codes a label, begin and instant.
    code = np.take(width * (1 + 2 * labels.place), slices.label)
    code += track
    code[instants] += width
    pick = np.concatenate([track[ends], code])
    codes = np.arange(width * (1 + 2 * len(labels.values)))
    if len(codes) > len(pick):
        used = _Used.of(pick)
        codes, pick = used.values, np.take(used.place, pick)

    kind, on = np.divmod(codes, width)
    tails = _tails(
        sequence_id,
        type_=np.where(kind == 0, _END, np.where(kind % 2 == 1, _BEGIN, _INSTANT)),
        track=tracks.values[on],
        name=np.where(kind == 0, 0, interned.name_iid[(kind - 1) // 2]),
        category=np.where(kind == 0, 0, interned.category_iid[(kind - 1) // 2]),
    )
    extras = slices.extras
    # An arrow that ends in a wait starts while it lasts: it has to end where the wait does.
    at_end = (extras.key == FLOW_IN) & lasting[extras.row]
    for chosen, end in ((~at_end, False), (at_end, True)):
        if not chosen.any():
            continue
        some = Extras(extras.row[chosen], extras.key[chosen], extras.value[chosen])
        rows, rich = _rich_tails(sequence_id, slices, some, interned, end=end)
        events = np.searchsorted(ends, rows) if end else len(ends) + rows
        pick[events] = len(tails.size) + np.arange(len(rows))
        tails = tails + rich

    # At one time a slice must end before the next begins; begins are in order already.
    time = np.concatenate([slices.begin_ns[ends] + slices.dur_ns[ends], slices.begin_ns])
    order = time_order(time - time.min())
    return np.take(time, order), np.take(pick, order), tails


@dataclass(frozen=True, slots=True)
class _Used:
    """The distinct numbers of a column, and the place of each among them."""

    values: I8
    place: I8

    @classmethod
    def of(cls, column: NDArray[np.integer]) -> _Used:
        used = np.zeros(int(column.max(initial=-1)) + 1, np.bool_)
        used[column] = True
        return cls(np.flatnonzero(used), np.cumsum(used) - 1)


@dataclass(frozen=True, slots=True)
class _Interned:
    """The strings of one sequence and their numbers, from 1; 0 is no string."""

    labels: _Used
    name_iid: I8
    category_iid: I8
    args: _Used
    texts: _Used
    names: Names

    @classmethod
    def of(cls, slices: Slices, names: Names) -> _Interned:
        labels = _Used.of(slices.label)
        used = [names.labels[i] for i in labels.values.tolist()]
        extras = slices.extras
        args = extras.key >= FIRST_ARG
        texts = args & names.is_text(extras.key - FIRST_ARG)
        return cls(
            labels,
            _numbers([name for name, _ in used]),
            _numbers([category for _, category in used]),
            _Used.of(extras.key[args] - FIRST_ARG),
            _Used.of(extras.value[texts]),
            names,
        )

    def packet(self, sequence_id: int) -> bytes:
        """The packet that clears the sequence's state and sets it."""
        trace = pb.Trace()
        packet = trace.packet.add(trusted_packet_sequence_id=sequence_id, sequence_flags=1)
        packet.trace_packet_defaults.timestamp_clock_id = _CLOCK
        data = packet.interned_data
        used = [self.names.labels[i] for i in self.labels.values.tolist()]
        for (name, category), iid, category_iid in zip(
            used, self.name_iid.tolist(), self.category_iid.tolist(), strict=True
        ):
            if iid > len(data.event_names):
                data.event_names.add(iid=iid, name=name)
            if category_iid > len(data.event_categories):
                data.event_categories.add(iid=category_iid, name=category)
        for iid, arg in enumerate(self.args.values.tolist(), 1):
            data.debug_annotation_names.add(iid=iid, name=self.names.args[arg])
        for iid, text in enumerate(self.texts.values.tolist(), 1):
            data.debug_annotation_string_values.add(iid=iid, str=self.names.texts[text].encode())
        return bytes(trace.SerializeToString())


def _numbers(strings: list[str]) -> I8:
    """A number for each string, from 1 in order of appearance; 0 for the empty one."""
    seen = {"": 0}
    return np.array([seen.setdefault(string, len(seen)) for string in strings], np.int64)


def _clock_packet(sequence_id: int, time_ns: int) -> bytes:
    """From here on the sequence's times are deltas, counted from ``time_ns``."""
    trace = pb.Trace()
    packet = trace.packet.add(trusted_packet_sequence_id=sequence_id)
    clocks = packet.clock_snapshot.clocks
    clocks.add(clock_id=_CLOCK, timestamp=time_ns, is_incremental=True)
    clocks.add(clock_id=pb.BUILTIN_CLOCK_BOOTTIME, timestamp=time_ns)
    return bytes(trace.SerializeToString())


@dataclass(frozen=True, slots=True)
class _Annotation:
    """At most one argument of each row."""

    where: Mask
    name_iid: I8
    is_text: Mask
    value: I8

    @property
    def size(self) -> I8:
        """Bytes of the ``DebugAnnotation``: name and value, each behind its tag."""
        value_tag = np.where(self.is_text, 2, 1)
        return 1 + varint_size(self.name_iid) + value_tag + varint_size(self.value)


def _rich_tails(
    sequence_id: int, slices: Slices, extras: Extras, interned: _Interned, *, end: bool
) -> tuple[I8, Tails]:
    """The slices that have ``extras``, and for each a tail of its begin or of its end."""
    rows, row = np.unique(extras.row, return_inverse=True)
    extras = Extras(row, extras.key, extras.value)
    by_key = [_slots(extras, extras.key == key, len(rows)) for key in range(FIRST_ARG)]
    annotations = []
    for where, at in _slots(extras, extras.key >= FIRST_ARG, len(rows)):
        arg = np.where(where, extras.key[at] - FIRST_ARG, interned.args.values[:1].sum())
        is_text = where & interned.names.is_text(arg)
        value = extras.value[at]
        value[is_text] = interned.texts.place[value[is_text]] + 1
        annotations.append(_Annotation(where, interned.args.place[arg] + 1, is_text, value))
    label = interned.labels.place[slices.label[rows]]
    sample = [(where, extras.value[at]) for where, at in by_key[SAMPLE]]
    is_sample = sample[0][0] if sample else np.zeros(len(rows), np.bool_)
    type_ = np.where(slices.dur_ns[rows] > 0, _END if end else _BEGIN, _INSTANT)
    nameless = is_sample | end
    return rows, _tails(
        sequence_id,
        type_=np.where(is_sample, _COUNTER, type_),
        track=slices.track[rows].astype(np.int64),
        name=np.where(nameless, 0, interned.name_iid[label]),
        category=np.where(nameless, 0, interned.category_iid[label]),
        annotations=annotations,
        varints=[(_COUNTER_VALUE, *pair) for pair in sample],
        flows=[
            (field, where, extras.value[at].astype(np.uint64))
            for field, key in ((_FLOW_IDS, FLOW_OUT), (_TERMINATING_FLOW_IDS, FLOW_IN))
            for where, at in by_key[key]
        ],
        colours=[(_CORRELATION_ID, where, extras.value[at]) for where, at in by_key[COLOUR]],
    )


def _slots(extras: Extras, mask: Mask, rows: int) -> list[tuple[Mask, I8]]:
    """The chosen extras, spread: first ones of each row, second ones, and so on.

    Each slot says which rows have it and where in ``extras`` it is.
    """
    chosen = np.flatnonzero(mask)
    row = extras.row[chosen]
    first = np.searchsorted(row, row)
    nth = np.arange(len(row)) - first
    slots = []
    for n in range(int(nth.max(initial=-1)) + 1):
        take = nth == n
        where = np.zeros(rows, np.bool_)
        at = np.zeros(rows, np.int64)
        where[row[take]] = True
        at[row[take]] = chosen[take]
        slots.append((where, at))
    return slots


def _tails(
    sequence_id: int,
    type_: I8,
    track: I8,
    name: I8,
    category: I8,
    annotations: list[_Annotation] | None = None,
    varints: list[tuple[int, Mask, I8]] | None = None,
    flows: list[tuple[int, Mask, U8]] | None = None,
    colours: list[tuple[int, Mask, I8]] | None = None,
) -> Tails:
    """Everything of a packet behind its time, in the order of the fields' numbers."""
    annotations, varints = annotations or [], varints or []
    flows, colours = flows or [], colours or []
    uuid = track + track_uuid(0)
    size = 4 + varint_size(uuid)  # the type with its tag, the tags of name and uuid
    size = size - (name == 0) + (name > 0) * varint_size(name)
    size += (category > 0) * (1 + varint_size(category))
    for note in annotations:
        size += note.where * (2 + note.size)
    for _, where, value in (*varints, *colours):
        size += where * (2 + varint_size(value))
    for _, where, _ids in flows:
        size += where * 10

    rows = Rows(len(track))
    rows.varint(tag(_SEQUENCE_ID, _VARINT))
    rows.varint(sequence_id)
    rows.varint(tag(_TRACK_EVENT, _SIZED))
    rows.varint(size)
    _field(rows, _CATEGORY_IIDS, category, category > 0)
    for note in annotations:
        _annotation(rows, note)
    _field(rows, _TYPE, type_)
    _field(rows, _NAME_IID, name, name > 0)
    _field(rows, _TRACK_UUID, uuid)
    for field, where, value in varints:
        _field(rows, field, value, where)
    for field, where, ids in flows:
        rows.varint(tag(field, _FIXED64), where)
        rows.fixed64(ids, where)
    for field, where, value in colours:
        _field(rows, field, value, where)
    _field(rows, _SEQUENCE_FLAGS, _NEEDS_STATE)
    return rows.pack()


def _field(rows: Rows, field: int, value: Integers | int, where: Mask | bool = True) -> None:
    rows.varint(tag(field, _VARINT), where)
    rows.varint(value, where)


def _annotation(rows: Rows, note: _Annotation) -> None:
    rows.varint(tag(_DEBUG_ANNOTATIONS, _SIZED), note.where)
    rows.varint(note.size, note.where)
    _field(rows, _ANNOTATION_NAME_IID, note.name_iid, note.where)
    _field(rows, _ANNOTATION_INT, note.value, note.where & ~note.is_text)
    _field(rows, _ANNOTATION_TEXT_IID, note.value, note.where & note.is_text)
