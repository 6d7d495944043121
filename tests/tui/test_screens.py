"""Each screen on a real capture, and what the keys do."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from textual.widgets import Input

from megatrace.tui.heat import HeatMap
from megatrace.tui.timeline import LaneView
from tests.build import demo, write
from tests.tui.helpers import H200, ROOT, App, check_screen, drive_capture, main, shows, text

SCREENS = {
    "layers": ((100, 30), ()),
    "layers_80x24": ((80, 24), ()),
    "layers_wide": ((160, 30), ()),
    "ranks": ((100, 30), ("2",)),
    "map": ((100, 30), ("3",)),
    "layer": ((120, 30), ("enter",)),
    "warps": ((120, 30), ("enter", "tab", "tab", "enter", *["right"] * 5, "down", "down")),
    "role": ((120, 30), ("enter", "down", "enter", "n")),
    "help": ((100, 50), ("question_mark",)),
}


@pytest.mark.parametrize("name", SCREENS)
def test_a_screen_is_as_it_was_approved(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    size, keys = SCREENS[name]
    monkeypatch.chdir(tmp_path)
    shutil.copy(H200, "h200.mtr")

    async def steps(pilot: App) -> None:
        for key in keys:
            await pilot.press(key)
            await pilot.pause()
            if name in ("warps", "role") and key == "enter" and len(pilot.app.screen_stack) > 3:
                await shows(pilot, "in the launch")
        check_screen(name, text(pilot))

    drive_capture(Path("h200.mtr"), steps, size)


MUSE = ROOT / "examples/03_read_a_trace/layer.mtr"


def test_in_80x24_all_warps_of_a_block_are_lanes_and_all_phases_in_the_legend() -> None:
    async def steps(pilot: App) -> None:
        await pilot.press("down", "enter")
        await shows(pilot, "layer  0  layer", "SM 0")
        await pilot.press("tab", "tab", "enter")
        await shows(pilot, "SM 0, block", "in the launch")
        screen = text(pilot)
        lanes = re.findall(r"^[ ▸] ?(\d+) (?:tensor|math|loader)(?! at) ", screen, re.MULTILINE)
        assert [int(warp) for warp in lanes] == list(range(12))
        for phase in ("attention_merge", "experts_down", "qkv_finish"):
            assert f" {phase} " in screen

    drive_capture(MUSE, steps, (80, 24))


def test_in_a_low_terminal_the_lanes_keep_most_of_the_room() -> None:
    async def steps(pilot: App) -> None:
        await pilot.press("down", "enter")
        await shows(pilot, "layer  0  layer")
        await pilot.press("enter")
        await shows(pilot, "of each SM", "▸SM   0", " SM   1")

    drive_capture(MUSE, steps, (80, 14))


def test_enter_goes_down_to_warps_in_time_and_escape_comes_back() -> None:
    async def steps(pilot: App) -> None:
        await pilot.press("down", "enter")
        await shows(pilot, "layer  1  stream", "first_use", "SM 0 loader")
        await pilot.press("tab", "tab")
        assert isinstance(pilot.app.focused, HeatMap)
        await pilot.press("right", "enter")
        await shows(pilot, "stream layer 1", "SM 1, block 83", "11 consumer", "■ data")
        await pilot.press("n")
        await shows(pilot, "0 loader at", "empty space")
        await pilot.press("plus", "plus", "right", "left", "0", "minus")
        await pilot.press("right_square_bracket")
        await shows(pilot, "step 1")
        await pilot.press("escape", "escape")
        assert pilot.app.screen is main(pilot)

    drive_capture(H200, steps, (120, 36))


def test_rows_are_sorted_by_the_column_that_is_marked() -> None:
    async def steps(pilot: App) -> None:
        assert [row.key for row in main(pilot)._rows] == [0, 1, 2]
        await pilot.press("s")
        await shows(pilot, "us/launch ▼")
        assert [row.key for row in main(pilot)._rows] == [0, 2, 1]
        await pilot.press("S", "S")
        await shows(pilot, "late/prefetches ▼")
        assert [row.key for row in main(pilot)._rows] == [0, 1, 2]

    drive_capture(H200, steps)


def test_a_search_leaves_only_rows_that_have_the_words() -> None:
    async def steps(pilot: App) -> None:
        await pilot.press("slash", "2", "enter")
        assert [row.label for row in main(pilot)._rows] == ["2"]
        await shows(pilot, "only '2'")
        await pilot.press("escape")
        assert len(main(pilot)._rows) == 3
        await pilot.press("slash", *"stream")
        assert len(main(pilot)._rows) == 3
        assert isinstance(pilot.app.focused, Input)
        await pilot.press("q", "escape")
        assert len(main(pilot)._rows) == 3

    drive_capture(H200, steps)


def test_a_capture_is_shown_step_by_step_or_as_a_whole(tmp_path: Path) -> None:
    path = write(tmp_path / "demo.mtr", *demo(steps=3, ranks=2))

    async def steps(pilot: App) -> None:
        await shows(pilot, "all 3 steps", "2 ranks")
        await pilot.press("right_square_bracket")
        await shows(pilot, "· step 1")
        await pilot.press("left_square_bracket", "left_square_bracket")
        await shows(pilot, "· step 3")
        await pilot.press("space")
        await shows(pilot, "playing", "all 3 steps")
        await pilot.press("space")
        await pilot.press("r")
        await shows(pilot, "rank 0")
        await pilot.press("r", "r")
        await shows(pilot, "all ranks")

    drive_capture(path, steps, (140, 30))


@pytest.mark.parametrize(
    ("look", "size"), [("light", (80, 24)), ("dark", (20, 5)), ("no colour", (80, 24))]
)
def test_every_screen_survives_every_size_and_look(
    size: tuple[int, int], look: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLORFGBG", "0;15" if look == "light" else "15;0")
    if look == "no colour":
        monkeypatch.setenv("NO_COLOR", "1")

    async def steps(pilot: App) -> None:
        assert pilot.app.current_theme.dark == (look != "light")
        for keys in (("2",), ("3",), ("1", "enter"), ("enter",)):
            await pilot.press(*keys)
            await pilot.pause()
        await shows(pilot, "loader" if size[0] > 20 else "SM")
        for other in ((40, 10), (1, 1), (160, 50), size):
            await pilot.resize_terminal(*other)
            await pilot.pause()
        await pilot.press("escape", "t", "escape", "slash", "escape", "question_mark")
        await pilot.resize_terminal(80, 24)
        await pilot.pause()

    drive_capture(H200, steps, size)


def test_without_colours_a_bar_tells_its_classes_by_glyphs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")

    async def steps(pilot: App) -> None:
        await shows(pilot, "######", "======", ".....", "# data", "= space", "% input", "@ peer")
        await pilot.press("enter", "enter")
        await shows(pilot, "====", "= space")

    drive_capture(H200, steps)


def test_the_palette_offers_what_the_keys_do() -> None:
    async def steps(pilot: App) -> None:
        commands = {c.title for c in pilot.app.get_system_commands(pilot.app.screen)}
        assert {"Next rank", "Find", "Show map", "Play or stop"} <= commands
        assert "Burst to a file" not in commands
        await pilot.press("ctrl+p", *"show ranks", "enter")
        await shows(pilot, "[2 ranks]")

    drive_capture(H200, steps)


def test_the_mouse_chooses_rows_and_places() -> None:
    async def steps(pilot: App) -> None:
        await pilot.click("#layer-table", offset=(3, 2))
        assert main(pilot).query_one("#layer-table").cursor == 1  # type: ignore[attr-defined]
        await pilot.press("3")
        await pilot.click("#map", offset=(5 + 2 * 2, 3))
        await shows(pilot, "SM 2 loader")
        await pilot.click("#map", offset=(5 + 2 * 2, 3))
        await shows(pilot, "SM 2, block")
        assert isinstance(pilot.app.focused, LaneView)

    drive_capture(H200, steps)
