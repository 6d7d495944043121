"""Captures that are no good say so, and times of a CPU get no verdict."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from megatrace.analysis import summarise
from megatrace.capture.reader import open_capture
from megatrace.capture.writer import CaptureWriter
from megatrace.schema.processes import number_of
from megatrace.tui.model import CLASSES, layer_rows, role_rows
from megatrace.tui.replay import CaptureSource
from tests.build import Build, demo, write
from tests.tui.helpers import H200, App, drive_capture, main, shows, text


def loaded(path: Path) -> CaptureSource:
    source = CaptureSource(path)
    source.load()
    return source


def test_the_rows_are_those_of_the_report() -> None:
    source = loaded(H200)
    frame = source.poll()[1]
    assert frame is not None
    with open_capture(H200) as capture:
        report = summarise(capture)
    rows = layer_rows(frame, None)
    assert [row.time for row in rows] == [pytest.approx(1000 * k.median_us) for k in report.kernels]
    assert sum(row.uses for row in rows) == report.prefetches[0].count
    assert sum(row.late for row in rows) == report.prefetches[0].late
    assert sum(row.late_time for row in rows) == pytest.approx(
        1000 * report.prefetches[0].late_total_us
    )
    assert sum(row.unseen for row in rows) == report.prefetches[0].unseen
    shares = {(s.role, s.cause): s.share for s in report.stalls if s.source == "records"}
    for row in role_rows(frame, None, None):
        assert sum(row.bar) == pytest.approx(1)
        for cause, share in zip(CLASSES[:-1], row.bar, strict=False):
            assert share == pytest.approx(shares.get((row.label, cause), 0.0))
    named = {(e.layer, e.role, e.event): e for e in report.events}
    for event in source.events:
        _, layer = source.flat.layers[event.layer]  # type: ignore[union-attr]
        row = named[layer, source.flat.roles[event.role], event.name]  # type: ignore[union-attr]
        assert (event.count, event.kind) == (row.count, row.kind)
        assert event.time == pytest.approx(1000 * row.total_us)
    source.close()


def test_one_step_and_one_rank_are_parts_of_the_whole(tmp_path: Path) -> None:
    source = loaded(write(tmp_path / "demo.mtr", *demo(steps=3, ranks=2)))
    whole = source.poll()[1]
    assert whole is not None
    parts = []
    for _ in source.steps:
        source.turn(1)
        parts.append(source.poll()[1])
    assert sum(f.stalled for f in parts) == pytest.approx(whole.stalled)  # type: ignore[union-attr, misc]
    assert sum(f.busy for f in parts) == pytest.approx(whole.busy)  # type: ignore[union-attr, misc]
    assert whole.series.shape == (2, 2, 3)
    by_rank = [layer_rows(whole, rank) for rank in (0, 1)]
    both = layer_rows(whole, None)
    for one, other, all_ in zip(*by_rank, both, strict=True):
        assert one.uses + other.uses == all_.uses
    source.close()


def twice(path: Path) -> Path:
    """Ranks 0 and 1 for three steps, then both again for two; rank 1 lacks the second step."""
    builds = demo(steps=3, ranks=2) + demo(steps=2, ranks=2)
    builds[3] = demo(steps=1, ranks=2)[1]
    for rank, again in enumerate(builds[2:]):
        again.rank = number_of(rank, 2)
    return write(path, *builds)


def test_a_step_is_of_the_ranks_that_ran_together_and_says_which(tmp_path: Path) -> None:
    source = loaded(twice(tmp_path / "twice.mtr"))
    found = []
    for _ in source.steps:
        source.turn(1)
        status, frame = source.poll()
        assert frame is not None
        ran = frame.launches.sum(axis=(1, 2)) > 0
        assert (~np.isnan(frame.time)).any(axis=1).tolist() == ran.tolist()
        found.append((status.span, ran.tolist()))
    assert found == [
        ("step 1 of process 1", [True, True, False, False]),
        ("step 2 of process 1", [True, True, False, False]),
        ("step 3 of process 1", [True, True, False, False]),
        ("step 1 of process 2", [False, False, True, True]),
        ("step 2 of rank 0#2 alone", [False, False, True, False]),
    ]
    assert source.poll()[0].sampling == "5 of 5 steps"
    source.close()


def test_a_rank_has_its_own_steps_to_go_through(tmp_path: Path) -> None:
    source = loaded(twice(tmp_path / "twice.mtr"))
    spans = []
    for _ in range(3):
        source.turn(1, number_of(1, 2))
        spans.append(source.poll()[0].span)
    assert spans == ["step 1 of process 2", "all 5 steps", "step 1 of process 2"]
    source.close()


def test_warps_in_time_are_of_the_process_whose_step_is_shown(tmp_path: Path) -> None:
    source = loaded(twice(tmp_path / "twice.mtr"))
    second, layer = number_of(0, 2), ("layer", 0)
    source.turn(-1, second)
    lanes = source.lanes(second, layer, sm=0)
    assert lanes is not None
    assert lanes.step == 2
    assert source.lanes(0, layer, sm=0) is None
    source.close()

    async def steps(pilot: App) -> None:
        await pilot.press("left_square_bracket")
        await shows(pilot, "step 2 of rank 0#2 alone")
        await pilot.press("enter", "enter")
        await shows(pilot, "rank 0#2", "step 2")
        await pilot.press("escape", "escape", "r")
        await shows(pilot, "nothing of it in step 2 of rank 0#2 alone")
        await pilot.press("left_square_bracket")
        await shows(pilot, "step 3 of process 1", "rank 0")

    drive_capture(tmp_path / "twice.mtr", steps, (140, 30))


def test_the_trend_of_a_layer_has_one_process_after_the_other(tmp_path: Path) -> None:
    source = loaded(twice(tmp_path / "twice.mtr"))
    frame = source.poll()[1]
    assert frame is not None
    there = (~np.isnan(frame.series[:, 0])).tolist()
    assert there[0] == [True, True, True, False, False]
    assert there[2] == [False, False, False, True, True]
    assert there[3] == [False, False, False, True, False]
    source.close()


def test_a_host_build_says_cpu_and_judges_nothing(host_capture: Path) -> None:
    async def steps(pilot: App) -> None:
        await shows(pilot, "cpu ·", "times are no verdict")
        rows = [line for line in text(pilot).splitlines() if line.startswith(("0 ", "1 ", "2 "))]
        assert len(rows) == 3
        assert all(" cpu" in row for row in rows)
        await pilot.press("enter")
        await shows(pilot, "cpu:")
        assert "late" not in text(pilot)
        await pilot.press("enter")
        await shows(pilot, "cpu: no verdict")

    drive_capture(host_capture, steps, (120, 30))


def empty(path: Path) -> Path:
    writer = CaptureWriter(path)
    writer.write_meta("capture", command=["nothing"])
    return writer.finish()


def counters_only(path: Path) -> Path:
    build = Build(layers=1, warps=2, roles=("a", "b"))
    build.count(0, 0, [1000], [3])
    return write(path, build)


def tiny(path: Path) -> Path:
    return write(path, *demo(steps=2, layers=1, blocks=1))


def lossy(path: Path) -> Path:
    builds = demo(steps=4, tiles=30)
    builds[0].lose(1, 2, 3)
    return write(path, *builds)


def unclosed(path: Path) -> Path:
    return write(path, *demo(), complete=False)


def truncated(path: Path) -> Path:
    whole = write(path, *demo(steps=8, blocks=4))
    whole.write_bytes(whole.read_bytes()[: whole.stat().st_size * 2 // 3])
    return whole


def damaged(path: Path) -> Path:
    whole = write(path, *demo(steps=4))
    data = bytearray(whole.read_bytes())
    data[len(data) // 2] ^= 0xFF
    whole.write_bytes(data)
    return whole


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (empty, ("complete", "empty: no traced kernel")),
        (counters_only, ("no timeline: counters only",)),
        (tiny, ("tiny: fewer than 3 launches",)),
        (lossy, ("lines lost", "lost: 2 of")),
        (unclosed, ("INCOMPLETE", "loss unknown", "incomplete: the file ends early")),
        (truncated, ("INCOMPLETE", "incomplete: ")),
        (damaged, ("INCOMPLETE", "incomplete: the batch at byte")),
    ],
)
def test_a_capture_that_lacks_something_says_what(tmp_path: Path, make, words) -> None:  # type: ignore[no-untyped-def]
    path = make(tmp_path / "x.mtr")

    async def steps(pilot: App) -> None:
        await shows(pilot, *words)
        await pilot.press("2", "3", "enter", "1", "enter", "enter", "tab", "tab", "enter")
        await pilot.pause(0.2)
        await pilot.press("escape", "escape", "s", "r", "right_square_bracket", "space")
        await pilot.pause()

    drive_capture(path, steps, (140, 30))


@pytest.mark.parametrize("content", [b"", b"no capture at all\n" * 99])
def test_a_file_that_is_no_capture_fails_on_the_screen(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "some.mtr"
    path.write_bytes(content)

    async def steps(pilot: App) -> None:
        await shows(pilot, "✗ failed", "is empty" if not content else "not a megatrace capture")
        assert main(pilot).source.error is not None  # type: ignore[attr-defined]
        await pilot.press("enter", "2", "3", "question_mark", "escape")

    drive_capture(path, steps, (140, 30))


def test_titles_of_ranks_are_whole_so_that_processes_can_be_told_apart(tmp_path: Path) -> None:
    """Two ranks in three processes, and one with two digits."""
    again, tenth = demo(ranks=2)
    again.rank, tenth.rank = number_of(0, 2), 10
    path = write(tmp_path / "demo.mtr", *demo(ranks=1), again, tenth)

    async def steps(pilot: App) -> None:
        await pilot.press("2")
        await shows(pilot, "rank 0  ", "rank 0#2", "rank 10", "2 ranks in 3 processes")

    drive_capture(path, steps)
