"""Lines that the device keeps, and the agent brings home."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from megatrace.agent.copies import LineCopies
from megatrace.ring.drain import LineReader
from megatrace.ring.file import RingFile, RingSpec
from megatrace.schema.layout import LEVEL_COUNTERS, LEVEL_TIMELINE
from tests.ring.lines import LineWriter, assert_intact, payload

CAPACITY = 32


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[[str], RingFile]]:
    """Makes rings: one stands for the device's memory, which nobody but the copy reads."""
    with ExitStack() as stack:
        yield lambda name: stack.enter_context(
            RingFile.create(
                tmp_path / name,
                RingSpec(
                    rank=0,
                    blocks=2,
                    warps=3,
                    lines=CAPACITY,
                    layers=1,
                    host_capacity=0,
                    device=1,
                    table_hash=1,
                ),
            )
        )


def copy(copies: LineCopies, device: RingFile, *, stopped: bool = False) -> int:
    copies.staging[:] = device.lines.reshape(copies.staging.shape)
    return copies.bring_home(stopped=stopped)


def test_a_line_counts_once_three_copies_agree_on_it(make: Callable[[str], RingFile]) -> None:
    device, home = make("device"), make("home")
    copies, reader, writer = LineCopies(home), LineReader(home), LineWriter(device)
    line = payload(4, 1)
    writer.store(4, 1, line, 0)
    assert copy(copies, device) == 0
    writer.store(4, 1, line, 1)
    assert copy(copies, device) == 0, "since the last copy it has changed"
    assert copy(copies, device) == 0, "this one is taken, if the next finds the same"
    assert len(reader.drain().lines) == 0
    assert copy(copies, device) == 1
    (drained,) = reader.drain().lines
    assert_intact(4, drained)
    assert copy(copies, device) == 0


def test_a_line_that_a_copy_met_half_overwritten_is_not_handed_on(
    make: Callable[[str], RingFile],
) -> None:
    device, home = make("device"), make("home")
    copies, reader = LineCopies(home), LineReader(home)
    place, later = device.lines[0, 0], payload(0, 1 + CAPACITY)
    place[:] = payload(0, 1)
    copy(copies, device)
    place[8:16], place[24:] = later[8:16], later[24:]  # its numbers are of the old lap still
    copy(copies, device)
    place[:] = later
    for _ in range(3):
        copy(copies, device)
    (drained,) = reader.drain(final=True).lines
    assert_intact(0, drained)
    assert int(drained[0]) == 1 + CAPACITY
    assert reader.stats.lost == CAPACITY


def test_the_last_copy_takes_what_is_there(make: Callable[[str], RingFile]) -> None:
    device, home = make("device"), make("home")
    copies, reader, writer = LineCopies(home), LineReader(home), LineWriter(device)
    writer.write(0, 3)
    writer.write_half(1)
    assert copy(copies, device, stopped=True) == 4
    assert len(reader.drain(final=True).lines) == 4


def test_lines_on_their_way_home_are_whole_or_counted_as_lost(
    make: Callable[[str], RingFile],
) -> None:
    device, home = make("device"), make("home")
    copies, writer = LineCopies(home), LineWriter(device)
    randomly = random.Random(5)

    def run() -> None:
        for _ in range(400):
            for ring in range(device.rings):
                writer.write(ring, randomly.randrange(CAPACITY))
            for _ in range(3):
                copy(copies, device)

    thread = threading.Thread(target=run)
    reader = LineReader(home)
    thread.start()
    while thread.is_alive():
        drained = reader.drain()
        for ring, line in zip(drained.ring, drained.lines, strict=True):
            assert_intact(int(ring), line)
    thread.join()
    while len(reader.drain(final=True).lines):
        pass
    written = sum(number - 1 for number in writer.next)
    assert reader.stats.read + reader.stats.lost == written
    assert reader.stats.read > written / 4


def test_copies_are_frequent_only_while_a_timeline_is_wanted(
    make: Callable[[str], RingFile],
) -> None:
    copies = LineCopies(make("home"))
    assert not copies.due(), "nobody records"
    copies.expect(LEVEL_COUNTERS)
    assert copies.due(), "a launch may hang"
    assert not copies.due()
    copies.expect(LEVEL_TIMELINE)
    assert copies.due()
    assert copies.due()


def test_what_a_copy_has_found_is_followed_at_once(make: Callable[[str], RingFile]) -> None:
    device = make("device")
    copies = LineCopies(make("home"))
    copies.expect(LEVEL_COUNTERS)
    assert copies.due()
    LineWriter(device).write(0)  # a warp that hangs says so
    copy(copies, device)
    assert copies.due()
    assert not copy(copies, device)
    assert copies.due()
    assert copy(copies, device) == 1
