"""The lines above every table: where it comes from and how far it can be trusted."""

from __future__ import annotations

from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip

from megatrace.tui.lines import Lines, line
from megatrace.tui.model import Status
from megatrace.tui.palette import Palette, over
from megatrace.tui.text import facts_of

_STATES = {
    "live": ("● live", "good"),
    "replay": ("■ capture", "dim"),
    "waiting": ("◌ waiting", "warn"),
    "ended": ("◌ ended", "warn"),
    "loading": ("… reading", "warn"),
    "failed": ("✗ failed", "bad"),
}


class Head(Lines):
    """Three lines; :meth:`show` redraws them only where they change."""

    def __init__(self, product: str) -> None:
        super().__init__()
        self._product = product
        self._status = Status("", "waiting", "")
        self._flags: tuple[str, ...] = ()

    def show(self, status: Status, flags: tuple[str, ...] = ()) -> None:
        """``flags`` stand beside the state: FROZEN, a filter, a rank."""
        before, self._status = self._status, status
        titles = [(s.title, s.state, s.text) for s in (before, status)]
        changed = {0} if titles[0] != titles[1] or flags != self._flags else set()
        self._flags = flags
        if status is not before and status != before:
            changed.add(1)  # rates and sizes: nearly always
        if status.notes != before.notes:
            changed.add(2)
        if changed:
            self.redraw(changed)

    def draw(self, y: int, width: int, colours: Palette, base: Style) -> Strip:
        """One of the three lines."""
        segments = (self._title, self._facts, self._notes)[y](colours, width) if y < 3 else []
        return line(segments, width, over(base, colours.behind("header")) if y == 0 else base)

    def _title(self, colours: Palette, width: int) -> list[Segment]:
        badge, style = _STATES.get(self._status.state, (self._status.state, ""))
        right = "  ".join(part for part in (*self._flags, self._status.text) if part)
        end = [Segment(f"{right}  ", colours.style("warn")), Segment(badge, colours.style(style))]
        room = width - sum(segment.cell_length for segment in end) - 3
        left = f" {self._product}  "
        title = _shorten(self._status.title, max(0, room - len(left)))
        start = [Segment(left, colours.style("strong")), Segment(title)]
        used = len(left) + len(title)
        return [*start, Segment(" " * max(1, room + 2 - used)), *end]

    def _facts(self, colours: Palette, width: int) -> list[Segment]:
        out: list[Segment] = [Segment(" ")]
        used = 1
        for text, style in facts_of(self._status):
            # What does not fit whole is left out: half a number is worse than none.
            need = len(text) + (3 if len(out) > 1 else 0)
            if used + need > width:
                continue
            if len(out) > 1:
                out.append(Segment(" · ", colours.style("dim")))
            out.append(Segment(text, colours.style(style) if style else Style.null()))
            used += need
        return out

    def _notes(self, colours: Palette, width: int) -> list[Segment]:
        text = _shorten(" · ".join(self._status.notes), width - 2)
        return [Segment(f" {text}", colours.style("warn"))]


def _shorten(text: str, width: int) -> str:
    return text if len(text) <= width else text[: max(0, width - 1)] + "…"
