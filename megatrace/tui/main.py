"""The screen of a source: layers, ranks, map; everything else opens from here."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.screen import Screen
from textual.widgets import ContentSwitcher, Footer, Input

from megatrace.schema.processes import rank_text
from megatrace.tui.detail import LayerScreen
from megatrace.tui.dialogs import Help, help_text
from megatrace.tui.foot import Foot
from megatrace.tui.head import Head
from megatrace.tui.heat import HeatMap
from megatrace.tui.live import LiveSource
from megatrace.tui.model import (
    SORTS,
    Frame,
    Row,
    Status,
    layer_rows,
    place_shares,
    role_rows,
    sort_rows,
)
from megatrace.tui.ranks import Ranks
from megatrace.tui.replay import CaptureSource
from megatrace.tui.rows import StallTable, layer_columns, role_columns
from megatrace.tui.source import Source
from megatrace.tui.steer import Steering
from megatrace.tui.table import Table

POLL_S = 0.25
PLAY_S = 0.5
MAP_S = 0.9
SIDE_WIDTH = 150
"""From this width on the map stands beside the layers."""
PREVIEW_HEIGHT = 22
"""From this height on the roles of a layer stand below them."""

VIEWS = ("layers", "ranks", "map")


class Preview(StallTable, can_focus=False):
    """The roles of the layer under the cursor."""


class MainScreen(Screen[None]):
    """Polls its source four times a second and shows what has changed."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "app.quit", "Quit"),
        Binding("question_mark", "help", "Help", key_display="?"),
        Binding("space", "freeze", "Freeze"),
        Binding("space", "play", "Play"),
        Binding("s", "sort(1)", "Sort"),
        Binding("S", "sort(-1)", "Sort back", show=False),
        Binding("slash", "search", "Find", key_display="/"),
        Binding("r", "rank", "Rank"),
        Binding("1", "view('layers')", "Layers", show=False),
        Binding("2", "view('ranks')", "Ranks", show=False),
        Binding("3", "view('map')", "Map", show=False),
        Binding("v", "next_view", "View"),
        Binding("escape", "back", "Back", show=False),
        Binding("left_square_bracket", "step(-1)", "Step", key_display="[ ]"),
        Binding("right_square_bracket", "step(1)", "Next step", show=False),
        Binding("b", "steer('burst')", "Burst"),
        Binding("l", "steer('level')", "Level"),
        Binding("e", "steer('every')", "1 in N", show=False),
        Binding("p", "steer('steps')", "Window of steps", show=False),
        Binding("x", "steer('sms')", "SMs", show=False),
        Binding("w", "steer('window')", "Span", show=False),
        Binding("n", "steer('session')", "Session", show=False),
        Binding("o", "open_burst", "Open the burst", show=False),
    ]

    def __init__(self, source: Source) -> None:
        super().__init__()
        self.source = source
        self.steering = Steering(self, source) if isinstance(source, LiveSource) else None
        self._status = Status("", "waiting", "")
        self._frame: Frame | None = None
        self._rows: list[Row] = []
        self._sort = "layer"
        self._filter = ""
        self._rank: int | None = None
        self._frozen = False
        self._playing = False
        self._map_shown: object = None
        self._map_s = 0.0

    @property
    def now(self) -> tuple[Status, Frame | None, int | None]:
        """What is shown: status, tables, the rank that was chosen."""
        return self._status, self._frame, self._rank

    def compose(self) -> ComposeResult:
        """Head, the three views, a line of words, keys."""
        yield Head("megatrace live" if self.source.steers else "megatrace view")
        with ContentSwitcher(initial="layers"):
            with Horizontal(id="layers"):
                with Vertical():
                    yield StallTable((), id="layer-table")
                    yield Preview((), id="preview")
                yield HeatMap(id="side-map")
            yield Ranks(id="ranks")
            yield HeatMap(id="map")
        yield Input(placeholder="part of a layer's or kernel's name; enter keeps it", id="search")
        yield Foot()
        yield Footer(show_command_palette=False, compact=True)

    def on_mount(self) -> None:
        """Begin to poll."""
        self.query_one("#search").display = False
        self.query_one("#layer-table", StallTable).focus()
        self.tick()
        self.call_after_refresh(self.tick)
        self.set_interval(POLL_S, self.tick)
        self.set_interval(PLAY_S, self._play)

    def on_resize(self) -> None:
        """Show the map beside the layers where there is room for both."""
        self.query_one("#side-map").display = self.size.width >= SIDE_WIDTH
        self.query_one(Preview).display = self.size.height >= PREVIEW_HEIGHT

    def on_unmount(self) -> None:
        """Let go of the source."""
        self.source.close()

    def tick(self) -> None:
        """Poll, and show what is new."""
        top = self.app.screen
        if top is not self and not (isinstance(top, LayerScreen) and top.main is self):
            return  # nobody sees it
        status, frame = self.source.poll()
        if self.steering is not None:
            self.steering.answers()
        if self._frozen and self._frame is not None:
            self._show_head()
            return
        fresh = frame is not self._frame or status.ranks != self._status.ranks
        self._status, self._frame = status, frame
        self._show_head()
        if fresh:
            self.show()
        nothing = status.text or "nothing has run yet"
        if frame is not None and status.state == "replay":
            nothing = f"nothing of it in {status.span}"
        self.query_one("#layer-table", Table).say(nothing)

    def show(self) -> None:
        """Draw the view that is in front anew."""
        frame = self._frame
        if frame is None:
            self._rows = []
            self.query_one("#layer-table", StallTable).set_rows(0, lambda row, column, width: [])
            self._show_line()
            return
        if self._rank is not None and self._rank not in frame.ranks:
            self._rank = None
        view = str(self.query_one(ContentSwitcher).current)
        if view == "layers":
            self._show_layers(frame)
        elif view == "ranks":
            self.query_one(Ranks).show(self._status, frame)
        maps = {"map": "#map", "layers": "#side-map"}
        heat = self.query_one(maps[view], HeatMap) if view in maps else None
        if heat is not None and heat.display and self._map_due(view):
            share, by_cause = place_shares(frame, self._rank)
            heat.show(
                frame.places, frame.roles, share, by_cause, kind=frame.place_kind,
                counted=frame.counted,
            )  # fmt: skip
        self._show_line()
        top = self.app.screen
        if isinstance(top, LayerScreen) and top.main is self:
            top.show(self._status, frame, self._rank)

    def _map_due(self, view: str) -> bool:
        """A map that flickers says less: beside a table it changes once a second."""
        shown = (view, self._rank, self.size, self.source.name, self._status.span)
        now = time.monotonic()
        if shown == self._map_shown and now - self._map_s < MAP_S and self.source.steers:
            return False
        self._map_shown, self._map_s = shown, now
        return True

    def _show_layers(self, frame: Frame) -> None:
        rows = layer_rows(frame, self._rank)
        if self._filter:
            words = self._filter.lower()
            rows = [row for row in rows if words in " ".join(map(str, frame.layers[row.key]))]
        self._rows = sort_rows(rows, self._sort)
        table = self.query_one("#layer-table", StallTable)
        table.set_columns(layer_columns(frame, self._rows, self._sort))
        table.show(
            self._rows, unit=frame.unit, whole_uses=frame.whole_uses, timed=self._status.timed
        )
        self._show_preview(frame)

    def _show_preview(self, frame: Frame) -> None:
        preview = self.query_one(Preview)
        if not preview.display:
            return
        at = self.query_one("#layer-table", StallTable).cursor
        layer = self._rows[at].key if at < len(self._rows) else None
        rows = role_rows(frame, self._rank, layer) if layer is not None else []
        name = f"roles of {frame.label(layer)}" if layer is not None else "roles"
        preview.styles.height = len(rows) + 1
        preview.set_columns(role_columns(frame, rows, name))
        preview.show(rows, unit=frame.unit, whole_uses=False, timed=self._status.timed)

    def on_table_moved(self, event: Table.Moved) -> None:
        """Show the roles of another layer."""
        if event.table.id == "layer-table" and self._frame is not None:
            self._show_preview(self._frame)

    def _show_head(self) -> None:
        flags: list[str] = []
        if isinstance(self.source, LiveSource) and self.source.others:
            flags.append(f"{len(self.source.others)} more: n")
        if self._frozen:
            flags.append("FROZEN")
        if self._playing:
            flags.append("playing")
        self.query_one(Head).show(self._status, tuple(flags))

    def _show_line(self) -> None:
        ranks = self._frame.ranks if self._frame is not None else ()
        words = []
        if len(ranks) > 1:
            words.append("all ranks" if self._rank is None else f"rank {rank_text(self._rank)}")
        if self._filter:
            words.append(f"only {self._filter!r}")
        self.query_one(Foot).show(
            VIEWS, str(self.query_one(ContentSwitcher).current), tuple(words),
            counted=self._frame is not None and self._frame.counted,
        )  # fmt: skip

    def _play(self) -> None:
        if self._playing and isinstance(self.source, CaptureSource):
            self.action_step(1)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Keys of a live session are not those of a capture."""
        if action in ("steer", "open_burst", "freeze"):
            return self.source.steers
        if action in ("step", "play"):
            return not self.source.steers
        return True

    def action_help(self) -> None:
        """Show the keys."""
        self.app.push_screen(Help(help_text(live=self.source.steers)))

    def action_freeze(self) -> None:
        """Hold what is shown, or let it go on; the recording goes on all the while."""
        self._frozen = not self._frozen
        self.tick()

    def action_play(self) -> None:
        """Go through the steps of a capture, or stop."""
        self._playing = not self._playing
        self.tick()

    def action_sort(self, by: int) -> None:
        """Sort by the next column."""
        self._sort = SORTS[(SORTS.index(self._sort) + by) % len(SORTS)]
        self.show()

    def action_rank(self) -> None:
        """Show the next rank, after the last all together."""
        ranks = [None, *(self._frame.ranks if self._frame is not None else ())]
        self._rank = ranks[(ranks.index(self._rank) + 1) % len(ranks)]
        self.show()

    def action_view(self, name: str) -> None:
        """Bring a view to the front."""
        self.query_one(ContentSwitcher).current = name
        self.show()
        front: dict[str, Callable[[], object]] = {
            "layers": self.query_one("#layer-table", StallTable).focus,
            "ranks": self.query_one("#rank-layers", Table).focus,
            "map": self.query_one("#map", HeatMap).focus,
        }
        front[name]()

    def action_next_view(self) -> None:
        """Bring the next view to the front."""
        at = VIEWS.index(str(self.query_one(ContentSwitcher).current))
        self.action_view(VIEWS[(at + 1) % len(VIEWS)])

    def action_step(self, by: int) -> None:
        """Another step of the capture."""
        if isinstance(self.source, CaptureSource):
            self.source.turn(by, self._rank)
            self.tick()

    def action_steer(self, what: str) -> None:
        """Ask the recorder for something."""
        if self.steering is not None:
            getattr(self.steering, what)()
            self.tick()

    def action_open_burst(self) -> None:
        """Show the capture of the last burst."""
        path = self.steering.burst_path if self.steering is not None else ""
        if path:
            self.app.open_capture(path)  # type: ignore[attr-defined]
        else:
            self.notify("no burst yet: b records one")

    def action_search(self) -> None:
        """Show only some rows."""
        search = self.query_one("#search", Input)
        search.display = True
        search.focus()

    def action_back(self) -> None:
        """Leave the search; else the capture that was opened from a live session."""
        search = self.query_one("#search", Input)
        if search.display or self._filter:
            search.value = ""
            self._close_search()
        elif len(self.app.screen_stack) > 2:
            self.app.pop_screen()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Filter while it is typed."""
        self._filter = event.value.strip()
        self.show()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Keep the filter, give the keys back."""
        self._close_search()

    def _close_search(self) -> None:
        self.query_one("#search").display = False
        self.query_one("#layer-table", StallTable).focus()
        self.show()

    def on_table_opened(self, event: Table.Opened) -> None:
        """A layer was chosen."""
        if event.table.id == "layer-table" and event.row < len(self._rows):
            self.open_layer(self._rows[event.row].key)

    def on_heat_map_opened(self, event: HeatMap.Opened) -> None:
        """A place was chosen on the map: its warps, in the layer the cursor is on."""
        frame = self._frame
        if frame is None or not self._rows:
            return
        row = min(self.query_one("#layer-table", StallTable).cursor, len(self._rows) - 1)
        screen = self.open_layer(self._rows[row].key)
        if screen is not None and frame.place_kind == "SM":
            screen.open_sm(event.place)

    def open_layer(self, layer: int) -> LayerScreen | None:
        """Open the screen of a layer."""
        if self._frame is None:
            return None
        screen = LayerScreen(self, self._frame.layers[layer])
        self.app.push_screen(screen)
        screen.show(self._status, self._frame, self._rank)
        return screen
