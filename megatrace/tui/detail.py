"""One layer: its roles, its events and its SMs; from here on to warps in time."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from rich.segment import Segment
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.screen import Screen
from textual.widgets import Footer

from megatrace.schema.processes import rank_text
from megatrace.tui.dialogs import Help, help_text
from megatrace.tui.foot import Foot
from megatrace.tui.head import Head
from megatrace.tui.heat import HeatMap
from megatrace.tui.model import Frame, Row, Status, layer_rows, place_shares, role_rows
from megatrace.tui.numbers import late_text, number, percent, time_text, unit_text
from megatrace.tui.palette import palette
from megatrace.tui.replay import CaptureSource
from megatrace.tui.rows import StallTable, role_columns
from megatrace.tui.table import Column, Table
from megatrace.tui.timeline import TimelineScreen

if TYPE_CHECKING:
    from megatrace.tui.flat import EventSum
    from megatrace.tui.main import MainScreen

LIVE_HINT = "a live session has no records to show: b records a burst, o opens it"

_EVENT_COLUMNS = (
    Column("name", "event", 14, right=False, grows=True, keep=99),
    Column("role", "role", 9, right=False, keep=70),
    Column("kind", "kind", 8, right=False, keep=80),
    Column("count", "count", 7, keep=60),
    Column("mean", "mean us", 7, keep=75),
    Column("time", "us/launch", 9, keep=90),
    Column("share", "share", 6, keep=85),
)
"""``us/launch`` is of one warp."""


class LayerScreen(Screen[None]):
    """Follows the main screen it was opened from."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,backspace", "app.pop_screen", "Back", key_display="esc"),
        Binding("tab", "app.focus_next", "Next table"),
        Binding("r", "main('rank')", "Rank"),
        Binding("left_square_bracket", "step(-1)", "Step", key_display="[ ]"),
        Binding("right_square_bracket", "step(1)", "Next step", show=False),
        Binding("space", "main('freeze')", "Freeze"),
        Binding("b", "main('burst')", "Burst"),
        Binding("o", "main('open_burst')", "Open burst", show=False),
        Binding("question_mark", "help", "Help", key_display="?"),
        Binding("q", "app.quit", "Quit"),
    ]

    def __init__(self, main: MainScreen, layer: tuple[str, int]) -> None:
        super().__init__()
        self.main = main
        self.of_layer = layer
        self._status = Status("", "waiting", "")
        self._frame: Frame | None = None
        self._rank: int | None = None
        self._ready = False
        self._roles: list[Row] = []
        self._events: list[EventSum] = []

    @property
    def capture(self) -> CaptureSource | None:
        """The capture, where there is one."""
        source = self.main.source
        return source if isinstance(source, CaptureSource) else None

    def compose(self) -> ComposeResult:
        """Roles above, events and the map below."""
        yield Head("layer")
        yield StallTable((), id="roles")
        with Horizontal(id="below", classes="" if self.capture is not None else "alone"):
            if self.capture is not None:
                yield Table(_EVENT_COLUMNS, id="events")
            yield HeatMap(id="layer-map")
        yield Foot()
        yield Footer(show_command_palette=False, compact=True)

    def on_mount(self) -> None:
        """Show what was handed over before there was anything to show it on."""
        self._ready = True
        self.query_one("#roles", StallTable).focus()
        if self._frame is not None:
            self.show(self._status, self._frame, self._rank)

    def on_resize(self) -> None:
        """Stack the lower half where it is narrow."""
        self.query_one("#below").set_class(self.size.width < 110, "narrow")

    def show(self, status: Status, frame: Frame, rank: int | None) -> None:
        """Show the layer as it is in ``frame``."""
        self._status, self._frame, self._rank = status, frame, rank
        if not self._ready or self.of_layer not in frame.layers:
            return
        at = frame.layers.index(self.of_layer)
        self._roles = role_rows(frame, rank, at)
        table = self.query_one("#roles", StallTable)
        table.styles.height = len(self._roles) + 1
        table.set_columns(role_columns(frame, self._roles))
        table.show(self._roles, unit=frame.unit, whole_uses=False, timed=status.timed)
        self._show_head(frame, at)
        self._show_events(frame)
        self._show_map(frame)
        words = (
            ("all ranks" if rank is None else f"rank {rank_text(rank)}",)
            if len(frame.ranks) > 1
            else ()
        )
        self.query_one(Foot).show((), "", words, counted=frame.counted)

    def _show_head(self, frame: Frame, at: int) -> None:
        kernel, layer = self.of_layer
        title = f"{layer}  {kernel}" if kernel else str(layer)
        rows = [row for row in layer_rows(frame, self._rank) if row.key == at]
        notes = list(self._status.notes)
        for row in rows:
            title += f"   {time_text(row.time, frame.unit)} {unit_text(frame.unit)} a launch"
            title += f"   {percent(row.share)} of the step"
            if row.uses and self._status.timed:
                late = late_text(row.late, row.uses, row.unseen, whole=frame.whole_uses)
                title += f"   late {late}"
                if row.late:
                    mean = row.late_time / row.late
                    title += (
                        f", by {time_text(mean, frame.unit)} {unit_text(frame.unit)} on average"
                    )
        if self.capture is None:
            notes.insert(0, LIVE_HINT)
        self.query_one(Head).show(replace(self._status, title=title, notes=tuple(notes)))

    def _show_events(self, frame: Frame) -> None:
        capture = self.capture
        if capture is None or capture.flat is None:
            return
        at = capture.flat.layers.index(self.of_layer)
        mine = [event for event in capture.events if event.layer == at]
        self._events = sorted(mine, key=lambda event: -event.time)
        colours = palette(dark=self.app.current_theme.dark)
        warps = capture.flat.warps
        busy, launches = {}, {}
        for role in range(len(frame.roles)):
            own = (warps.layer == at) & (warps.role == role)
            busy[role], launches[role] = float(warps.dur[own].sum()), int(own.sum())

        def cell(row: int, column: Column, width: int) -> list[Segment]:
            event = self._events[row]
            text, style = _event_cell(
                event, column.name, frame.roles[event.role], launches[event.role], busy[event.role]
            )
            return [Segment(text, colours.style(style) if style else None)]

        self.query_one("#events", Table).set_rows(len(self._events), cell)

    def _show_map(self, frame: Frame) -> None:
        heat = self.query_one("#layer-map", HeatMap)
        capture = self.capture
        if capture is not None:
            frame = capture.layer_places(frame, self.of_layer)
            heat.hint = "of this layer"
        else:
            heat.hint = "of all layers"
        share, by_cause = place_shares(frame, self._rank)
        heat.show(
            frame.places, frame.roles, share, by_cause, kind=frame.place_kind,
            counted=frame.counted,
        )  # fmt: skip

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """What a capture cannot do is not offered."""
        live = self.capture is None
        if action == "step":
            return not live
        if action == "main" and parameters[0] in ("burst", "open_burst", "freeze"):
            return live
        return True

    def action_help(self) -> None:
        """Show the keys."""
        self.app.push_screen(Help(help_text(live=self.capture is None)))

    def action_step(self, by: int) -> None:
        """Another step of the capture."""
        self.main.action_step(by)
        self._follow()

    def action_main(self, what: str) -> None:
        """What the main screen does."""
        if what == "rank":
            self.main.action_rank()
        elif what == "freeze":
            self.main.action_freeze()
        elif what == "open_burst":
            self.main.action_open_burst()
        else:
            self.main.action_steer(what)
        self._follow()

    def _follow(self) -> None:
        status, frame, rank = self.main.now
        if frame is not None:
            self.show(status, frame, rank)

    def on_table_opened(self, event: Table.Opened) -> None:
        """A role, or an event's role, on every SM."""
        if self._frame is None:
            return
        if event.table.id == "roles":
            role = self._roles[event.row].key
        else:
            role = self._events[event.row].role
        self._open(role=self._frame.roles[role])

    def on_heat_map_opened(self, event: HeatMap.Opened) -> None:
        """The warps of an SM."""
        self.open_sm(event.place)

    def open_sm(self, sm: int) -> None:
        """Show the warps of one SM in time."""
        self._open(sm=sm)

    def _open(self, *, sm: int | None = None, role: str = "") -> None:
        capture = self.capture
        if capture is None:
            self.notify(LIVE_HINT)
            return
        rank = self._rank if self._rank is not None else self._first_rank()
        self.app.push_screen(TimelineScreen(capture, rank, self.of_layer, sm=sm, role=role))

    def _first_rank(self) -> int:
        """The first that has this layer in what is shown: not every rank has every step."""
        frame = self._frame
        if frame is None or not frame.ranks:
            return 0
        ran = frame.launches[:, frame.layers.index(self.of_layer)].sum(axis=1) > 0
        return frame.ranks[int(ran.argmax())]


def _event_cell(
    event: EventSum, name: str, role: str, launches: int, busy: float
) -> tuple[str, str]:
    """Text of a cell, and the name of its style or ""."""
    timed = event.kind in ("span", "stall", "wait")
    if name == "name":
        return event.name, "strong"
    if name == "role":
        return role, ""
    if name == "kind":
        return event.cause or event.kind, event.cause if event.cause and timed else "dim"
    if name == "count":
        return f"{event.count:,}", ""
    if not timed:
        return "", ""
    if name == "mean":
        return number(event.time / event.count / 1000) if event.count else "", ""
    if name == "time":
        return number(event.time / launches / 1000) if launches else "", ""
    return percent(min(1.0, event.time / busy)) if busy else "", "dim"
