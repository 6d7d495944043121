"""The same slices by the official builder: what our encoder is held to."""

from __future__ import annotations

from typing import Any

from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb
from perfetto.trace_builder.proto_builder import TraceProtoBuilder

from megatrace.export.encoder import track_uuid
from megatrace.export.slices import COLOUR, FIRST_ARG, FLOW_IN, FLOW_OUT, SAMPLE, Names, Slices


def packets(sequence_id: int, slices: Slices, names: Names) -> list[Any]:
    """Packets of ``slices`` in order of time, absolute times, names in full."""
    builder = TraceProtoBuilder()
    for time, row, type_ in _events(slices):
        packet = builder.add_packet()
        packet.timestamp = time
        packet.trusted_packet_sequence_id = sequence_id
        packet.track_event.track_uuid = track_uuid(int(slices.track[row]))
        packet.track_event.type = type_
        _fill(packet.track_event, slices, names, row, type_)
    return list(pb.Trace.FromString(builder.serialize()).packet)


def _events(slices: Slices) -> list[tuple[int, int, int]]:
    """(time, row, type): ends before what begins at the same time, else by row."""
    event = pb.TrackEvent
    samples = set(slices.extras.row[slices.extras.key == SAMPLE].tolist())
    ends, begins = [], []
    for row in range(len(slices)):
        begin, dur = int(slices.begin_ns[row]), int(slices.dur_ns[row])
        if dur:
            ends.append((begin + dur, row, event.TYPE_SLICE_END))
            begins.append((begin, row, event.TYPE_SLICE_BEGIN))
        else:
            kind = event.TYPE_COUNTER if row in samples else event.TYPE_INSTANT
            begins.append((begin, row, kind))
    return sorted([*ends, *begins], key=lambda one: one[0])


def _fill(event: Any, slices: Slices, names: Names, row: int, type_: int) -> None:
    extras = slices.extras
    mine = [
        (int(key), int(value))
        for of, key, value in zip(extras.row, extras.key, extras.value, strict=True)
        if of == row
    ]
    lasting = slices.dur_ns[row] > 0
    if type_ == pb.TrackEvent.TYPE_SLICE_END:
        event.terminating_flow_ids.extend(v for k, v in mine if k == FLOW_IN)
        return
    if type_ != pb.TrackEvent.TYPE_COUNTER:
        name, category = names.labels[slices.label[row]]
        if name:
            event.name = name
        if category:
            event.categories.append(category)
    for key, value in mine:
        if key == FLOW_OUT:
            event.flow_ids.append(value)
        elif key == FLOW_IN and not lasting:
            event.terminating_flow_ids.append(value)
        elif key == COLOUR:
            event.correlation_id = value
        elif key == SAMPLE:
            event.counter_value = value
        elif key >= FIRST_ARG:
            note = event.debug_annotations.add(name=names.args[key - FIRST_ARG])
            if key - FIRST_ARG in names.text_args:
                note.string_value = names.texts[value]
            else:
                note.int_value = value


def spelled_out(encoded: bytes) -> list[Any]:
    """Our packets as the official builder writes them: absolute times, names in full."""
    time = 0
    tables: dict[str, dict[int, str]] = {}
    found = []
    for packet in pb.Trace.FromString(encoded).packet:
        if packet.HasField("clock_snapshot"):
            ours, boot = packet.clock_snapshot.clocks
            assert ours.is_incremental
            assert ours.timestamp == boot.timestamp
            time = ours.timestamp
        elif packet.HasField("trace_packet_defaults"):
            assert packet.sequence_flags == pb.TracePacket.SEQ_INCREMENTAL_STATE_CLEARED
            assert packet.trace_packet_defaults.timestamp_clock_id == 64
            tables = _tables(packet.interned_data)
        else:
            time += packet.timestamp
            packet.timestamp = time
            assert packet.sequence_flags == pb.TracePacket.SEQ_NEEDS_INCREMENTAL_STATE
            packet.ClearField("sequence_flags")
            _resolve(packet.track_event, tables)
            found.append(packet)
    return found


def _tables(data: Any) -> dict[str, dict[int, str]]:
    return {
        "name": {one.iid: one.name for one in data.event_names},
        "category": {one.iid: one.name for one in data.event_categories},
        "arg": {one.iid: one.name for one in data.debug_annotation_names},
        "text": {one.iid: one.str.decode() for one in data.debug_annotation_string_values},
    }


def _resolve(event: Any, tables: dict[str, dict[int, str]]) -> None:
    if event.HasField("name_iid"):
        event.name = tables["name"][event.name_iid]
    event.categories.extend(tables["category"][iid] for iid in event.category_iids)
    event.ClearField("category_iids")
    for note in event.debug_annotations:
        note.name = tables["arg"][note.name_iid]
        if note.HasField("string_value_iid"):
            note.string_value = tables["text"][note.string_value_iid]
