"""The Textual application; everything else of this room is reached from it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import ClassVar

from textual.app import App, SystemCommand
from textual.binding import Binding, BindingType
from textual.screen import Screen

from megatrace.paths import asset_dir
from megatrace.tui.main import MainScreen
from megatrace.tui.palette import prefers_light
from megatrace.tui.replay import CaptureSource
from megatrace.tui.source import Source

_COMMANDS = (
    ("Level of recording", "What steps record: off, counters, timeline", "level"),
    ("Timeline on one step in N", "Or auto: what the host drains", "every"),
    ("Window of steps", "Timeline only on some steps", "steps"),
    ("SMs that record", "Only some SMs", "sms"),
    ("Burst to a file", "Every one of the next steps, in a capture of its own", "burst"),
    ("Another session", "Recordings of this host", "session"),
    ("Length of time shown", "The last 2, 10 or 60 seconds, or all", "window"),
)


class MegatraceApp(App[None]):
    """Shows one source; a burst of it opens on top."""

    TITLE = "megatrace"
    CSS_PATH = str(asset_dir() / "viewers" / "tui" / "megatrace.tcss")
    ENABLE_COMMAND_PALETTE = True
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("t", "light_or_dark", "Light or dark", show=False)
    ]

    def __init__(self, source: Source) -> None:
        super().__init__()
        self._source = source
        self.animation_level = "none"

    def on_mount(self) -> None:
        """Show the source."""
        self.theme = "textual-light" if prefers_light() else "textual-dark"
        self.push_screen(MainScreen(self._source))

    def open_capture(self, path: str) -> None:
        """Show a capture on top of what is shown; escape goes back."""
        self.push_screen(MainScreen(CaptureSource(Path(path))))

    def action_light_or_dark(self) -> None:
        """The other of the two themes."""
        self.theme = "textual-dark" if not self.current_theme.dark else "textual-light"
        self.refresh(layout=False)
        for screen in self.screen_stack:
            for widget in screen.query("*"):
                widget.refresh()

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        """What the palette (ctrl+p) offers, by name."""
        yield from super().get_system_commands(screen)
        if not isinstance(screen, MainScreen):
            return
        yield SystemCommand("Sort by the next column", "", lambda: screen.action_sort(1))
        yield SystemCommand("Next rank", "One rank, or all together", screen.action_rank)
        yield SystemCommand("Find", "Show only some rows", screen.action_search)
        for view in ("layers", "ranks", "map"):
            yield SystemCommand(
                f"Show {view}",
                "",
                lambda view=view: screen.action_view(view),
            )
        if screen.steering is None:
            yield SystemCommand("Play or stop", "Go through the steps", screen.action_play)
        else:
            yield SystemCommand("Freeze or go on", "Hold what is shown", screen.action_freeze)
            for title, text, what in _COMMANDS:
                yield SystemCommand(
                    title,
                    text,
                    lambda what=what: screen.action_steer(what),
                )
            yield SystemCommand("Open the burst", "Its capture", screen.action_open_burst)
