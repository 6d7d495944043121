"""Bars and sparklines as segments of a line."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache

from rich.segment import Segment

from megatrace.tui.model import CLASSES
from megatrace.tui.palette import GLYPHS, SPARKS, Palette

_EIGHTHS = " ▏▎▍▌▋▊▉"


def stacked(bar: Sequence[float], width: int, palette: Palette) -> list[Segment]:
    """The shares of CLASSES on ``width`` cells, to an eighth of a cell in colour."""
    if not any(bar) or width <= 0:
        return [Segment(" " * max(0, width))]
    if not palette.colour:
        return _with_glyphs(bar, width)
    edge = 0.0
    edges, names = [0.0], []
    for name, share in zip(CLASSES, bar, strict=True):
        if share > 0:
            edge += share * width
            edges.append(edge)
            names.append(name)
    edges[-1] = float(width)
    out: list[Segment] = []
    done = 0
    for i, name in enumerate(names):
        first, last = math.ceil(edges[i] - 1e-9), math.floor(edges[i + 1] + 1e-9)
        if last <= first:
            continue
        # Between two classes that fill cells there is at most one cell that is mixed.
        if done < first:
            out += _mixed(edges, names, i - 1, done, first, palette)
        out.append(_full(palette, name, last - first))
        done = last
    if done < width:
        out += _mixed(edges, names, len(names) - 2, done, width, palette)
    return out


def _mixed(
    edges: Sequence[float], names: Sequence[str], left: int, first: int, last: int, palette: Palette
) -> list[Segment]:
    """Cells ``[first, last)``, which no class fills; ``names[left]`` may end in the first."""
    edge = edges[left + 1]
    if last == first + 1 and edges[left] <= first <= edge <= last <= edges[left + 2]:
        return [_pair(palette, names[left], names[left + 1], round(8 * (edge - first)))]
    return [_cell(edges, names, at, palette) for at in range(first, last)]


def _cell(edges: Sequence[float], names: Sequence[str], at: int, palette: Palette) -> Segment:
    """One cell: the class that fills it, or the two that fill most of it, side by side."""
    covered = [max(0.0, min(edges[i + 1], at + 1) - max(edges[i], at)) for i in range(len(names))]
    most = sorted(range(len(names)), key=lambda i: -covered[i])[:2]
    left, right = min(most), max(most)
    eighths = round(8 * covered[left] / max(1e-9, covered[left] + covered[right] * (left < right)))
    return _pair(palette, names[left], names[right], eighths)


@cache
def _full(palette: Palette, name: str, cells: int) -> Segment:
    return Segment("█" * cells, palette.style(name))


@cache
def _pair(palette: Palette, left: str, right: str, eighths: int) -> Segment:
    """``left`` on so many eighths of a cell, ``right`` on the rest."""
    if eighths in (0, 8):
        return _full(palette, left if eighths else right, 1)
    return Segment(_EIGHTHS[eighths], palette.pair(left, right))


def _with_glyphs(bar: Sequence[float], width: int) -> list[Segment]:
    out: list[Segment] = []
    done, edge = 0, 0.0
    for name, share in zip(CLASSES, bar, strict=True):
        edge += share * width
        upto = min(width, round(edge))
        out.append(Segment(GLYPHS[name] * (upto - done)))
        done = upto
    out.append(Segment(" " * (width - done)))
    return out


def spark(series: Sequence[float], width: int, palette: Palette) -> list[Segment]:
    """The last ``width`` points, from the lowest to the highest of them."""
    points = series[-width:]
    known = [point for point in points if point == point]
    if not known:
        return [Segment(" " * width)]
    low, high = min(known), max(known)
    spread = high - low
    if spread <= 0.05 * high:
        # What moves less than a twentieth is drawn flat: noise is no news.
        text = "".join([SPARKS[3] if point == point else " " for point in points])
    else:
        scale = (len(SPARKS) - 1) / spread
        text = "".join(
            [SPARKS[round((point - low) * scale)] if point == point else " " for point in points]
        )
    return [Segment(text.rjust(width), palette.style("spark"))]


def legend(palette: Palette, *, counted: bool = False) -> list[Segment]:
    """What the colours of a bar mean."""
    out = []
    for name in CLASSES[:-1] if counted else CLASSES:
        glyph = "■" if palette.colour else GLYPHS[name]
        out += [Segment(glyph, palette.style(name)), Segment(f" {name}  ", palette.style("dim"))]
    return out
