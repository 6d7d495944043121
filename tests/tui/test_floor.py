"""The fraction of the floor on the screen of a capture."""

from __future__ import annotations

from pathlib import Path

from megatrace.analysis import summarise
from megatrace.capture.reader import open_capture
from megatrace.tui.replay import CaptureSource
from tests.reads import counted_lines
from tests.said import with_floor
from tests.tui.helpers import App, drive, drive_capture, main, shows, text


def test_layers_say_which_part_of_the_floor_they_reach(tmp_path: Path) -> None:
    async def steps(pilot: App) -> None:
        await shows(pilot, "of floor", "57 %", "59 %")
        assert "is at most this: 9 of 132 blocks were recorded" in " ".join(text(pilot).split())
        whole = {row.label: row.floor for row in main(pilot)._rows}
        assert whole["embed 0"] is None
        await pilot.press("right_square_bracket")
        await shows(pilot, "step 10", "of floor")
        one = {row.label: row.floor for row in main(pilot)._rows}
        assert one["layer 0"] != whole["layer 0"]

    drive_capture(with_floor(tmp_path / "a.mtr"), steps, (140, 30))


def test_the_floors_of_a_replay_take_no_second_reading(tmp_path: Path) -> None:
    path = with_floor(tmp_path / "a.mtr")
    with open_capture(path) as capture, counted_lines() as alone:
        summarise(capture)
    source = CaptureSource(path)
    with counted_lines() as read:
        source.load()
    frame = source.poll()[1]
    assert frame is not None
    assert frame.floor is not None
    assert sum(read) == sum(alone) > 0
    source.close()


def test_where_the_bandwidth_is_missing_the_head_says_so(tmp_path: Path) -> None:
    path = with_floor(tmp_path / "a.mtr", bandwidth=False)

    async def steps(pilot: App) -> None:
        await shows(pilot, "no fraction of the floor: no bandwidth is known")
        assert "of floor" not in text(pilot)

    drive_capture(path, steps, (150, 30))

    async def given(pilot: App) -> None:
        await shows(pilot, "of floor")

    drive(CaptureSource(path, bandwidth=4.2e12), given, (140, 30))
