"""Colours and glyphs: for dark and light, and without colour a glyph for each class."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import cast

from rich.segment import Segment
from rich.style import Style

_DARK = {
    "data": "#56b4e9",
    "space": "#e69f00",
    "input": "#ff6a4d",
    "peer": "#d98fd0",
    "not waiting": "#3f4a46",
    "text": "#d8dee9",
    "dim": "#7d8794",
    "strong": "#ffffff",
    "good": "#7fc97f",
    "bad": "#ff6a4d",
    "warn": "#e6b450",
    "cursor": "#2c3e57",
    "header": "#1c2430",
    "spark": "#8fa8c8",
}
_LIGHT = {
    "data": "#0072b2",
    "space": "#d07f00",
    "input": "#c93a12",
    "peer": "#a4508b",
    "not waiting": "#cdd5cf",
    "text": "#1d232b",
    "dim": "#6a7280",
    "strong": "#000000",
    "good": "#2e7d32",
    "bad": "#b3261e",
    "warn": "#8a5a00",
    "cursor": "#cfe0f5",
    "header": "#e4e9f0",
    "spark": "#4a6a92",
}
_HEAT_DARK = ("#26323d", "#2f5d78", "#3d8f8a", "#c9a63b", "#ff6a4d")
_HEAT_LIGHT = ("#e6ebef", "#a9cbe0", "#6fb3a8", "#e0b040", "#c93a12")
_SPANS_DARK = ("#5f7d6b", "#6b6f96", "#80705f", "#5f7f86", "#7f6680", "#6f7a4f")
_SPANS_LIGHT = ("#a8c2ae", "#b0b3d6", "#cdbca8", "#a9c6cc", "#c9b0ca", "#bcc597")

GLYPHS = {"data": "#", "space": "=", "input": "%", "peer": "@", "not waiting": "."}
"""What a class is drawn with where there are no colours."""
HEAT_GLYPHS = " .:-=+*#%@"
SPARKS = "▁▂▃▄▅▆▇█"


segment = cast(
    "Callable[[tuple[str, Style | None, None]], Segment]", partial(tuple.__new__, Segment)
)
"""``Segment(text, style)`` at a quarter of its price: thousands are made a second."""


@dataclass(frozen=True, slots=True)
class Palette:
    """The styles of one theme."""

    dark: bool
    colour: bool

    def style(self, name: str) -> Style:
        """Foreground ``name``."""
        return _style(_names(self.dark)[name], None) if self.colour else _plain(name)

    def pair(self, name: str, behind: str) -> Style:
        """Foreground ``name`` on ``behind``."""
        names = _names(self.dark)
        return _style(names[name], names[behind]) if self.colour else Style.null()

    def behind(self, name: str) -> Style:
        """Background ``name``; reversed where there are no colours."""
        return _style(None, _names(self.dark)[name]) if self.colour else Style(reverse=True)

    def heat(self, share: float) -> tuple[str, Style]:
        """A glyph of two cells and its style for a share of 0 to 1."""
        if not self.colour:
            at = min(len(HEAT_GLYPHS) - 1, int(share * len(HEAT_GLYPHS)))
            return HEAT_GLYPHS[at] * 2, Style.null()
        ramp = _HEAT_DARK if self.dark else _HEAT_LIGHT
        return "██", _style(_blend(ramp, share), None)

    def span(self, at: int) -> Style:
        """The style of the ``at``-th kind of span."""
        colours = _SPANS_DARK if self.dark else _SPANS_LIGHT
        return _style(colours[at % len(colours)], None) if self.colour else Style.null()


def palette(*, dark: bool) -> Palette:
    """For a dark or light theme, as NO_COLOR wants it."""
    return _palette(dark, not os.environ.get("NO_COLOR"))


_palette = cache(Palette)


def prefers_light() -> bool:
    """Whether the terminal says that its background is light (``COLORFGBG``)."""
    _, _, background = os.environ.get("COLORFGBG", "").rpartition(";")
    return background in ("7", "15")


def _names(dark: bool) -> dict[str, str]:
    return _DARK if dark else _LIGHT


@cache
def over(below: Style, above: Style | None) -> Style:
    """``above`` on ``below``: there are few styles, and adding two is slow."""
    return below if above is None else below + above


class _On(dict[Style, tuple[Style, bool]]):
    """Styles on one that is below; made when they are asked for."""

    def __init__(self, below: Style) -> None:
        super().__init__()
        self._below = below

    def __missing__(self, above: Style) -> tuple[Style, bool]:
        bare = above.bgcolor is None and not above.reverse and not above.underline
        made = self[above] = (self._below + above, bare)
        return made


@cache
def styles_on(below: Style) -> Mapping[Style, tuple[Style, bool]]:
    """:func:`over` for many styles on one, and whether a blank in it looks as one in that one."""
    return _On(below)


@cache
def _style(colour: str | None, behind: str | None) -> Style:
    return Style(color=colour, bgcolor=behind)


def _plain(name: str) -> Style:
    if name in ("strong", "bad", "warn", "header"):
        return Style(bold=True)
    return Style(dim=True) if name == "dim" else Style.null()


@cache
def _blend_steps(ramp: tuple[str, ...]) -> tuple[str, ...]:
    steps = []
    for i in range(33):
        at = i / 32 * (len(ramp) - 1)
        low = min(int(at), len(ramp) - 2)
        a, b = (_rgb(ramp[low + k]) for k in (0, 1))
        mixed = [round(x + (y - x) * (at - low)) for x, y in zip(a, b, strict=True)]
        steps.append("#{:02x}{:02x}{:02x}".format(*mixed))
    return tuple(steps)


def _blend(ramp: tuple[str, ...], share: float) -> str:
    return _blend_steps(ramp)[round(32 * min(1.0, max(0.0, share)))]


def _rgb(colour: str) -> tuple[int, int, int]:
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)
