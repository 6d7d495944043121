"""Drives the app without a terminal, and reads its screen as text."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from textual.pilot import Pilot

from megatrace.tui.app import MegatraceApp
from megatrace.tui.main import MainScreen
from megatrace.tui.replay import CaptureSource
from megatrace.tui.source import Source

ROOT = Path(__file__).resolve().parents[2]
H200 = ROOT / "examples/01_trace_a_kernel/h200.mtr"
LIMIT_S = 30.0

App = Pilot[None]
Steps = Callable[[App], Awaitable[None]]


def drive(source: Source, steps: Steps, size: tuple[int, int] = (100, 30)) -> None:
    """Run ``steps`` on the app; whatever it raises fails the test."""

    async def run() -> None:
        app = MegatraceApp(source)
        async with app.run_test(size=size, notifications=True) as pilot:
            await steps(pilot)

    asyncio.run(run())


def drive_capture(path: Path, steps: Steps, size: tuple[int, int] = (100, 30)) -> None:
    """The same for a capture, once it is read."""

    async def loaded(pilot: App) -> None:
        await until(pilot, lambda: main(pilot).now[0].state in ("replay", "failed"))
        await steps(pilot)

    drive(CaptureSource(path), loaded, size)


def main(pilot: App) -> MainScreen:
    """The main screen that is in front or lies nearest below."""
    screens = [s for s in pilot.app.screen_stack if isinstance(s, MainScreen)]
    return screens[-1]


def text(pilot: App) -> str:
    """The screen as text, a line a line."""
    strips = pilot.app.screen._compositor.render_strips()
    return "\n".join(strip.text.rstrip() for strip in strips) + "\n"


async def until(pilot: App, condition: Callable[[], object]) -> None:
    """Let the app run until ``condition`` holds; fails with the screen it has by then."""
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline, text(pilot)
        await pilot.pause(0.05)
    await pilot.pause()


async def shows(pilot: App, *words: str) -> None:
    """Wait until all of ``words`` stand on the screen."""
    await until(pilot, lambda: all(word in text(pilot) for word in words))


def check_screen(name: str, screen: str) -> None:
    """Compare with the screen as it was approved; UPDATE_SCREENS=1 approves it anew."""
    path = Path(__file__).parent / "screens" / f"{name}.txt"
    if os.environ.get("UPDATE_SCREENS"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(screen)
    assert screen == path.read_text(), f"not as in {path}:\n{screen}"
