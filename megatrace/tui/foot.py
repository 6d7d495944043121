"""The line below the tables: which view is in front, and what the colours mean."""

from __future__ import annotations

from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip

from megatrace.tui.bars import legend
from megatrace.tui.lines import Lines, line
from megatrace.tui.palette import Palette


class Foot(Lines):
    """One line; :meth:`show` says what it shows."""

    def __init__(self) -> None:
        super().__init__()
        self._shown: tuple[tuple[str, ...], str, tuple[str, ...], bool] = ((), "", (), False)

    def show(
        self, views: tuple[str, ...], front: str, words: tuple[str, ...], *, counted: bool
    ) -> None:
        """``views`` with ``front`` marked, ``words`` of what is chosen, the legend."""
        shown = (views, front, words, counted)
        if shown != self._shown:
            self._shown = shown
            self.redraw()

    def draw(self, y: int, width: int, colours: Palette, base: Style) -> Strip:
        """The line."""
        views, front, words, counted = self._shown
        left = [Segment(" ")]
        for number, view in enumerate(views, 1):
            style = colours.style("strong" if view == front else "dim")
            mark = f"[{number} {view}]" if view == front else f" {number} {view} "
            left.append(Segment(mark, style))
        left += [Segment(f"  {word}", colours.style("warn")) for word in words]
        right = legend(colours, counted=counted)
        gap = width - sum(len(segment.text) for segment in (*left, *right))
        return line([*left, Segment(" " * gap), *right] if gap > 0 else left, width, base)
