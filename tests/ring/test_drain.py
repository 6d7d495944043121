from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from megatrace.errors import UsageError
from megatrace.ring.drain import Drained, LineReader
from megatrace.ring.file import RingFile
from megatrace.schema.layout import HALF_WORDS
from tests.ring.lines import LineWriter, assert_intact, half_payload, payload

MakeRing = Callable[..., RingFile]
NEVER_NS = 1 << 62


def numbers(drained: Drained, ring: int = 0) -> list[int]:
    return [int(n) for n in drained.lines[drained.ring == ring, 0]]


def check(drained: Drained) -> None:
    for ring, line in zip(drained.ring.tolist(), drained.lines, strict=True):
        assert_intact(ring, line)


def test_an_empty_ring_gives_no_lines(make_ring: MakeRing) -> None:
    drained = LineReader(make_ring()).drain()
    assert len(drained) == 0
    assert drained.lines.shape == (0, 32)


def test_new_lines_come_once_in_order_and_whole(make_ring: MakeRing) -> None:
    ring = make_ring()
    writer, reader = LineWriter(ring), LineReader(ring)
    writer.write(0, 3)
    writer.write(5, 2)
    first = reader.drain()
    writer.write(0, 2)
    second = reader.drain()
    check(first)
    check(second)
    assert (numbers(first), numbers(first, 5), numbers(second)) == ([1, 2, 3], [1, 2], [4, 5])
    assert reader.stats.read == 7
    assert reader.stats.lost == 0


def test_a_limit_is_kept_and_the_rest_comes_next(make_ring: MakeRing) -> None:
    ring = make_ring()
    writer, reader = LineWriter(ring), LineReader(ring)
    for warp in range(6):
        writer.write(warp, 7)
    sizes = [len(reader.drain(max_lines=10)) for _ in range(6)]
    assert sizes == [10, 10, 10, 10, 2, 0]


def test_no_ring_starves_behind_a_busy_one(make_ring: MakeRing) -> None:
    ring = make_ring()
    writer, reader = LineWriter(ring), LineReader(ring)
    seen: set[int] = set()
    for _ in range(20):
        for warp in range(6):
            writer.write(warp, 2)
        seen |= set(reader.drain(max_lines=2).ring.tolist())
    assert seen == set(range(6))


@pytest.mark.parametrize("words", range(1, 16))
def test_a_half_line_comes_at_once_with_its_second_half_zero(
    make_ring: MakeRing, words: int
) -> None:
    ring = make_ring()
    writer, reader = LineWriter(ring, first=9), LineReader(ring, first=9, patience_ns=NEVER_NS)
    writer.fill_lap_before()
    number = writer.write_half(0, words)
    drained = reader.drain()
    assert numbers(drained) == [number]
    assert np.array_equal(drained.lines[0], half_payload(0, number, words))


def test_a_full_first_half_waits_for_its_second(make_ring: MakeRing) -> None:
    ring = make_ring()
    writer, reader = LineWriter(ring), LineReader(ring, patience_ns=NEVER_NS)
    line = payload(0, 1)
    writer.store(0, 1, line, 0)
    assert len(reader.drain()) == 0
    writer.store(0, 1, line, 1)
    drained = reader.drain()
    assert np.array_equal(drained.lines[0], line)


def test_a_full_first_half_comes_alone_when_patience_ends(make_ring: MakeRing) -> None:
    ring = make_ring()
    writer, reader = LineWriter(ring), LineReader(ring, patience_ns=0)
    writer.store(0, 1, payload(0, 1), 0)
    drained = reader.drain()
    assert numbers(drained) == [1]
    assert not drained.lines[0, HALF_WORDS:].any()


def test_a_second_half_alone_is_never_returned(make_ring: MakeRing) -> None:
    ring = make_ring()
    writer, reader = LineWriter(ring), LineReader(ring, patience_ns=0)
    writer.store(0, 1, payload(0, 1), 1)
    assert len(reader.drain()) == 0
    assert len(reader.drain(final=True)) == 0


def test_lines_that_arrive_out_of_order_are_put_in_order(make_ring: MakeRing) -> None:
    ring = make_ring()
    writer, reader = LineWriter(ring), LineReader(ring, patience_ns=NEVER_NS)
    for number in (2, 3):
        for half in (1, 0):
            writer.store(0, number, payload(0, number), half)
    assert len(reader.drain()) == 0
    for half in (0, 1):
        writer.store(0, 1, payload(0, 1), half)
    assert numbers(reader.drain()) == [1, 2, 3]
    assert reader.stats.late == 0


def test_a_line_that_is_very_late_is_passed_then_taken_and_counted(make_ring: MakeRing) -> None:
    ring = make_ring()
    writer, reader = LineWriter(ring), LineReader(ring, patience_ns=0)
    writer.next[0] = 2
    writer.write(0, 2)
    assert numbers(reader.drain()) == [2, 3]
    assert reader.stats.lost == 0
    for half in (0, 1):
        writer.store(0, 1, payload(0, 1), half)
    assert numbers(reader.drain()) == [1]
    assert (reader.stats.read, reader.stats.lost, reader.stats.late) == (3, 0, 1)


def test_a_line_that_never_comes_is_lost_when_its_place_is_taken(make_ring: MakeRing) -> None:
    ring = make_ring()
    writer, reader = LineWriter(ring), LineReader(ring, patience_ns=0)
    writer.next[0] = 2
    writer.write(0, 5)
    reader.drain()
    writer.write(0, 5)
    taken = numbers(reader.drain())
    assert taken == [7, 8, 9, 10, 11]
    reader.drain()
    assert (reader.stats.read, reader.stats.lost) == (10, 1)


def test_a_line_that_never_comes_is_lost_at_the_end(make_ring: MakeRing) -> None:
    ring = make_ring()
    writer, reader = LineWriter(ring), LineReader(ring, patience_ns=NEVER_NS)
    writer.write(0, 1)
    writer.next[0] = 4
    writer.write(0, 2)
    assert numbers(reader.drain()) == [1]
    assert numbers(reader.drain(final=True)) == [4, 5]
    assert reader.lost_per_ring.tolist() == [2, 0, 0, 0, 0, 0]


@pytest.mark.parametrize("laps", [1, 2, 5])
@pytest.mark.parametrize("extra", [0, 1, 3, 7])
def test_a_lapped_reader_gets_all_that_is_left_and_counts_the_rest(
    make_ring: MakeRing, laps: int, extra: int
) -> None:
    ring = make_ring()
    writer, reader = LineWriter(ring), LineReader(ring)
    written = 8 * laps + extra
    writer.write(0, written)
    drained = reader.drain()
    check(drained)
    assert numbers(drained) == list(range(written - 7, written + 1))
    assert reader.lost_per_ring[0] == written - 8


def test_a_line_half_overwritten_by_the_next_lap_is_lost_and_torn(make_ring: MakeRing) -> None:
    ring = make_ring()
    writer, reader = LineWriter(ring), LineReader(ring)
    writer.write(0, 8)
    writer.store(0, 9, payload(0, 9), 1)
    assert numbers(reader.drain()) == [2, 3, 4, 5, 6, 7, 8]
    assert (reader.stats.lost, reader.stats.torn) == (1, 1)


def test_a_half_line_survives_the_second_half_of_the_next_lap(make_ring: MakeRing) -> None:
    ring = make_ring()
    writer, reader = LineWriter(ring), LineReader(ring)
    writer.write_half(0, 6)
    writer.store(0, 9, payload(0, 9), 1)
    drained = reader.drain()
    assert np.array_equal(drained.lines[0], half_payload(0, 1, 6))


def test_numbers_go_on_across_the_wrap_of_32_bits(make_ring: MakeRing) -> None:
    ring = make_ring()
    first = 2**32 - 5
    writer, reader = LineWriter(ring, first), LineReader(ring, first=first)
    writer.fill_lap_before()
    taken = []
    for count in (3, 4, 5):
        writer.write(0, count)
        drained = reader.drain()
        check(drained)
        taken += numbers(drained)
    assert taken == [(first + i) % 2**32 for i in range(12)]
    assert reader.stats.lost == 0


def test_a_lap_across_the_wrap_is_counted(make_ring: MakeRing) -> None:
    ring = make_ring()
    first = 2**32 - 5
    writer, reader = LineWriter(ring, first), LineReader(ring, first=first)
    writer.fill_lap_before()
    writer.write(0, 21)
    assert len(reader.drain()) == 8
    assert reader.lost_per_ring[0] == 13


def test_what_is_handed_on_is_the_callers_own(make_ring: MakeRing) -> None:
    ring = make_ring()
    writer, reader = LineWriter(ring), LineReader(ring)
    writer.write(0, 2)
    first = reader.drain()
    kept = first.lines.copy()
    writer.write(0, 16)
    reader.drain()
    assert np.array_equal(first.lines, kept)


def test_two_readers_of_one_ring_do_not_disturb_each_other(make_ring: MakeRing) -> None:
    ring = make_ring()
    writer = LineWriter(ring)
    with RingFile.attach(ring.path) as other:
        readers = [LineReader(ring), LineReader(other)]
        writer.write(3, 6)
        assert [numbers(reader.drain(), 3) for reader in readers] == [[1, 2, 3, 4, 5, 6]] * 2


def test_a_ring_of_one_line_is_refused(make_ring: MakeRing) -> None:
    with pytest.raises(UsageError, match="one line a warp"):
        make_ring(lines=1)


def test_a_file_without_line_rings_gives_none(make_ring: MakeRing) -> None:
    ring = make_ring(blocks=0, warps=0, lines=0, layers=0)
    assert len(LineReader(ring).drain(final=True)) == 0


def test_the_end_of_a_damaged_ring_is_reached(make_ring: MakeRing) -> None:
    ring = make_ring(lines=4)
    rng = np.random.default_rng(1)
    for _ in range(50):
        ring.lines[:] = rng.integers(0, 2**32, ring.lines.shape, np.uint32)
        places = np.arange(4, dtype=np.uint32)
        ring.lines[:, :, 0] = ring.lines[:, :, 0] // 4 * 4 + 1 + places
        ring.lines[:, :, HALF_WORDS] = ring.lines[:, :, 0]
        reader = LineReader(ring)
        assert len(reader.drain(max_lines=1000, final=True)) < 1000


def test_a_number_that_cannot_be_in_its_place_is_no_line(make_ring: MakeRing) -> None:
    ring = make_ring()
    reader = LineReader(ring, patience_ns=0)
    ring.lines[0, 0, [0, HALF_WORDS]] = 4
    assert len(reader.drain()) == 0
    assert (reader.stats.lost, reader.stats.torn) == (0, 0)


def test_a_reader_lapped_again_at_once_starts_ahead_of_the_writer(make_ring: MakeRing) -> None:
    ring = make_ring()
    writer, reader = LineWriter(ring), LineReader(ring)
    writer.write(0, 12)
    assert numbers(reader.drain()) == list(range(5, 13))
    writer.write(0, 12)
    assert numbers(reader.drain()) == list(range(19, 25))
    assert reader.lost_per_ring[0] == 24 - 8 - 6


class Raced(LineReader):
    """Loses a race: the writer stores between the first check and the copy."""

    def race(self, store: Callable[[], None]) -> Drained:
        self._store = store
        return self.drain()

    def _copy(self, *args: Any) -> Any:
        self._store()
        return super()._copy(*args)


@pytest.mark.parametrize("halves", [(0,), (1,), (0, 1)])
def test_a_line_overwritten_while_it_is_copied_is_lost_and_torn(
    make_ring: MakeRing, halves: tuple[int, ...]
) -> None:
    ring = make_ring()
    writer, reader = LineWriter(ring), Raced(ring)
    writer.write(0, 8)

    def overwrite() -> None:
        for half in halves:
            writer.store(0, 11, payload(0, 11), half)

    drained = reader.race(overwrite)
    check(drained)
    assert numbers(drained) == [1, 2, 4, 5, 6, 7, 8]
    assert (reader.stats.read, reader.stats.lost, reader.stats.torn) == (7, 1, 1)


def test_a_half_line_overwritten_while_it_is_copied_is_lost_and_torn(make_ring: MakeRing) -> None:
    ring = make_ring()
    writer, reader = LineWriter(ring), Raced(ring)
    writer.write_half(0, 5)
    drained = reader.race(lambda: writer.store(0, 9, payload(0, 9), 0))
    assert len(drained) == 0
    assert (reader.stats.lost, reader.stats.torn) == (1, 1)
