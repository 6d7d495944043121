"""Prefetches against their first use: late exactly, early at most, or not seen used."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from megatrace.analysis import Report, summarise, to_text
from megatrace.analysis.report import PrefetchRow
from megatrace.capture.reader import Capture
from megatrace.schema import Event, EventTable, Kind
from tests.build import GHZ, MS, Build, Launch, Rec, point, stall

Opener = Callable[..., Capture]
US = int(1000 * GHZ)
"""Cycles."""


def row_of(captured: Opener, load: list[Rec], *math: list[Rec]) -> PrefetchRow:
    """The one row of :func:`report_of`."""
    (row,) = report_of(captured, load, *math).prefetches
    return row


def report_of(captured: Opener, load: list[Rec], *math: list[Rec]) -> Report:
    """Of a block whose first warp loads and whose others use; two launches."""
    build = Build(warps=1 + len(math), roles=("load", *("math" for _ in math)))
    for number in range(2):
        at = MS * (number + 1)
        for warp, records in enumerate([load, *math]):
            body = records if number == 0 else []
            build.add(warp, Launch(number, at, at + 90_000, records=body, step=number + 1))
    return summarise(captured(build))


def test_a_prefetch_that_blocks_its_user_is_late_by_the_wait(captured: Opener) -> None:
    row = row_of(captured, [point("issue", US, 5)], [stall("arrived", 2 * US, 3 * US, 5)])
    assert (row.count, row.late, row.early, row.unseen) == (1, 1, 0, 0)
    assert row.late_median_us == pytest.approx(3.0, rel=1e-3)
    assert row.late_total_us == pytest.approx(3.0, rel=1e-3)


def test_a_user_that_waits_before_the_prefetch_is_issued_makes_it_late(captured: Opener) -> None:
    row = row_of(captured, [point("issue", 2 * US, 5)], [stall("arrived", US, 4 * US, 5)])
    assert row.late == 1
    assert row.late_median_us == pytest.approx(4.0, rel=1e-3)


def test_a_prefetch_whose_user_never_blocked_is_early_by_at_most_its_lead(
    captured: Opener,
) -> None:
    row = row_of(captured, [point("issue", US, 5)], [stall("arrived", 7 * US, 0, 5)])
    assert (row.late, row.early) == (0, 1)
    assert row.early_at_most_median_us == pytest.approx(6.0, rel=1e-3)


def test_the_longest_wait_of_several_warps_says_how_late_it_was(captured: Opener) -> None:
    row = row_of(
        captured,
        [point("issue", US, 5)],
        [stall("arrived", 5 * US, 1 * US, 5)],
        [stall("arrived", 3 * US, 3 * US + 20, 5)],
    )
    assert row.late == 1
    assert row.late_median_us == pytest.approx(3.01, rel=1e-3)


def test_a_prefetch_nobody_is_seen_to_use_says_nothing(captured: Opener) -> None:
    row = row_of(captured, [point("issue", US, 5)], [stall("arrived", 2 * US, 0, 6)])
    assert (row.count, row.late, row.early, row.unseen) == (1, 0, 0, 1)


def test_a_slot_is_matched_with_its_latest_prefetch(captured: Opener) -> None:
    row = row_of(
        captured,
        [point("issue", US, 5), point("issue", 20 * US, 5)],
        [stall("arrived", 4 * US, 0, 5), stall("arrived", 21 * US, 2 * US, 5)],
    )
    assert (row.count, row.late, row.early) == (2, 1, 1)


def test_prefetches_issued_before_their_uses_are_used_in_the_order_they_were_issued(
    captured: Opener,
) -> None:
    row = row_of(
        captured,
        [point("issue", US, 5), point("issue", 2 * US, 5)],
        [stall("arrived", 4 * US, 3 * US, 5), stall("arrived", 9 * US, 0, 5)],
    )
    assert (row.count, row.late, row.early, row.unseen) == (2, 1, 1, 0)
    assert row.late_median_us == pytest.approx(3.0, rel=1e-3)
    assert row.early_at_most_median_us == pytest.approx(7.0, rel=1e-3)


def test_other_blocks_do_not_use_this_blocks_prefetch(captured: Opener) -> None:
    build = Build(blocks=2, warps=1)
    for number in range(2):
        at = MS * (number + 1)
        build.add(0, Launch(number, at, at + 9000, records=[point("issue", US, 5)]))
        build.add(1, Launch(number, at, at + 9000, records=[stall("arrived", 2 * US, US, 5)]))
    (row,) = summarise(captured(build)).prefetches
    assert (row.late, row.unseen) == (0, 2)


def test_the_host_build_gets_no_verdict(captured: Opener) -> None:
    build = Build(warps=2, roles=("load", "math"), device=0)
    bodies = ([point("issue", US, 5)], [stall("arrived", 2 * US, 3 * US, 5)])
    for number in range(2):
        at = MS * (number + 1)
        for warp, body in enumerate(bodies):
            build.add(warp, Launch(number, at, at + 90_000, records=body, step=number + 1))
    text = to_text(summarise(captured(build)))
    assert "cpu: times of the host build get no verdict" in text
    assert "late: the first use" not in text


def test_a_prefetch_into_l2_has_no_arrival(captured: Opener) -> None:
    table = EventTable("l2", (Event(30, "warm", Kind.PREFETCH, "Into L2.", edge="l2"),))
    build = Build(table=table)
    for number in range(2):
        at = MS * (number + 1)
        build.add(0, Launch(number, at, at + 9000, records=[point("warm", US, 5, table=table)]))
    (row,) = summarise(captured(build)).prefetches
    assert row.unseen == 2
    assert not row.arrival_visible


def test_waits_that_left_no_word_are_not_called_unused_prefetches(captured: Opener) -> None:
    report = report_of(
        captured,
        [point("issue", US, 5), point("issue", 2 * US, 6)],
        [stall("arrived", 4 * US, US, 5)],
    )
    (row,) = report.prefetches
    assert (row.late, row.early, row.unseen, row.unblocked_visible) == (1, 0, 1, False)
    text = to_text(report)
    assert "did not block or not seen" in text
    assert "no use seen" not in text


def test_a_tracer_that_writes_every_first_use_shows_what_is_unused(captured: Opener) -> None:
    report = report_of(
        captured,
        [point("issue", US, 5), point("issue", 2 * US, 6)],
        [stall("arrived", 4 * US, 0, 5)],
    )
    (row,) = report.prefetches
    assert (row.early, row.unseen, row.unblocked_visible) == (1, 1, True)
    text = to_text(report)
    assert "no use seen" in text
    assert "did not block or not seen" not in text
    assert "[0, first use - issue]" in text
