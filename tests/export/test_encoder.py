"""The encoder against the official builder and the protobuf library."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb

from megatrace.export.encoder import encode_sequence
from megatrace.export.slices import (
    FLOW_OUT,
    SAMPLE,
    SEQUENCE_SLICES,
    Extras,
    Slices,
    in_order,
    sequences,
)
from megatrace.export.tracks import Track, Tracks, spread
from megatrace.export.wire import MAX_DELTA, Rows, join_packets, varint_size
from tests.export import official
from tests.export.pictures import NAMES, extras, intervals, slices_of

EPOCH_NS = 1_700_000_000_000_000_000


def assert_equal_to_official(slices: Slices, sequence_id: int = 7) -> None:
    encoded = b"".join(encode_sequence(sequence_id, slices, NAMES))
    # Not only the same messages: the very bytes the protobuf library would write.
    assert pb.Trace.FromString(encoded).SerializeToString() == encoded
    ours = official.spelled_out(encoded)
    theirs = official.packets(sequence_id, slices, NAMES)
    assert [p.SerializeToString() for p in ours] == [p.SerializeToString() for p in theirs]


@given(st.data(), intervals(), st.integers(1, 1 << 20))
def test_packets_equal_those_of_the_official_builder(
    data: st.DataObject, rows: list[tuple[int, int, int]], sequence_id: int
) -> None:
    if not rows:
        return
    labels = data.draw(st.lists(st.integers(0, 4), min_size=len(rows), max_size=len(rows)))
    some = data.draw(extras(len(rows)))
    # A sample has no duration and no name.
    samples = set(some.row[some.key == SAMPLE].tolist())
    rows = [(t, b, 0 if i in samples else d) for i, (t, b, d) in enumerate(rows)]
    slices = slices_of(rows, labels, some)
    tracks = Tracks()
    for _ in range(3):
        tracks.add(Track("t"))
    nested, _ = spread(slices, tracks)
    shift = replace(nested, begin_ns=nested.begin_ns + EPOCH_NS)
    assert_equal_to_official(shift, sequence_id)


def test_a_gap_longer_than_a_delta_gets_a_new_clock_snapshot() -> None:
    gaps = [0, MAX_DELTA + 1, 2 * MAX_DELTA + 3, 2 * MAX_DELTA + 4, 10**14]
    slices = slices_of([(0, gap, 1 if gap < 10**13 else 10**15) for gap in gaps])
    encoded = b"".join(encode_sequence(1, slices, NAMES))
    snapshots = [p for p in pb.Trace.FromString(encoded).packet if p.HasField("clock_snapshot")]
    assert len(snapshots) == 4
    assert_equal_to_official(slices)


def test_a_packet_of_many_arrows_keeps_its_size_field_right() -> None:
    many = 40
    out = Extras(
        np.zeros(many, np.int64), np.full(many, FLOW_OUT, np.int32), np.arange(1, many + 1)
    )
    assert_equal_to_official(slices_of([(0, 5, 3), (1, 5, 3)], extras=out))


def test_sequences_hold_all_slices_and_split_no_track() -> None:
    rng = np.random.default_rng(3)
    track = np.sort(rng.integers(0, 300, 3 * SEQUENCE_SLICES))
    slices = slices_of([(int(t), i, 0) for i, t in enumerate(track)])
    parts = list(sequences(slices))
    assert len(parts) > 1
    assert np.array_equal(np.concatenate([part.begin_ns for part in parts]), slices.begin_ns)
    seen = [set(part.track.tolist()) for part in parts]
    assert sum(map(len, seen)) == len(set.union(*seen))


@given(intervals())
def test_putting_slices_in_order_keeps_each_with_its_extras(
    rows: list[tuple[int, int, int]],
) -> None:
    slices = slices_of(rows)
    marked = replace(
        slices,
        extras=Extras(
            np.arange(len(rows)), np.full(len(rows), FLOW_OUT, np.int32), slices.begin_ns.copy()
        ),
    )
    ordered = in_order(marked)
    keys = list(zip(ordered.track, ordered.begin_ns, -ordered.dur_ns, strict=True))
    assert keys == sorted(keys)
    assert np.array_equal(ordered.begin_ns[ordered.extras.row], ordered.extras.value)


@given(st.lists(st.integers(0, 2**63 - 1)))
def test_the_size_of_a_varint_is_what_protobuf_writes(values: list[int]) -> None:
    sizes = varint_size(np.array(values, np.int64)).tolist()
    assert sizes == [
        len(pb.TracePacket(timestamp=value).SerializeToString()) - 1 for value in values
    ]


@given(
    st.lists(st.tuples(st.integers(0, MAX_DELTA), st.binary(min_size=10, max_size=300)), min_size=1)
)
def test_stores_that_spill_leave_no_trace(packets: list[tuple[int, bytes]]) -> None:
    longest = max(len(tail) for _, tail in packets)
    rows = Rows(len(packets))
    for at in range(longest):
        has = np.array([len(tail) > at for _, tail in packets])
        # One byte below 128 is a varint of itself.
        rows.varint(
            np.array([tail[at] & 0x7F if len(tail) > at else 0 for _, tail in packets]), has
        )
    deltas = np.array([delta for delta, _ in packets])
    joined = join_packets(deltas, rows.pack(), np.arange(len(packets))).tobytes()
    assert joined == b"".join(_packet(delta, tail) for delta, tail in packets)


def _packet(delta: int, tail: bytes) -> bytes:
    body = b"\x40" + _varint(delta) + bytes(byte & 0x7F for byte in tail)
    return b"\x0a" + _varint(len(body)) + body


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])
