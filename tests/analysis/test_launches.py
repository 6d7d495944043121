"""Which lines belong to which launch, and what is proven of it."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.analysis.decoded import decode_lines, expected, lines_of
from tests.analysis.launch_strategy import launches
from tests.build import GHZ, MS, Build, Launch, Rec, point


def long_launch(number: int, at: int, *, closed: bool = True, points: int = 100) -> Launch:
    body: list[Rec] = [point("depth", 100 + 10 * i, i) for i in range(points)]
    return Launch(number, at, at + 2000 if closed else None, records=body)


def test_lines_after_a_gap_stay_in_a_launch_whose_closing_points_back_to_it() -> None:
    build = Build(straddle=True)
    build.add(0, long_launch(1, MS))
    build.lose(0, 3)
    found = decode_lines(*build.arrays())
    assert found.scan.launches.complete.tolist() == [True]
    assert found.scan.launches.lost_lines.tolist() == [1]
    assert len(found.records) > 80
    assert found.scan.loss.words_orphaned.sum() == 0


def test_lines_after_a_gap_are_orphans_where_no_closing_proves_their_launch() -> None:
    build = Build(straddle=True)
    build.add(0, long_launch(1, MS, closed=False))
    build.lose(0, 3)
    found = decode_lines(*build.arrays())
    assert max(t for _, _, t, _, _ in found.records) < 100 + 10 * 30
    assert found.scan.loss.words_orphaned.sum() == 9 + 200 - 90


def test_the_very_next_launch_of_the_warp_proves_that_nothing_was_between() -> None:
    build = Build(straddle=True)
    build.add(0, long_launch(1, MS))
    build.add(0, long_launch(2, 2 * MS))
    build.lose(0, 3, 8)  # 8: the closing of the first
    found = decode_lines(*build.arrays())
    assert found.scan.launches.complete.tolist() == [False, True]
    assert found.scan.loss.words_orphaned.sum() == 0
    assert found.uncertain == {1}


def test_a_lost_header_leaves_its_records_orphans() -> None:
    build = Build(straddle=True)
    for number in (1, 5, 9):
        build.add(0, long_launch(number, number * MS))
    build.lose(0, 8, 9)  # the closing of launch 1 and the header of launch 5
    found = decode_lines(*build.arrays())
    assert {launch for launch, *_ in found.records} == {1, 9}
    assert found.scan.loss.words_orphaned.sum() == 9 + 200 + 3 - 30
    # One line of launch 5, and what launch 1 had on its last line.
    assert found.scan.loss.words_lost.sum() == 30 + (9 + 200 + 3) % 30


def test_a_closing_of_another_launch_is_not_taken_for_ones_own() -> None:
    build = Build(straddle=True)
    build.add(0, long_launch(1, MS))
    build.add(0, long_launch(7, 3 * MS))
    build.lose(0, 8, 9)
    found = decode_lines(*build.arrays())
    assert found.scan.launches.complete.tolist() == [False]
    assert {launch for launch, *_ in found.records} == {1}


def test_lines_may_come_in_any_order_and_more_than_once() -> None:
    made = [long_launch(1, MS), long_launch(2, 2 * MS)]
    ring, lines = lines_of(*made)
    shuffled = np.random.default_rng(1).permutation(np.tile(np.arange(len(lines)), 2))
    found = decode_lines(ring[shuffled], lines[shuffled])
    assert found.records == [record for launch in made for record in expected(launch)]
    assert found.scan.loss.lines_seen.sum() == len(lines)
    assert found.scan.loss.lines_repeated.sum() == len(lines)


def test_a_half_line_keeps_an_older_laps_words_out() -> None:
    launch = Launch(1, MS, MS + 1000, records=[point("depth", 50, 3)])
    _, lines = lines_of(launch)
    lines[0, 0] = 1025  # second lap of a ring of 1024 lines
    lines[0, 16] = 1
    lines[0, 17:] = 27 << 23 | 99
    found = decode_lines(np.zeros(1, np.uint32), lines)
    assert found.records == expected(launch)
    assert found.scan.loss.lines_torn.sum() == 0


def test_a_torn_line_is_counted_and_never_decoded() -> None:
    ring, lines = lines_of(long_launch(1, MS))
    lines[2, 16] += 7  # neither this line's number nor that of an older lap
    found = decode_lines(ring, lines)
    assert found.scan.loss.lines_torn.tolist() == [1]
    assert found.scan.loss.lines_missing.tolist() == [1]


def test_a_gap_as_wide_as_all_line_numbers_is_counted() -> None:
    ring, lines = lines_of(long_launch(1, MS))
    lines[2:, 0] |= 1 << 31
    lines[2:-1, 16] |= 1 << 31  # the last line is a half
    found = decode_lines(ring, lines)
    assert found.scan.loss.lines_missing.tolist() == [1 << 31]
    assert found.scan.launches.lost_lines.tolist() == [1 << 31]


def test_a_closing_may_lie_across_two_lines() -> None:
    for points in range(1, 40):
        made = long_launch(1, MS, points=points)
        build = Build(straddle=True)
        build.add(0, made)
        found = decode_lines(*build.arrays())
        assert found.scan.launches.complete.tolist() == [True]
        ran = found.scan.launches.end_clock - found.scan.launches.clock
        assert ran.tolist() == [2000 * GHZ]


def test_an_empty_capture_has_no_launches() -> None:
    found = decode_lines(np.zeros(0, np.uint32), np.zeros((0, 32), np.uint32))
    assert len(found.scan.launches) == 0
    assert found.records == []


@settings(max_examples=80)
@given(launches(long=False, most=8), st.data())
def test_with_lines_lost_nothing_false_is_said_and_every_word_is_accounted_for(
    made: list[Launch], data: st.DataObject
) -> None:
    build = Build(straddle=data.draw(st.booleans()))
    for launch in made:
        build.add(0, launch)
    _, lines = build.arrays()
    count = len(lines)
    lost = data.draw(st.sets(st.integers(1, count), max_size=count))
    written = int(np.count_nonzero(lines[:, 1:16]) + np.count_nonzero(lines[:, 17:]))
    build.lose(0, *lost)
    found = decode_lines(*build.arrays())
    truth = {record for launch in made for record in expected(launch)}
    certain = [record for record in found.records if record[0] not in found.uncertain]
    assert set(certain) <= truth
    assert len(found.records) <= len(truth) or found.uncertain
    loss = found.scan.loss
    seen, gone = int(loss.words_seen.sum()), int(loss.words_lost.sum())
    tail = int(loss.words_unknown_max.sum())
    assert loss.lines_missing.sum() == len([n for n in lost if n < count - _tail(lost, count)])
    after = sum(_words(lines[n - 1]) for n in lost if n > count - _tail(lost, count))
    assert seen + gone <= written - after <= seen + gone + tail


def _tail(lost: set[int], count: int) -> int:
    """Lost lines at the very end: nothing after them says that they were there."""
    tail = 0
    while count - tail in lost:
        tail += 1
    return tail


def _words(line: np.ndarray) -> int:
    return int(np.count_nonzero(line[1:16]) + np.count_nonzero(line[17:]))
