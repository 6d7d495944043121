"""Lines to records: times, arguments, and what makes no record."""

from __future__ import annotations

import os
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megatrace.schema.layout import arg_word, record_word
from tests.analysis.decoded import decode_lines, expected, lines_of, one_launch
from tests.analysis.launch_strategy import launches
from tests.build import IDS, MS, Build, Launch, Rec, Warp, hang, point, span, stall

FUZZ_SECONDS = float(os.environ.get("MEGATRACE_FUZZ_SECONDS", "2"))


@settings(max_examples=60)
@given(launches(), st.booleans(), st.booleans())
def test_every_record_comes_back_with_its_time_and_arguments(
    made: list[Launch], straddle: bool, slow: bool
) -> None:
    build = Build(straddle=straddle, slow=slow)
    for launch in made:
        build.add(0, launch)
    found = decode_lines(*build.arrays())
    assert found.records == [record for launch in made for record in expected(launch)]
    assert found.malformed.total == 0
    assert not found.uncertain
    assert found.scan.launches.complete.all()


@settings(max_examples=30)
@given(launches())
def test_spans_come_back_whole(made: list[Launch]) -> None:
    found = decode_lines(*lines_of(*made))
    codes = {IDS["tile"].id, IDS["phase"].id}
    begins = sorted((n, code, t) for n, code, t, _, _ in found.records if code in codes)
    ends = sorted((n, code - 1, t) for n, code, t, _, _ in found.records if code - 1 in codes)
    assert sorted((n, code, begin) for n, code, begin, _ in found.spans) == begins
    assert sorted((n, code, end) for n, code, _, end in found.spans) == ends
    assert found.open_spans == found.stray_ends == 0


def test_a_wait_longer_than_the_time_field_keeps_what_follows_in_place() -> None:
    launch = one_launch(stall("full", 100, 3 << 23), point("depth", (3 << 23) + 150, 1))
    assert decode_lines(*lines_of(launch)).records == expected(launch)


def test_a_late_commit_of_a_long_wait_is_put_before_what_was_written_first() -> None:
    wait = stall("full", 100, 5_000_000, late=2000)
    launch = one_launch(wait, point("mark", 5_000_900, 1, 2), point("depth", 5_003_000, 1))
    assert decode_lines(*lines_of(launch)).records == expected(launch)


def test_an_epoch_just_after_the_time_field_wrapped_is_no_second_turn() -> None:
    dur = (1 << 23) - 110  # ends 10 cycles before the wrap, written down 20 cycles after it
    launch = one_launch(stall("full", 100, dur, late=30), point("depth", (1 << 23) + 40, 1))
    assert decode_lines(*lines_of(launch)).records == expected(launch)


def test_two_waits_that_wrap_late_are_each_put_in_their_turn() -> None:
    turn = 1 << 23
    launch = one_launch(
        stall("full", 100, turn - 110, late=30),
        point("depth", turn + 40, 1),
        stall("room", turn + 500, turn - 510, late=30),
        point("depth", 2 * turn + 40, 1),
    )
    assert decode_lines(*lines_of(launch)).records == expected(launch)


def slow_launch(*records: Rec) -> tuple[Launch, list[tuple[int, int]]]:
    """A launch of a host build, and what its records decode to (event, begin)."""
    launch = one_launch(*records)
    build = Build(slow=True)
    build.add(0, launch)
    found = decode_lines(*build.arrays())
    assert not found.uncertain
    return launch, [(code, t) for _, code, t, _, _ in found.records]


def test_no_silence_is_too_long_where_every_record_tells_its_turn() -> None:
    turn = 1 << 23
    launch, found = slow_launch(
        point("depth", 100, 1),
        point("depth", 5 * turn + 7, 2),
        stall("full", 9 * turn + 20, 500),
        *span("tile", 12 * turn + 3, 40 * turn, 1),
    )
    assert found == [(code, t) for _, code, t, _, _ in expected(launch)]


def test_a_wait_written_down_a_turn_late_ends_before_what_was_written_next() -> None:
    turn = 1 << 23
    launch, found = slow_launch(
        point("depth", 100, 1),
        stall("full", 2 * turn + 600_000, 900_000, late=turn // 2 + turn // 3 + 100_000),
        point("depth", 3 * turn + 200_000, 2),
    )
    assert found == [(code, t) for _, code, t, _, _ in expected(launch)]


def test_a_wait_written_down_a_turn_late_ends_before_the_closing() -> None:
    turn = 1 << 23
    launch, found = slow_launch(
        point("depth", 100, 1), stall("full", 2 * turn - 900, 800, late=300)
    )
    assert found == [(code, t) for _, code, t, _, _ in expected(launch)]


def test_a_hang_begins_where_its_wait_began() -> None:
    waited = 5 << 23
    launch = Launch(1, records=[point("mark", 500, 1, 2), hang("input", 700 + waited, waited, 42)])
    found = decode_lines(*lines_of(launch))
    assert found.records[1] == (1, 4, 700, -1, (IDS["input"].id, 42, waited))


def test_a_wait_that_ends_after_its_hang_begins_with_it() -> None:
    waited, dur = 5 << 23, 9 << 23
    launch = one_launch(
        point("mark", 500, 1, 2),
        hang("input", 700 + waited, waited, 42),
        stall("input", 700, dur, 42),
        point("depth", 800 + dur, 1),
    )
    found = decode_lines(*lines_of(launch))
    assert [(code, t) for _, code, t, _, _ in found.records] == [
        (IDS["mark"].id, 500), (4, 700), (IDS["input"].id, 700), (IDS["depth"].id, 800 + dur),
    ]  # fmt: skip
    assert not found.uncertain


def test_a_closing_that_disagrees_makes_times_uncertain() -> None:
    # 9 ms without a record: more than the time field can tell.
    launch = one_launch(point("depth", 100, 1), point("depth", (1 << 24) + 500, 2))
    found = decode_lines(*lines_of(launch))
    assert found.uncertain == {1}


@pytest.mark.parametrize(
    ("bad", "reason", "words"),
    [
        (Rec(200, 50), "unknown_event", 1),
        (Rec(200, 50, (1, 2, 3)), "unknown_event", 4),
        (Rec(IDS["full"].id, 50), "wrong_args", 1),
        (Rec(IDS["full"].id, 50, (1, 2)), "wrong_args", 3),
        (Rec(0, 50), "unknown_event", 1),
        (Rec(1, 50, (0,) * 8), "misplaced", 9),
    ],
)
def test_a_malformed_word_is_counted_by_reason_and_dropped(
    bad: Rec, reason: str, words: int
) -> None:
    build = Build()
    launch = one_launch(point("depth", 20, 1), bad, point("depth", 60, 2))
    build.add(0, launch)
    found = decode_lines(*build.arrays())
    assert [record[2] for record in found.records] == [20, 60]
    assert getattr(found.malformed, reason) == words
    assert found.malformed.total == words


def test_words_after_a_closing_are_of_no_launch() -> None:
    build = Build()
    warp = Warp()
    words = build.encode(0, one_launch(point("depth", 20, 1)), 0)
    words += [record_word(IDS["depth"].id, 90), arg_word(7)]
    lines = warp.lines(words)
    found = decode_lines(np.zeros(len(lines), np.uint32), lines)
    assert [record[2] for record in found.records] == [20]
    assert found.malformed.misplaced == 2


def test_arguments_after_a_lost_line_are_orphans() -> None:
    build = Build(straddle=True)
    # 9 header words, 10 pairs: the second line begins with the argument of the eleventh.
    records = [point("depth", 10 * i, i) for i in range(40)]
    build.add(0, one_launch(*records))
    build.lose(0, 1 + 1)
    found = decode_lines(*build.arrays())
    assert found.malformed.cut == 1
    assert found.malformed.orphan_args == 1
    assert [r[2] for r in found.records] == [10 * i for i in range(40) if not 10 <= i <= 25]


def test_a_span_that_a_gap_cuts_is_open_and_its_end_stray() -> None:
    build = Build()
    inside = [point("depth", 100 + 10 * i, i) for i in range(40)]
    build.add(0, one_launch(*span("phase", 5, 900), *inside))
    build.lose(0, 2)
    found = decode_lines(*build.arrays())
    assert found.spans == []
    assert (found.open_spans, found.stray_ends) == (1, 1)


def test_spans_of_one_event_nest_and_of_two_events_may_overlap() -> None:
    nested = [*span("tile", 10, 100), *span("tile", 20, 90), *span("tile", 30, 40)]
    launch = one_launch(*nested, *span("phase", 15, 95))
    found = decode_lines(*lines_of(launch))
    tile, phase = IDS["tile"].id, IDS["phase"].id
    assert sorted(found.spans) == [
        (1, tile, 10, 100), (1, tile, 20, 90), (1, tile, 30, 40), (1, phase, 15, 95),
    ]  # fmt: skip


def test_random_words_never_raise() -> None:
    rng = np.random.default_rng(5)
    end = time.monotonic() + FUZZ_SECONDS / 2
    rounds = 0
    while time.monotonic() < end:
        rounds += 1
        count = int(rng.integers(1, 200))
        lines = rng.integers(0, 1 << 32, (count, 32), dtype=np.uint32)
        # Half of the words are events of the table, so that some of it makes sense.
        codes = rng.choice([0, 1, 2, 3, 4, 5, *range(16, 30)], (count, 32)).astype(np.uint32)
        known = rng.random((count, 32)) < 0.5
        lines[known] = (codes[known] << 23) | (lines[known] & 0x7FFFFF)
        if rounds % 2:
            lines[:, 0] = lines[:, 16] = rng.integers(1, 300, count)
        found = decode_lines(rng.integers(0, 4, count).astype(np.uint32), lines)
        assert found.scan.loss.lines_seen.sum() + found.scan.loss.lines_torn.sum() <= count
    assert rounds


def test_flipped_bits_never_raise_and_never_add_words() -> None:
    rng = np.random.default_rng(6)
    build = Build()
    at = MS
    for number in range(1, 30):
        body = [*span("phase", 5, 900), *(stall("full", 20 * i, 7) for i in range(number))]
        build.add(0, Launch(number, at, at + 3000, records=body))
        at += 4000
    ring, clean = build.arrays()
    total = int(decode_lines(ring, clean).scan.loss.words_seen.sum())
    end = time.monotonic() + FUZZ_SECONDS / 2
    while time.monotonic() < end:
        lines = clean.copy()
        for _ in range(int(rng.integers(1, 20))):
            lines[rng.integers(len(lines)), rng.integers(32)] ^= np.uint32(1 << rng.integers(32))
        keep = rng.random(len(lines)) > 0.1
        found = decode_lines(ring[keep], lines[keep])
        assert int(found.scan.loss.words_seen.sum()) <= total + 20
