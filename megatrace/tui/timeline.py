"""Warps in time: a lane a warp, a column a slice of the launch, the cause where it stalls."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.geometry import Region, Size
from textual.screen import Screen
from textual.strip import Strip
from textual.widgets import Footer, Static
from textual.worker import get_current_worker

from megatrace.errors import MegatraceError
from megatrace.schema import CAUSES
from megatrace.schema.processes import rank_text
from megatrace.tui.dialogs import Help, help_text
from megatrace.tui.lanes import F8, Lane, Lanes, covered
from megatrace.tui.lines import Lines, line
from megatrace.tui.numbers import clock_text, number
from megatrace.tui.palette import GLYPHS, Palette, palette
from megatrace.tui.replay import CaptureSource

_LABEL = 14
_MOST = 8
"""Records that are told under the cursor."""


class LaneView(Lines, can_focus=True):
    """The lanes of one launch; the cursor is a warp and a moment."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left", "move(-1, 0)", "Left", show=False),
        Binding("right", "move(1, 0)", "Right", show=False),
        Binding("shift+left", "move(-10, 0)", "Left", show=False),
        Binding("shift+right", "move(10, 0)", "Right", show=False),
        Binding("up,k", "move(0, -1)", "Up", show=False),
        Binding("down,j", "move(0, 1)", "Down", show=False),
        Binding("home", "all", "All", show=False),
        Binding("plus,equals_sign,z", "zoom(0.5)", "Zoom in", key_display="+"),
        Binding("minus,Z", "zoom(2)", "Zoom out", key_display="-"),
        Binding("0", "all", "All"),
        Binding("n", "record(1)", "Next stall"),
        Binding("N", "record(-1)", "Stall before", show=False),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._lanes: Lanes | None = None
        self._begin = 0.0
        self._length = 1.0
        self._moment = 0.0
        self._lane = 0
        self._drawn: dict[int, list[tuple[str, Style]]] = {}

    def show(self, lanes: Lanes) -> None:
        """Show a launch, all of it."""
        self._lanes = lanes
        self._lane = min(self._lane, len(lanes.lanes) - 1)
        self.virtual_size = Size(self.width, len(lanes.lanes) + 2)
        self.action_all()

    @property
    def _columns(self) -> int:
        return max(1, self.width - _LABEL - 1)

    @property
    def _edges(self) -> F8:
        edges: F8 = self._begin + self._length * np.arange(self._columns + 1) / self._columns
        return edges

    def on_resize(self) -> None:
        """Draw anew."""
        self._redraw()

    def _redraw(self) -> None:
        self._drawn.clear()
        self.refresh()
        if self._lanes is not None:
            screen = self.screen
            if isinstance(screen, TimelineScreen):
                screen.tell(self._lanes, self._lane, self._moment, self._length / self._columns)

    def draw(self, y: int, width: int, colours: Palette, base: Style) -> Strip:
        """The scale, or a lane."""
        at = y - 1 + self.top
        lanes = self._lanes
        if lanes is None or at >= len(lanes.lanes):
            return line([], width, base)
        return line(self._scale(colours) if y == 0 else self._line(lanes, at, colours), width, base)

    def _line(self, lanes: Lanes, at: int, colours: Palette) -> list[Segment]:
        lane = lanes.lanes[at]
        if at not in self._drawn:
            self._drawn[at] = _draw(lanes, lane, self._edges, colours)
        mine = at == self._lane
        style = colours.style("strong" if mine else "dim")
        label = f"{'▸' if mine else ' '}{lane.label}"[: _LABEL - 1].ljust(_LABEL)
        out = [Segment(label, style + (Style(bold=True) if mine else Style.null()))]
        cursor = int((self._moment - self._begin) / self._length * self._columns)
        for column, (glyph, cell) in enumerate(self._drawn[at]):
            if column == cursor:
                behind = colours.style("strong") if mine else cell
                out.append(Segment("┃" if mine else glyph, behind))
            else:
                out.append(Segment(glyph, cell))
        return list(Segment.simplify(out))

    def _scale(self, colours: Palette) -> list[Segment]:
        """Ticks in us, as round as they can be."""
        step = 10 ** np.floor(np.log10(max(1e-9, self._length / 1000 / 4)))
        for times in (5, 2):
            if self._length / 1000 / (times * step) >= 3:
                step *= times
                break
        text = [" "] * self._columns
        first = np.ceil(self._begin / 1000 / step) * step
        for tick in np.arange(first, (self._begin + self._length) / 1000 + 1e-9, step):
            column = int((tick * 1000 - self._begin) / self._length * self._columns)
            label = f"╷{tick:,.{max(0, int(-np.floor(np.log10(step))))}f}"
            if column + len(label) <= self._columns:
                text[column : column + len(label)] = label
        return [Segment("us".rjust(_LABEL - 1) + " " + "".join(text), colours.style("dim"))]

    def action_move(self, right: int, down: int) -> None:
        """Move the cursor; at an edge of the screen the time goes on."""
        if self._lanes is None:
            return
        self._lane = max(0, min(self._lane + down, len(self._lanes.lanes) - 1))
        self._go_to(self._moment + right * self._length / self._columns)
        self.scroll_to_region(
            Region(0, self._lane, 1, 3), animate=False, force=True, immediate=True
        )

    def _go_to(self, moment: float) -> None:
        assert self._lanes is not None
        self._moment = max(0.0, min(moment, float(self._lanes.length_ns)))
        if not self._begin <= self._moment < self._begin + self._length:
            self._begin = self._moment - self._length / 2
        self._begin = max(0.0, min(self._begin, self._lanes.length_ns - self._length))
        self._redraw()

    def action_zoom(self, by: float) -> None:
        """Show less or more of the time, around the cursor."""
        if self._lanes is None:
            return
        length = max(50.0, min(self._length * by, float(self._lanes.length_ns)))
        share = (self._moment - self._begin) / self._length
        self._begin = self._moment - share * length
        self._length = length
        self._go_to(self._moment)

    def action_all(self) -> None:
        """Show the whole launch."""
        if self._lanes is not None:
            self._begin, self._length = 0.0, float(self._lanes.length_ns)
            self._go_to(self._moment)

    def action_record(self, by: int) -> None:
        """Go to the next or last stall of this warp."""
        if self._lanes is None:
            return
        lane = self._lanes.lanes[self._lane]
        stalls = np.array([bool(event.cause) for event in self._lanes.events])
        if not len(lane.event):
            return
        begins = lane.begin[stalls[lane.event] & (lane.dur > 0)]
        ahead = begins[begins > self._moment + 1] if by > 0 else begins[begins < self._moment - 1]
        if len(ahead):
            self._go_to(float(ahead.min() if by > 0 else ahead.max()))


def _draw(lanes: Lanes, lane: Lane, edges: F8, colours: Palette) -> list[tuple[str, Style]]:
    """A glyph and its style for every column."""
    columns = len(edges) - 1
    causes = np.array([event.cause for event in lanes.events])
    stalls = np.zeros((len(CAUSES), columns))
    for slot, cause in enumerate(CAUSES):
        of = causes == cause.value
        if len(lane.event) and of.any():
            stalls[slot] = covered(lane, of[lane.event], edges)
    spans = [i for i, event in enumerate(lanes.events) if event.kind == "span"]
    inside = np.zeros((len(spans) + 1, columns))
    for row, event in enumerate(spans):
        if len(lane.event):
            inside[row] = covered(lane, lane.event == event, edges)
    end = lane.end_ns if lane.end_ns >= 0 else edges[-1]
    middles = (edges[:-1] + edges[1:]) / 2
    runs = (middles >= lane.begin_ns) & (middles <= end)
    out = []
    for column in range(columns):
        worst = int(stalls[:, column].argmax())
        best = int(inside[:, column].argmax())
        if stalls[:, column].sum() >= 0.5:
            name = CAUSES[worst].value
            out.append(("█" if colours.colour else GLYPHS[name], colours.style(name)))
        elif inside[best, column] > 0.1:
            letter = lanes.events[spans[best]].name[0]
            out.append(("▆" if colours.colour else letter, colours.span(best)))
        else:
            out.append(("─", colours.style("dim")) if runs[column] else (" ", Style.null()))
    return out


class TimelineScreen(Screen[None]):
    """The lanes of one launch, and the records under the cursor."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,backspace", "app.pop_screen", "Back", key_display="esc"),
        Binding("left_square_bracket", "step(-1)", "Step", key_display="[ ]"),
        Binding("right_square_bracket", "step(1)", "Next step", show=False),
        Binding("question_mark", "help", "Help", key_display="?"),
        Binding("q", "app.quit", "Quit"),
    ]

    def __init__(
        self, source: CaptureSource, rank: int, layer: tuple[str, int], *, sm: int | None,
        role: str,
    ) -> None:  # fmt: skip
        super().__init__()
        self._source = source
        self._rank = rank
        self._of_layer = layer
        self._sm = sm
        self._role = role
        self._lanes: Lanes | None = None

    def compose(self) -> ComposeResult:
        """Title, lanes, what is under the cursor."""
        yield Static("", id="lanes-title", markup=False)
        yield LaneView()
        yield Static("", id="lanes-legend")
        yield Static("", id="lanes-record")
        yield Footer(show_command_palette=False, compact=True)

    def on_mount(self) -> None:
        """Decode the launch: in a thread, a long one takes a while."""
        self.query_one(LaneView).focus()
        self._load()

    def on_resize(self) -> None:
        """Break the legend anew."""
        self._show_legend()

    def action_help(self) -> None:
        """Show the keys."""
        self.app.push_screen(Help(help_text(live=False)))

    def _load(self) -> None:
        self.query_one("#lanes-title", Static).update(" reading ...")
        self.run_worker(self._decode, thread=True, exclusive=True)

    def _decode(self) -> None:
        worker = get_current_worker()
        try:
            lanes = self._source.lanes(self._rank, self._of_layer, sm=self._sm, role=self._role)
            text = "" if lanes is not None else "this step has no such launch"
        except MegatraceError as error:
            lanes, text = None, str(error)
        if not worker.is_cancelled:
            self.app.call_from_thread(self._show, lanes, text)

    def _show(self, lanes: Lanes | None, text: str) -> None:
        title = self.query_one("#lanes-title", Static)
        if lanes is None:
            title.update(f" {text}")
            return
        kernel, layer = self._of_layer
        words = [
            f" {kernel} layer {layer}", f"rank {rank_text(self._rank)}", lanes.title,
            f"step {lanes.step}",
            f"{number(lanes.length_ns / 1000)} us", f"clock {clock_text(lanes.error_ns)}",
        ]  # fmt: skip
        lost = sum(lane.lost_lines for lane in lanes.lanes)
        if lost:
            words.append(f"{lost:,} lines lost in it")
        if not self._source.poll()[0].timed:
            words.append("cpu: no verdict")
        title.update(" · ".join(words))
        self._lanes = lanes
        self._show_legend()
        self.query_one(LaneView).show(lanes)

    def _show_legend(self) -> None:
        if self._lanes is not None:
            text = self._legend(self._lanes, self.size.width)
            self.query_one("#lanes-legend", Static).update(text)

    def _legend(self, lanes: Lanes, width: int) -> Text:
        """Causes and phases, in as many lines of ``width`` as they take."""
        colours = palette(dark=self.app.current_theme.dark)
        spans = [event for event in lanes.events if event.kind == "span"]
        items = [
            (
                "■" if colours.colour else GLYPHS[cause.value],
                cause.value,
                colours.style(cause.value),
            )
            for cause in CAUSES
            if any(event.cause == cause.value for event in lanes.events)
        ]
        items += [
            ("▆" if colours.colour else event.name[0], event.name, colours.span(at))
            for at, event in enumerate(spans)
        ]
        items.append(("─", "in the launch", colours.style("dim")))
        text, used = Text(" "), 1
        for glyph, name, style in items:
            if used > 1 and used + len(name) + 2 > width:
                text.append("\n ")
                used = 1
            text.append(glyph, style)
            text.append(f" {name}  ", colours.style("dim"))
            used += len(name) + 4
        return text

    def tell(self, lanes: Lanes, at: int, moment: float, width: float) -> None:
        """Say which records lie under the cursor, within a column's ``width``."""
        colours = palette(dark=self.app.current_theme.dark)
        lane = lanes.lanes[at]
        text = Text(f" {lane.label.strip()} at {moment / 1000:,.3f} us", colours.style("strong"))
        end = lane.begin + np.maximum(lane.dur, 0)
        rows = np.flatnonzero((lane.begin < moment + width) & (end >= moment))
        rows = rows[np.argsort(-lane.dur[rows], kind="stable")]
        for row in rows[:_MOST].tolist():
            event = lanes.events[int(lane.event[row])]
            dur = int(lane.dur[row])
            slot = f" slot {lane.slot[row]}" if lane.slot[row] >= 0 else ""
            took = f" {dur / 1000:,.3f} us" if dur > 0 else " end lost" if dur < 0 else ""
            style = colours.style(event.cause) if event.cause else colours.style("text")
            text.append(f"\n {event.name}", style)
            text.append(f" {event.cause or event.kind}{slot}{took}")
            text.append(f"  from {lane.begin[row] / 1000:,.3f} us", colours.style("dim"))
        if len(rows) > _MOST:
            text.append(f"\n and {len(rows) - _MOST:,} more: + shows them apart")
        self.query_one("#lanes-record", Static).update(text)

    def action_step(self, by: int) -> None:
        """The same warps in another step."""
        self._source.turn(by, self._rank)
        self._load()
