"""Ranks side by side: how each one is, and the time of every layer on each."""

from __future__ import annotations

import numpy as np
from rich.segment import Segment
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.widgets import Static

from megatrace.schema.processes import rank_text
from megatrace.tui.bars import stacked
from megatrace.tui.model import Frame, RankState, Status, rank_bar
from megatrace.tui.numbers import clock_text, number, time_text, unit_text
from megatrace.tui.palette import palette
from megatrace.tui.table import Column, Table

SLOWER = 0.03
"""A rank this far from the median of a layer is marked."""

_COLUMNS = (
    Column("rank", "rank", 5, right=False, keep=99),
    Column("state", "state", 5, right=False, keep=60),
    Column("step", "step", 9, keep=50),
    Column("rate", "steps/s", 8, keep=80),
    Column("every", "1 in", 6, keep=30),
    Column("bar", "warp time", 12, right=False, grows=True, keep=95),
    Column("lost", "lines lost", 10, keep=90),
    Column("clock", "clock", 9, keep=70),
)
_LIVE_ONLY = ("state", "step", "every")


class Ranks(Vertical):
    """Two tables, a row a rank and a column a rank."""

    _title = ""

    def compose(self) -> ComposeResult:
        """The tables."""
        yield Table(_COLUMNS, id="rank-states")
        yield Static("", id="rank-title")
        yield Table((Column("layer", "layer", 6, right=False, keep=99),), id="rank-layers")

    def show(self, status: Status, frame: Frame | None) -> None:
        """Show the state of all ranks."""
        states = status.ranks
        table = self.query_one("#rank-states", Table)
        table.styles.height = min(len(states) + 1, 10) if states else 2
        colours = palette(dark=self.app.current_theme.dark)
        bars = {}
        if frame is not None:
            bars = {rank: rank_bar(frame, rank) for rank in frame.ranks}

        def cell(at: int, column: Column, width: int) -> list[Segment]:
            state = states[at]
            if column.name == "bar":
                return stacked(bars.get(state.rank, ()), width, colours)
            text, style = _state_cell(state, column.name)
            return [Segment(text, colours.style(style) if style else None)]

        replay = status.state == "replay"
        table.set_columns([c for c in _COLUMNS if not replay or c.name not in _LIVE_ONLY])
        table.say("no rank yet")
        table.set_rows(len(states), cell)
        if frame is not None:
            self._show_layers(status, frame)

    def _show_layers(self, status: Status, frame: Frame) -> None:
        table = self.query_one("#rank-layers", Table)
        unit = unit_text(frame.unit)
        columns = [Column("layer", "layer", 7, right=False, keep=999)]
        titles = [f"rank {rank_text(rank)}" for rank in frame.ranks]
        columns += [
            Column(str(at), title, max(6, len(title)), keep=500 - at)
            for at, title in enumerate(titles)
        ]
        table.set_columns(columns)
        colours = palette(dark=self.app.current_theme.dark)
        ran = np.flatnonzero(~np.isnan(frame.time).all(axis=0))
        title = f" {unit} a launch, by layer"
        if len(frame.ranks) > 1 and status.timed:
            title += f"; marked where {100 * SLOWER:.0f} % off the median of the ranks"
        if title != self._title:
            self._title = title
            self.query_one("#rank-title", Static).update(title)
        times = frame.time[:, ran].T.tolist()
        medians = np.nanmedian(frame.time[:, ran], axis=0).tolist()
        marks = status.timed and len(frame.ranks) > 1

        def cell(at: int, column: Column, width: int) -> list[Segment]:
            layer = int(ran[at])
            if column.name == "layer":
                return [Segment(frame.label(layer), colours.style("strong"))]
            time = times[at][int(column.name)]
            off = time / medians[at] - 1
            style = None
            if marks and abs(off) > SLOWER:
                style = colours.style("bad" if off > 0 else "good")
            return [Segment(time_text(time, frame.unit), style)]

        table.say("no launch with a timeline yet")
        table.set_rows(len(ran), cell)


def _state_cell(state: RankState, name: str) -> tuple[str, str]:
    if name == "rank":
        return rank_text(state.rank), "strong"
    if name == "state":
        return ("runs", "good") if state.alive else ("ended", "warn")
    if name == "step":
        return "-" if state.step is None else f"{state.step:,}", ""
    if name == "rate":
        return "-" if state.steps_per_s is None else number(state.steps_per_s), ""
    if name == "every":
        return str(state.every_n or "-"), ""
    if name == "lost":
        return f"{state.lines_lost:,}", "bad" if state.lines_lost else "dim"
    return clock_text(state.clock_error_ns), "dim"
