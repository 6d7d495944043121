"""The monitor on live sessions: the real recorder, fake ranks and the real host build."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from textual.widgets import Input

from megatrace.ring.control import read_control
from megatrace.ring.file import RingFile
from megatrace.ring.session import list_sessions
from megatrace.schema.layout import LEVEL_COUNTERS
from megatrace.tui.live import LiveSource
from megatrace.tui.model import layer_rows
from tests.collect.helpers import FAKE_RANK, recording
from tests.tui.helpers import ROOT, App, drive, main, shows, text, until

EXAMPLE = (sys.executable, str(ROOT / "examples/01_trace_a_kernel/run.py"), "--target", "host")
WIDE = (140, 32)


@contextmanager
def server(output: Path, *options: str, every: str = "5", ranks: int = 1) -> Iterator[None]:
    """A recording of fake ranks that goes on until the block ends."""
    rank = f"{' '.join(FAKE_RANK)} --steps 100000 --step-us 3000 --obey --wait-control"
    command = f"for rank in $(seq 0 {ranks - 1}); do {rank} {' '.join(options)} --rank $rank & done"
    with recording(output, "/bin/sh", "-c", f"{command}; wait", options=("--every", every)):
        yield


def test_it_waits_for_a_recording_and_shows_it_when_it_comes(tmp_path: Path) -> None:
    async def steps(pilot: App) -> None:
        await shows(pilot, "◌ waiting", "waiting for a recording: megatrace record -- CMD")
        await pilot.press("b")
        await pilot.press("enter")
        await shows(pilot, "no recording runs")
        with server(tmp_path / "run.mtr", ranks=2):
            await shows(
                pilot, "● live", "2 ranks", "steps/s", "1 step in 5", "nothing lost", "33 %"
            )
            await shows(pilot, "overhead ", "B/s of lines")
            assert (main(pilot).now[0].line_bytes_per_s or 0) > 0
            (session,) = list_sessions()
            assert session.name in text(pilot)
            await pilot.press("2")
            await shows(pilot, "rank 1", "runs")
            await pilot.press("3")
            await shows(pilot, "SM 0 loader", "storer")
            await pilot.press("1", "enter")
            await shows(pilot, "b records a burst", "loader")
            await pilot.press("enter", "escape")

    drive(LiveSource(), steps, WIDE)


def test_it_survives_the_end_of_one_recording_and_shows_the_next(tmp_path: Path) -> None:
    async def steps(pilot: App) -> None:
        with server(tmp_path / "one.mtr"):
            await shows(pilot, "● live", "33 %")
            first = main(pilot).source.name
        await shows(pilot, "◌ ended", "waiting for the next recording", first, "33 %")
        with server(tmp_path / "two.mtr"):
            await shows(pilot, "● live", "33 %")
            assert main(pilot).source.name not in ("", first)

    drive(LiveSource(), steps, WIDE)


def test_any_number_of_viewers_see_the_same_and_come_and_go(tmp_path: Path) -> None:
    with server(tmp_path / "run.mtr"):
        viewers = [LiveSource() for _ in range(5)]

        async def steps(pilot: App) -> None:
            await shows(pilot, "33 %")
            for viewer in viewers:
                viewer.poll()
            await pilot.pause(0.6)
            frames = [viewer.poll()[1] for viewer in viewers]
            assert all(f is not None and len(layer_rows(f, None)) for f in frames)
            for viewer in viewers:
                viewer.close()
            await pilot.pause(0.6)
            await shows(pilot, "● live")

        drive(LiveSource(), steps, WIDE)
        drive(LiveSource(), lambda pilot: shows(pilot, "● live", "33 %"), WIDE)


def test_keys_steer_the_recorder_and_a_burst_opens_on_top(tmp_path: Path) -> None:
    async def steps(pilot: App) -> None:
        await shows(pilot, "● live", "33 %")
        (path,) = list_sessions()[0].path.glob("*.ring")
        with RingFile.attach(path) as ring:
            await pilot.press("l", "down", "enter")
            await until(pilot, lambda: read_control(ring).level == LEVEL_COUNTERS)
            await shows(pilot, "counters", "no timeline")
            await pilot.press("x")
            pilot.app.screen.query_one(Input).value = "0-1"
            await pilot.press("enter")
            await until(pilot, lambda: read_control(ring).sm_mask == 0b11)
            await pilot.press("x")
            pilot.app.screen.query_one(Input).value = "no SM"
            await pilot.press("enter")
            await shows(pilot, "is no SM below")
        await pilot.press("b", "enter")
        await shows(pilot, "o opens it")
        await pilot.press("o")
        await shows(pilot, "megatrace view", "run-burst1.mtr", "nothing lost")
        await pilot.press("enter", "enter")
        await shows(pilot, "in the launch")
        await pilot.press("escape", "escape", "escape")
        await shows(pilot, "megatrace live")

    with server(tmp_path / "run.mtr"):
        drive(LiveSource(), steps, WIDE)
    assert (tmp_path / "run-burst1.mtr").exists()


def test_what_is_frozen_stands_still_while_the_recording_goes_on(tmp_path: Path) -> None:
    async def steps(pilot: App) -> None:
        await shows(pilot, "● live", "33 %")
        await pilot.press("space")
        await shows(pilot, "FROZEN")
        frame = main(pilot).now[1]
        await pilot.pause(1.0)
        assert main(pilot).now[1] is frame
        await pilot.press("space")
        await until(pilot, lambda: main(pilot).now[1] is not frame)
        await pilot.press("w", "w", "w")
        await shows(pilot, "· all ")

    with server(tmp_path / "run.mtr"):
        drive(LiveSource(), steps, WIDE)


def test_counters_alone_give_shares_of_stall_time_by_block(tmp_path: Path) -> None:
    async def steps(pilot: App) -> None:
        await shows(pilot, "● live", "stalls, by cause", "100 %", "1 step in 1000000")
        await pilot.press("3")
        await shows(pilot, "block 0 loader", "of the most any block stalled")

    with server(tmp_path / "run.mtr", every="1000000"):
        drive(LiveSource(), steps, WIDE)


def test_another_session_is_chosen_by_name(tmp_path: Path) -> None:
    async def steps(pilot: App) -> None:
        await shows(pilot, "● live", "33 %", "1 more: n")
        newest = main(pilot).source.name
        other = next(s for s in list_sessions() if s.name != newest)
        await pilot.press("n", "down", "enter")
        await until(pilot, lambda: main(pilot).source.name == other.name)
        await shows(pilot, other.name, "33 %")

    with server(tmp_path / "one.mtr"), server(tmp_path / "two.mtr"):
        drive(LiveSource(), steps, WIDE)


@pytest.mark.usefixtures("host_capture")  # it has the kernel built
def test_the_host_build_is_watched_live_and_says_cpu(tmp_path: Path) -> None:
    async def steps(pilot: App) -> None:
        await shows(pilot, "● live", "cpu", "times are no verdict", "late uses", "input")
        await pilot.press("enter")
        await shows(pilot, "loader", "consumer", "space")
        await pilot.press("escape")

    with recording(tmp_path / "run.mtr", *EXAMPLE, "--steps", "4000"):
        drive(LiveSource(), steps, WIDE)
