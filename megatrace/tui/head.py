"""The lines above every table: where it comes from and how far it can be trusted."""

from __future__ import annotations

from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip

from megatrace.tui.lines import Lines, line
from megatrace.tui.model import Status
from megatrace.tui.palette import Palette, over
from megatrace.tui.text import Fact, facts_of

_BETWEEN = " · "

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
        for fact in _fitting(facts_of(self._status), width - 1):
            if len(out) > 1:
                out.append(Segment(_BETWEEN, colours.style("dim")))
            style = colours.style(fact.style) if fact.style else Style.null()
            out.append(Segment(fact.text, style))
        return out

    def _notes(self, colours: Palette, width: int) -> list[Segment]:
        text = _shorten(" · ".join(self._status.notes), width - 2)
        return [Segment(f" {text}", colours.style("warn"))]


def _fitting(facts: list[Fact], width: int) -> list[Fact]:
    """Those that fit whole, for half a number is worse than none: the least weighty go first."""
    shown = list(facts)
    while sum(len(fact.text) + len(_BETWEEN) for fact in shown) - len(_BETWEEN) > width:
        shown.remove(min(shown, key=lambda fact: fact.weight))
    return shown


def _shorten(text: str, width: int) -> str:
    return text if len(text) <= width else text[: max(0, width - 1)] + "…"
