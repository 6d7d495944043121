"""The table of stalls: a row a layer, or a row a role."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.segment import Segment

from megatrace.tui.bars import spark, stacked
from megatrace.tui.model import CLASSES, Frame, Row
from megatrace.tui.numbers import late_text, percent, time_text, unit_text
from megatrace.tui.palette import Palette, palette, segment
from megatrace.tui.reading import MAX_POINTS
from megatrace.tui.table import Cells, Column, Table

_MARK = " ▼"


def layer_columns(frame: Frame, rows: Sequence[Row], sort: str) -> list[Column]:
    """Columns of the overview; the one it is sorted by has a mark, empty ones are left out."""
    late = "late/prefetches" if frame.whole_uses else "late uses"
    wide = max((len(row.label) for row in rows), default=0)
    columns = [
        Column("layer", "layer", max(7, wide), right=False, keep=99),
        *_time_columns(frame, rows),
        Column("bar", _bar_title(frame), 16, right=False, grows=True, keep=95),
        *_cause_columns(rows, keep=30),
        *_sync_columns(frame, rows),
    ]
    if any(row.uses for row in rows):
        columns.append(Column("late", late, len(late), keep=60))
    points = max((len(row.series) for row in rows), default=0)
    if points:
        columns.append(
            Column("spark", "trend", max(6, min(MAX_POINTS, points)), right=False, keep=50)
        )
    return [_marked(column) if column.name == sort else column for column in columns]


def role_columns(frame: Frame, rows: Sequence[Row], title: str = "role") -> list[Column]:
    """Columns of the table of roles."""
    return [
        Column("layer", title, max(12, len(title)), right=False, keep=99),
        *_time_columns(frame, rows),
        Column("bar", _bar_title(frame), 16, right=False, grows=True, keep=95),
        *_cause_columns(rows, keep=60),
        *_sync_columns(frame, rows),
    ]


def _bar_title(frame: Frame) -> str:
    return "stalls, by cause" if frame.counted else "warp time"


def _time_columns(frame: Frame, rows: Sequence[Row]) -> list[Column]:
    """Where only counters run nobody knows how long a launch takes."""
    title = f"{unit_text(frame.unit)}/launch"
    found = []
    if any(row.time is not None for row in rows):
        found.append(Column("time", title, max(10, len(title)), keep=90))
    if any(row.share is not None for row in rows):
        found.append(Column("share", "share", 6, keep=40))
    if any(row.floor is not None for row in rows):
        found.append(Column("floor", "of floor", 8, keep=65))
    return found


def _sync_columns(frame: Frame, rows: Sequence[Row]) -> list[Column]:
    title = f"sync {unit_text(frame.unit)}"
    known = any(row.sync is not None for row in rows)
    return [Column("sync", title, max(9, len(title)), keep=70)] if known else []


def _cause_columns(rows: Sequence[Row], keep: int) -> list[Column]:
    return [
        Column(name, name, 6, keep=keep)
        for slot, name in enumerate(CLASSES[:-1])
        if any(row.bar[slot] >= 0.0005 for row in rows)
    ]


def _marked(column: Column) -> Column:
    return Column(
        column.name, column.title + _MARK, max(column.width, len(column.title) + 2),
        column.right, column.grows, column.keep,
    )  # fmt: skip


class StallTable(Table):
    """Rows of :class:`~megatrace.tui.model.Row`."""

    def show(self, rows: Sequence[Row], *, unit: str, whole_uses: bool, timed: bool) -> None:
        """Show ``rows``; ``timed`` False: late is no verdict here."""
        colours = palette(dark=self.app.current_theme.dark)
        self.set_rows(len(rows), _cells(rows, colours, unit=unit, whole=whole_uses, timed=timed))


_Text = Callable[[Row], tuple[str, str]]
"""The text of a cell, and the name of its style or ""."""


def _cells(rows: Sequence[Row], colours: Palette, *, unit: str, whole: bool, timed: bool) -> Cells:
    """Who draws the cells of ``rows``."""
    texts = _texts(unit, whole=whole, timed=timed)
    names = ("strong", "dim", "warn", *CLASSES)
    styles = {"": None, **{name: colours.style(name) for name in names}}

    def cell(at: int, column: Column, width: int) -> list[Segment]:
        row, name = rows[at], column.name
        if name == "bar":
            return stacked(row.bar, width, colours)
        if name == "spark":
            return spark(row.series, width, colours)
        text, style = texts[name](row)
        if not text:
            return []
        return [segment((text, styles[style], None))]

    return cell


def _texts(unit: str, *, whole: bool, timed: bool) -> dict[str, _Text]:
    def share_of(slot: int, name: str) -> _Text:
        def text(row: Row) -> tuple[str, str]:
            share = row.bar[slot]
            return (percent(share), name) if share >= 0.0005 else ("", "")

        return text

    def late(row: Row) -> tuple[str, str]:
        if not timed:
            return ("cpu", "dim") if row.uses else ("", "")
        text = late_text(row.late, row.uses, row.unseen, whole=whole)
        return text, "warn" if row.uses and row.late > 0.1 * row.uses else ""

    return {
        "layer": lambda row: (row.label, "strong"),
        "time": lambda row: (time_text(row.time, unit), ""),
        "share": lambda row: (percent(row.share), "dim"),
        "floor": lambda row: (percent(row.floor), ""),
        **{name: share_of(slot, name) for slot, name in enumerate(CLASSES)},
        "sync": lambda row: (time_text(row.sync, unit) if row.sync else "", ""),
        "late": late,
    }
