"""A capture read once: its windows are those of a reading of their own, its report the report."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from megatrace.analysis import Report, summarise, views
from megatrace.analysis.once import ReadOnce
from megatrace.analysis.windows import SMALL_LINES, windows
from megatrace.capture.reader import open_capture
from tests.analysis.small import BLOCKS, MUSE
from tests.build import MS, Build, Launch, demo, hang, point, write
from tests.reads import counted_lines

SIZES = pytest.mark.parametrize("small_lines", [0, SMALL_LINES])


def same(a: Report, b: Report) -> bool:
    """Whether two reports say the same, their prefetches aside: the order of sums may differ."""
    one, two = (json.loads(replace(report, prefetches=()).to_json()) for report in (a, b))
    return bool(one == two)


@SIZES
@pytest.mark.parametrize("path", [MUSE, BLOCKS])
def test_one_reading_gives_the_report_and_every_window(path: Path, small_lines: int) -> None:
    with open_capture(path) as capture:
        with counted_lines() as alone:
            report = summarise(capture)
        with counted_lines() as both:
            read = ReadOnce(capture, small_lines=small_lines)
            parts = list(read.windows())
            assert same(read.report(), report)
        assert sum(both) == sum(alone) > 0
        for part, other in zip(parts, windows(capture, small_lines=small_lines), strict=True):
            assert part.launches.equals(other.launches)
            assert part.host.equals(other.host)
            assert views.stall_classes(part).equals(views.stall_classes(other))
            assert views.sync_waits(part).equals(views.sync_waits(other))


@SIZES
def test_loss_hangs_and_damage_are_told_as_by_a_report_alone(
    tmp_path: Path, small_lines: int
) -> None:
    one, two = demo(ranks=2, steps=4)
    one.lose(3, 2, 5)
    stuck = [point("mark", 50, 1, 2), hang("input", 10**9, 10**9 - 100, 17)]
    two.add(2, Launch(20, 90 * MS, None, stuck, step=5))
    with open_capture(write(tmp_path / "a.mtr", one, two, complete=False)) as capture:
        read = ReadOnce(capture, small_lines=small_lines)
        assert list(read.windows())
        report = read.report()
        assert same(report, summarise(capture))
    assert len(report.hangs) == 1
    assert report.loss[0].lines_lost == 2


@SIZES
def test_a_rank_without_a_clock_is_in_the_report_and_in_no_window(
    tmp_path: Path, small_lines: int
) -> None:
    build = Build()
    build.add(0, Launch(0, MS, None, [hang("input", 10**9, 10**9 - 100, 17)]))
    with open_capture(write(tmp_path / "a.mtr", build)) as capture:
        assert summarise(capture).clocks[0].error_ns is None
        read = ReadOnce(capture, small_lines=small_lines)
        assert sum(len(trace.launches) for trace in read.windows()) == 0
        assert same(read.report(), summarise(capture))
        assert len(read.report().hangs) == 1


def test_what_the_hosts_say_of_all_steps_takes_no_line() -> None:
    with open_capture(MUSE) as capture:
        read = ReadOnce(capture)
        with counted_lines() as lines:
            hosts = read.hosts()
        assert not lines
        assert len(hosts.host) > 0
        assert len(hosts.launches) == 0


def test_progress_is_told_step_by_step() -> None:
    told: list[tuple[int, int]] = []
    with open_capture(MUSE) as capture:
        read = ReadOnce(capture, small_lines=0)
        list(read.windows(lambda done, total: told.append((done, total))))
    assert len(told) == 4
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    assert all(0 < done <= total for done, total in told)
