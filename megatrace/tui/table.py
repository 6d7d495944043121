"""A table that draws only the lines that can be seen, each cell as segments.

Textual's own table costs ten times as much for a row that changes four times a second.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Region, Size
from textual.message import Message
from textual.strip import Strip

from megatrace.tui.lines import Line, Lines
from megatrace.tui.palette import Palette, over, segment, styles_on

GAP = 2


@dataclass(frozen=True, slots=True)
class Column:
    """A column of ``width`` cells, or at least that where it ``grows`` with the screen.

    ``keep``: columns of the lowest number go first where the screen is narrow, all together.
    """

    name: str
    title: str
    width: int
    right: bool = True
    grows: bool = False
    keep: int = 9


Cells = Callable[[int, Column, int], "list[Segment]"]


class Table(Lines, can_focus=True):
    """Rows under a header, one of them the cursor's.

    ``set_rows`` says how many there are and who draws a cell: ``cell(row, column, width)``.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", "Up", show=False),
        Binding("down,j", "move(1)", "Down", show=False),
        Binding("pageup", "page(-1)", "Page up", show=False),
        Binding("pagedown", "page(1)", "Page down", show=False),
        Binding("home,g", "jump(0)", "First", show=False),
        Binding("end,G", "jump(-1)", "Last", show=False),
        Binding("enter", "open", "Open"),
    ]

    class Opened(Message):
        """A row was chosen."""

        def __init__(self, table: Table, row: int) -> None:
            super().__init__()
            self.table = table
            self.row = row

        @property
        def control(self) -> Table:
            """The table."""
            return self.table

    class Moved(Opened):
        """The cursor is on another row."""

    def __init__(self, columns: Sequence[Column], *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._columns = tuple(columns)
        self._cell: Cells = lambda row, column, width: []
        self._rows = 0
        self._cursor = 0
        self._fit: list[tuple[Column, int]] = []
        self._fitted = -1
        """The width that ``_fit`` is for."""
        self._empty = ""

    @property
    def cursor(self) -> int:
        """The row that is chosen."""
        return self._cursor

    def move_to(self, row: int) -> None:
        """Choose another row, the nearest there is."""
        row = max(0, min(row, self._rows - 1))
        if row != self._cursor:
            self._cursor = row
            self.refresh()
            self._show_cursor()
            self.post_message(self.Moved(self, row))

    def say(self, text: str) -> None:
        """What stands where there are no rows."""
        if text != self._empty:
            self._empty = text
            self.redraw()

    def set_columns(self, columns: Sequence[Column]) -> None:
        """Other columns from now on."""
        if tuple(columns) != self._columns:
            self._columns = tuple(columns)
            self._fitted = -1
            self.refresh()

    def set_rows(self, rows: int, cell: Cells) -> None:
        """Draw ``rows`` rows by ``cell`` from now on; lines that stay as they are are not."""
        self._cell = cell
        if rows != self._rows:
            self._rows = rows
            self._cursor = max(0, min(self._cursor, rows - 1))
            self._resize()
            self.refresh()
        else:
            self.redraw()

    def on_resize(self) -> None:
        """Fit the rows."""
        self._resize()

    def _resize(self) -> None:
        self.virtual_size = Size(self.width, self._rows + 1)

    def _fitting(self, room: int) -> list[tuple[Column, int]]:
        """Leave out what there is no room for, least kept first; the rest may grow."""
        columns = list(self._columns)

        def need() -> int:
            return sum(c.width for c in columns) + GAP * (len(columns) - 1)

        while need() > room and len(columns) > 1:
            least = min(column.keep for column in columns)
            columns = [column for column in columns if column.keep > least] or columns[:1]
        growing = sum(column.grows for column in columns)
        more = max(0, room - need()) // growing if growing else 0
        return [(column, column.width + more * column.grows) for column in columns]

    def draw(self, y: int, width: int, colours: Palette, base: Style) -> Strip:
        """The header, or the row that is scrolled to line ``y``."""
        if width != self._fitted:
            self._fit, self._fitted = self._fitting(width), width
        if y == 0:
            style = over(over(base, colours.style("strong")), colours.behind("header"))
            return self._line(self._header(), width, style)
        row = y - 1 + self.top
        if row >= self._rows:
            text = self._empty if not self._rows and y == 2 else ""
            return Strip([Segment(f"  {text}".ljust(width)[:width], base)], width)
        if row == self._cursor and self.can_focus:
            base = over(base, colours.behind("cursor") if self.has_focus else Style(bold=True))
        cells = [(self._cell(row, column, size), column, size) for column, size in self._fit]
        return self._line(cells, width, base)

    def _header(self) -> list[tuple[list[Segment], Column, int]]:
        return [([Segment(column.title)], column, size) for column, size in self._fit]

    def _line(
        self, cells: Sequence[tuple[list[Segment], Column, int]], width: int, base: Style
    ) -> Strip:
        out: list[Segment] = []
        styles = styles_on(base)
        plain = ""  # text of the base's own style that is not yet in ``out``
        gap = done = 0
        for segments, column, size in cells:
            used = 0
            for text, _, _ in segments:
                used += len(text)
            if used > size:
                segments, used = list(Strip(segments).crop(0, size)), size
            blank = size - used
            plain += " " * (gap + blank if column.right else gap)
            for text, style, _ in segments:
                if style is None:
                    plain += text
                    continue
                on, bare = styles[style]
                if bare and (not plain or plain.isspace()):
                    # Blanks before a text go with it: half as many pieces to draw.
                    out.append(segment((plain + text, on, None)))
                else:
                    if plain:
                        out.append(segment((plain, base, None)))
                    out.append(segment((text, on, None)))
                plain = ""
            if blank and not column.right:
                plain += " " * blank
            done += gap + size
            gap = GAP
        plain += " " * (width - done)
        if plain:
            out.append(segment((plain, base, None)))
        return Line(out, width)

    def action_move(self, by: int) -> None:
        """Move the cursor."""
        self.move_to(self._cursor + by)

    def action_page(self, by: int) -> None:
        """Move the cursor by a screenful."""
        self.move_to(self._cursor + by * max(1, self.size.height - 2))

    def action_jump(self, to: int) -> None:
        """Go to the first or last row."""
        self.move_to(to if to >= 0 else self._rows - 1)

    def action_open(self) -> None:
        """Choose the row."""
        if self._rows:
            self.post_message(self.Opened(self, self._cursor))

    def on_click(self, event: events.Click) -> None:
        """A click moves the cursor, another on the same row opens it."""
        row = event.y - 1 + self.top
        if event.y < 1 or row >= self._rows:
            return
        if row == self._cursor and self.can_focus:
            self.action_open()
        self.move_to(row)

    def _show_cursor(self) -> None:
        self.scroll_to_region(
            Region(0, self._cursor, 1, 2), animate=False, force=True, immediate=True
        )
