from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from megatrace.errors import RingError
from megatrace.ring.drain import CounterReader, HostReader
from megatrace.ring.file import RingFile, RingSpec
from megatrace.ring.host import _BODY, Fact, FactAssembler, HostWriter
from megatrace.schema.layout import COUNT_BITS, stall_counts

MakeRing = Callable[..., RingFile]


def test_a_record_arrives_as_it_was_written(make_ring: MakeRing) -> None:
    ring = make_ring()
    HostWriter(ring).append(3, 10, 20, -1, (1, -2), b"request")
    (record,) = HostReader(ring).drain()
    assert (record["number"], record["event"], record["begin_ns"], record["end_ns"]) == (
        1,
        3,
        10,
        20,
    )
    assert record["step"] == -1
    assert record["values"].tolist() == [1, -2, 0, 0]
    assert record["text"].tobytes()[: record["text_bytes"]] == b"request"


def test_records_added_together_are_those_added_one_by_one(make_ring: MakeRing) -> None:
    ring = make_ring(host_capacity=8)
    records = [(3, n, n + 1, n, (n,), bytes([n])) for n in range(5)]
    writer, reader = HostWriter(ring, first=6), HostReader(ring, first=6)
    writer.append_all(records)
    together = reader.drain()
    for record in records:
        writer.append(*record)
    alone = reader.drain()
    assert together["number"].tolist() == [6, 7, 8, 9, 10]
    for name in ("number", "number_end"):
        alone[name] -= 5
    assert together.tobytes() == alone.tobytes()


def test_text_is_cut_at_its_room(make_ring: MakeRing) -> None:
    ring = make_ring()
    HostWriter(ring).append(3, 0, 0, 0, (), b"x" * 100)
    assert HostReader(ring).drain()["text_bytes"].tolist() == [56]


def test_a_ring_without_room_for_records_is_refused(make_ring: MakeRing) -> None:
    ring = make_ring(host_capacity=0)
    with pytest.raises(RingError, match="no room"):
        HostWriter(ring)
    assert HostReader(ring).drain().size == 0


@pytest.mark.parametrize("first", [1, 2**32 - 7])
def test_records_come_in_order_and_loss_is_exact(make_ring: MakeRing, first: int) -> None:
    ring = make_ring()
    writer, reader = HostWriter(ring, first=first), HostReader(ring, first=first)
    steps: list[int] = []
    for count in (5, 16, 3, 50, 0, 17):
        for _ in range(count):
            writer.append(3, 0, 0, writer.written)
        while (records := reader.drain(7)).size:
            steps += records["step"].tolist()
    assert steps == sorted(set(steps))
    assert (reader.read, reader.lost) == (len(steps), 91 - len(steps))
    assert reader.lost == 50 - 16 + 17 - 16


def test_a_record_being_written_is_not_returned(make_ring: MakeRing) -> None:
    ring = make_ring()
    HostWriter(ring).append(3, 0, 0, 0)
    ring.host["number"][0] = 0
    assert HostReader(ring).drain().size == 0


def test_threads_do_not_overwrite_each_other(make_ring: MakeRing) -> None:
    ring = make_ring(host_capacity=4096)
    writer = HostWriter(ring)

    def work(step: int) -> None:
        for _ in range(500):
            writer.append(3, 0, 0, step)

    threads = [threading.Thread(target=work, args=(step,)) for step in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    steps = HostReader(ring).drain()["step"]
    assert np.bincount(steps).tolist() == [500] * 4


JSON = st.dictionaries(st.text(max_size=8), st.integers() | st.text(max_size=80) | st.booleans())


def test_every_fact_comes_back(make_ring: MakeRing) -> None:
    ring = make_ring(host_capacity=1024)
    writer, reader, facts = HostWriter(ring), HostReader(ring), FactAssembler()

    @given(st.text(max_size=20), JSON)
    def comes_back(name: str, value: dict[str, object]) -> None:
        writer.append(3, 0, 0, 0)
        writer.append_fact(name, value)
        found = []
        while (records := reader.drain(5)).size:
            found += facts.feed(records)
        assert found == [Fact(name, value)]

    comes_back()
    assert facts.broken == 0


def test_a_fact_that_lost_a_piece_is_counted_and_the_next_is_whole(make_ring: MakeRing) -> None:
    ring = make_ring(host_capacity=64)
    writer, reader, facts = HostWriter(ring), HostReader(ring), FactAssembler()
    writer.append_fact("first", {"text": "x" * 500})
    writer.append_fact("second", {})
    records = reader.drain()
    assert facts.feed(np.delete(records, 2)) == [Fact("second", {})]
    assert facts.broken == 1


def test_a_fact_too_long_for_the_ring_is_refused(make_ring: MakeRing) -> None:
    writer = HostWriter(make_ring())
    with pytest.raises(RingError, match="fact big takes 11 of 16"):
        writer.append_fact("big", {"text": "x" * 560})
    assert writer.written == 0


def add(ring: RingFile, layer: int, cause: int, warp: int, cycles: int, count: int) -> None:
    """What a launch does to a sum."""
    total = int(ring.sums[layer, cause, warp]) + (cycles << COUNT_BITS) + count
    ring.sums[layer, cause, warp] = total % 2**64


def test_only_sums_that_moved_are_told(make_ring: MakeRing) -> None:
    ring = make_ring()
    reader = CounterReader(ring)
    assert reader.changed()[0].size == 0
    add(ring, 1, 0, 2, 500, 1)
    add(ring, 1, 3, 2, 7, 2)
    slots, records = reader.changed()
    assert slots.tolist() == [8]
    assert records["cycles"].tolist() == [[500, 0, 0, 7]]
    assert records["count"].tolist() == [[1, 0, 0, 2]]
    assert records["seq"].tolist() == [1]
    assert reader.changed()[0].size == 0


def test_a_reader_counts_on_from_what_another_had(make_ring: MakeRing) -> None:
    ring = make_ring()
    first = CounterReader(ring)
    for _ in range(3):
        add(ring, 1, 3, 2, 2**39, 2**23)
        first.snapshot()
    slots, last = first.changed()
    add(ring, 1, 3, 2, 9, 1)
    add(ring, 0, 0, 1, 4, 1)
    second = CounterReader(ring)
    second.resume(np.append(slots, 10**6).astype(np.uint32), np.append(last, last))
    slots, now = second.changed()
    assert slots.tolist() == [1, 8]
    assert now["cycles"].tolist() == [[4, 0, 0, 0], [0, 0, 0, 3 * 2**39 + 9]]
    assert stall_counts(now).tolist() == [[1, 0, 0, 0], [0, 0, 0, 3 * 2**23 + 1]]


def test_more_stalls_are_counted_than_32_bits_hold(make_ring: MakeRing) -> None:
    ring = make_ring()
    reader = CounterReader(ring)
    for _ in range(300):
        add(ring, 0, 1, 0, 1, 2**24 - 1)
        total = reader.snapshot()
    assert stall_counts(total)[0, 0, 1] == 300 * (2**24 - 1) > 2**32


def test_sums_of_blocks_are_unrolled_past_their_wrap(make_ring: MakeRing) -> None:
    ring = make_ring()
    reader = CounterReader(ring)
    ring.block_sums[3, 2] = (2**40 - 1) << COUNT_BITS | 1
    assert reader.block_cycles()[3, 2] == 2**40 - 1
    ring.block_sums[3, 2] = 4 << COUNT_BITS | 2  # five more
    cycles = reader.block_cycles()
    assert cycles[3, 2] == 2**40 + 4
    assert cycles.sum() == cycles[3, 2]


@given(st.lists(st.tuples(st.integers(0, 2**40 - 1), st.integers(0, 2**24 - 1)), max_size=8))
def test_sums_are_unrolled_past_their_wrap(stalls: list[tuple[int, int]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        spec = RingSpec(0, 1, 2, 0, 1, 0, 0, 1)
        with RingFile.create(Path(folder) / "rank0.ring", spec) as ring:
            reader = CounterReader(ring)
            for cycles, count in stalls:
                add(ring, 0, 1, 1, cycles, count)
                reader.changed()
            total = reader.snapshot()
            assert total["cycles"][0, 1, 1] == sum(cycles for cycles, _ in stalls)
            assert total["count"][0, 1, 1] == sum(count for _, count in stalls) % 2**32
            assert not total["cycles"][0, 0].any()


class Raced(HostReader):
    """Loses a race: the writer stores between the check and the copy."""

    store: Callable[[], None] | None = None

    def _whole(self, *args: Any) -> Any:
        whole = super()._whole(*args)
        if self.store is not None:
            self.store()
            self.store = None
        return whole


def test_a_record_overwritten_while_it_is_copied_is_lost(make_ring: MakeRing) -> None:
    ring = make_ring()
    writer, reader = HostWriter(ring), Raced(ring)
    for step in range(16):
        writer.append(3, 0, 0, step)
    reader.store = lambda: writer.append(3, 0, 0, 16)
    assert reader.drain()["step"].tolist() == list(range(1, 16))
    assert (reader.read, reader.lost) == (15, 1)
    assert reader.drain()["step"].tolist() == [16]


def test_a_record_is_nobodys_while_it_is_written(
    make_ring: MakeRing, monkeypatch: pytest.MonkeyPatch
) -> None:
    ring = make_ring(host_capacity=1)
    writer = HostWriter(ring)
    writer.append(3, 0, 0, 1)
    seen: list[int] = []

    class Watched:
        @staticmethod
        def pack_into(*args: Any) -> None:
            for moment in (False, True):
                if moment:
                    _BODY.pack_into(*args)
                seen.extend(int(HostReader(ring, first=n).drain().size) for n in (1, 2))

    monkeypatch.setattr("megatrace.ring.host._BODY", Watched)
    writer.append(3, 0, 0, 2)
    # Record 1 is whole until the first store; from then on neither is.
    assert seen == [1, 0, 0, 0]
    assert HostReader(ring, first=2).drain()["step"].tolist() == [2]
