"""A widget of lines that it draws itself: each is drawn once, and again only if it changes.

Most of what a monitor costs is drawing what stands there already.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Self

from rich.segment import Segment
from rich.style import Style
from textual.geometry import Region
from textual.scroll_view import ScrollView
from textual.strip import Strip

from megatrace.tui.palette import Palette, over, palette, segment, styles_on


class Lines(ScrollView, can_focus=False):
    """``draw`` makes a line; :meth:`redraw` after what it shows has changed."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._strips: dict[int, Strip] = {}
        self.top = 0
        """Lines as they stand on the screen, and how far they are scrolled."""
        self._base: Style | None = None

    @property
    def width(self) -> int:
        """Cells of a line, beside the scroll bar."""
        return self.scrollable_content_region.width

    def draw(self, y: int, width: int, colours: Palette, base: Style) -> Strip:
        """Line ``y`` of the screen; ``base`` is the style of an empty cell."""
        raise NotImplementedError

    def redraw(self, only: Collection[int] | None = None) -> None:
        """Refresh the lines that are not what they were; none but ``only`` may be others."""
        width, height = self.width, self.size.height
        colours, base = self._colours()
        changed = []
        for y, before in list(self._strips.items()):
            if only is not None and y not in only:
                continue
            strip = self.draw(y, width, colours, base)
            if strip != before:
                self._strips[y] = strip
                if y < height:
                    changed.append(y)
        if changed:
            super().refresh(*(Region(0, y, width, many) for y, many in _runs(changed)))

    def refresh(self, *regions: Region, **how: bool) -> Self:
        """Draw anew: all, or the lines of ``regions``."""
        if not regions:
            self._strips.clear()
            self._base = None
        return super().refresh(*regions, **how)

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        """Note how far it is scrolled: to ask Textual for every line is slow."""
        super().watch_scroll_y(old_value, new_value)
        if self.top != round(new_value):
            self.top = round(new_value)
            self._strips.clear()

    def render_line(self, y: int) -> Strip:
        """The line as it was drawn, if it was."""
        strip = self._strips.get(y)
        if strip is None:
            colours, base = self._colours()
            strip = self._strips[y] = self.draw(y, self.width, colours, base)
        return strip

    def render_lines(self, crop: Region) -> list[Strip]:
        """The lines of ``crop``, which is of this widget.

        Textual would put borders, padding and filters around every line that has changed:
        there are none of the former, and colours of a palette are as a filter leaves them.
        """
        if not self._colours()[0].colour:
            return super().render_lines(crop)
        lines = [self.render_line(y) for y in range(crop.y, crop.y + crop.height)]
        if crop.x or crop.width < self.width:
            return [strip.crop(crop.x, crop.x + crop.width) for strip in lines]
        return lines

    def _colours(self) -> tuple[Palette, Style]:
        colours = palette(dark=self.app.current_theme.dark)
        if self._base is None:
            # Textual looks this up for every line.
            self._base = over(self.rich_style, colours.style("text"))
        return colours, self._base


class Line(Strip):
    """A strip that can be freed at once: Textual's own remembers itself as its one piece."""

    __slots__ = ()

    def divide(self, cuts: Iterable[int]) -> Sequence[Strip]:
        """The pieces between ``cuts``, cells from the left."""
        within = [cut for cut in cuts if cut <= self.cell_length]
        return [self] if within == [self.cell_length] else super().divide(within)


def _runs(numbers: list[int]) -> Iterator[tuple[int, int]]:
    """Rising numbers as ``(first, how many)`` of those that follow each other."""
    first = last = numbers[0]
    for number in numbers[1:]:
        if number != last + 1:
            yield first, last - first + 1
            first = number
        last = number
    yield first, last - first + 1


def line(segments: list[Segment], width: int, base: Style) -> Strip:
    """``segments`` on ``base``, cut or filled up to ``width`` cells."""
    out = []
    room = width
    styles = styles_on(base)
    for text, style, _ in segments:
        cut = text[:room] if room < len(text) else text
        if cut:
            out.append(segment((cut, base if style is None else styles[style][0], None)))
            room -= len(cut)
    if room > 0:
        out.append(segment((" " * room, base, None)))
    return Line(out, width)
