"""The map: a cell an SM for every role, hot where its warps stall."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Region, Size
from textual.message import Message
from textual.strip import Strip

from megatrace.schema import CAUSES
from megatrace.tui.lines import Lines
from megatrace.tui.lines import line as line_of
from megatrace.tui.model import F8
from megatrace.tui.numbers import percent
from megatrace.tui.palette import HEAT_GLYPHS, Palette, segment

_CELL = 2
_LABEL = 5


@dataclass(frozen=True, slots=True)
class _Line:
    """A line of the map: the cells ``[first, last)`` of a role, or its name where first < 0."""

    role: int
    first: int
    last: int = 0


class HeatMap(Lines, can_focus=True):
    """Places x roles, wrapped to the width; arrows move, enter opens a place."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left", "move(-1, 0)", "Left", show=False),
        Binding("right", "move(1, 0)", "Right", show=False),
        Binding("up,k", "move(0, -1)", "Up", show=False),
        Binding("down,j", "move(0, 1)", "Down", show=False),
        Binding("enter", "open", "Open"),
    ]

    class Opened(Message):
        """A place was chosen."""

        def __init__(self, place: int, role: int) -> None:
            super().__init__()
            self.place = place
            self.role = role

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._share: F8 = np.zeros((0, 0))
        self._by_cause: F8 = np.zeros((0, 0, 0))
        self._places: tuple[int, ...] = ()
        self._roles: tuple[str, ...] = ()
        self._kind = "SM"
        self._counted = False
        self._at = (0, 0)
        """Place and role under the cursor."""
        self._lines: tuple[_Line, ...] = ()
        self._row = 1
        self._range = (0.0, 1.0)
        """Shares of the coldest and the hottest colour."""
        self.hint = ""

    def show(
        self, places: tuple[int, ...], roles: tuple[str, ...], share: F8, by_cause: F8, *,
        kind: str, counted: bool,
    ) -> None:  # fmt: skip
        """Show shares ``(places, roles)``; nan where nothing ran."""
        known = ~np.isnan(share).all(axis=0) if share.size else np.zeros(len(roles), bool)
        ran = np.flatnonzero(known)
        shape = (places, tuple(roles[i] for i in ran), kind)
        fresh = shape != (self._places, self._roles, self._kind)
        self._share, self._by_cause = share[:, ran], by_cause[:, ran]
        self._places, self._roles, self._kind = shape
        self._counted = counted
        self._range = _range(self._share)
        if fresh:
            self._lay_out()
        else:
            self.redraw()

    @property
    def chosen(self) -> int | None:
        """The place under the cursor; None on an empty map."""
        return self._places[self._at[0]] if self._places else None

    def on_resize(self) -> None:
        """Wrap anew."""
        self._lay_out()

    def _lay_out(self) -> None:
        self._row = max(1, (self.width - _LABEL - 1) // _CELL)
        lines = []
        for role in range(len(self._roles)):
            lines.append(_Line(role, -1))
            lines += [
                _Line(role, first, min(first + self._row, len(self._places)))
                for first in range(0, len(self._places), self._row)
            ]
        self._lines = tuple(lines)
        place, role = self._at
        self._at = (
            max(0, min(place, len(self._places) - 1)), max(0, min(role, len(self._roles) - 1)),
        )  # fmt: skip
        self.virtual_size = Size(self.width, len(lines) + 2)
        self.refresh()

    def draw(self, y: int, width: int, colours: Palette, base: Style) -> Strip:
        """A line of the map; the first says what is under the cursor, the second the scale."""
        at = y - 2 + self.top
        if y == 0:
            segments = self._caption(colours)
        elif y == 1:
            segments = self._scale(colours)
        else:
            segments = self._cells(self._lines[at], colours) if at < len(self._lines) else []
        return line_of(segments, width, base)

    def _caption(self, colours: Palette) -> list[Segment]:
        if not self._places:
            return [Segment(f" {self._kind} map: nothing ran yet", colours.style("dim"))]
        place, role = self._at
        share = self._share[place, role]
        title = f" {self._kind} {self._places[place]} {self._roles[role]} "
        if np.isnan(share):
            return [Segment(title, colours.style("strong")), Segment("did not run")]
        out = [
            Segment(title, colours.style("strong")),
            Segment(f"{percent(float(share))} stalled "),
        ]
        for slot, cause in enumerate(CAUSES):
            part = float(self._by_cause[place, role, slot])
            if part >= 0.0005:
                out.append(Segment(f" {cause.value} {percent(part)}", colours.style(cause.value)))
        return out

    def _scale(self, colours: Palette) -> list[Segment]:
        of = "of the most any block stalled" if self._counted else "of warp time stalled"
        low, high = (f"{100 * share:.0f}" for share in self._range)
        steps = np.linspace(0, 1, len(HEAT_GLYPHS))
        ramp = [colours.heat(float(step)) for step in steps]
        dim = colours.style("dim")
        return [
            Segment(f" {low} ", dim),
            *(Segment(text[:1], style) for text, style in ramp),
            Segment(f" {high} % {of}  {self.hint}", dim),
        ]

    def _cells(self, line: _Line, colours: Palette) -> list[Segment]:
        if line.first < 0:
            return [Segment(f" {self._roles[line.role]}", colours.style("strong"))]
        out = [Segment(f"{self._places[line.first]:>{_LABEL - 1}} ", colours.style("dim"))]
        low, high = self._range
        shares = self._share[line.first : line.last, line.role].tolist()
        chosen = self._at[0] if self._at[1] == line.role and self.has_focus else -1
        text, style = "", Style.null()  # neighbours of one colour are one piece
        for place, share in enumerate(shares, line.first):
            if place == chosen:
                cell, its = "[]", colours.style("strong") + Style(bold=True)
            elif share != share:
                cell, its = "  ", Style.null()
            else:
                cell, its = colours.heat((share - low) / (high - low))
            if its is style:
                text += cell
                continue
            if text:
                out.append(segment((text, style, None)))
            text, style = cell, its
        out.append(segment((text, style, None)))
        return out

    def action_move(self, right: int, down: int) -> None:
        """Move the cursor; over the last line of a role to the next role."""
        if not self._places:
            return
        place, role = self._at
        place += right + down * self._row
        if down and not 0 <= place < len(self._places):
            inside = place % self._row
            role += down
            if not 0 <= role < len(self._roles):
                return
            last = (len(self._places) - 1) // self._row * self._row
            place = inside if down > 0 else min(last + inside, len(self._places) - 1)
        self._at = (max(0, min(place, len(self._places) - 1)), role)
        self.refresh()
        self._show_cursor()

    def _show_cursor(self) -> None:
        place, role = self._at
        for at, line in enumerate(self._lines):
            if line.role == role and line.first <= place < line.last and line.first >= 0:
                region = Region(0, max(0, at - 1), 1, 4)
                self.scroll_to_region(region, animate=False, force=True, immediate=True)

    def action_open(self) -> None:
        """Choose the place."""
        if self._places:
            place, role = self._at
            self.post_message(self.Opened(self._places[place], role))

    def on_click(self, event: events.Click) -> None:
        """A click moves the cursor, another opens the place."""
        at = event.y - 2 + self.top
        if event.y < 2 or at >= len(self._lines) or self._lines[at].first < 0:
            return
        line = self._lines[at]
        place = line.first + (event.x - _LABEL) // _CELL
        if not line.first <= place < line.last:
            return
        if (place, line.role) == self._at:
            self.action_open()
        self._at = (place, line.role)
        self.refresh()


def _range(share: F8) -> tuple[float, float]:
    """From the coldest to the hottest, in whole tenths and at least two of them."""
    known = share[~np.isnan(share)]
    if not known.size:
        return 0.0, 1.0
    low = np.floor(10 * float(known.min()) + 1e-9) / 10
    high = np.ceil(10 * float(known.max()) - 1e-9) / 10
    if high - low < 0.2:
        low, high = (low, low + 0.2) if low < 0.8 else (high - 0.2, high)
    return max(0.0, float(low)), min(1.0, float(high))
