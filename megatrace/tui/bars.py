"""Bars and sparklines as segments of a line."""

from __future__ import annotations

import math
from collections.abc import Sequence

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
    edges = [0.0]
    for share in bar:
        edges.append(edges[-1] + share * width)
    edges[-1] = float(width)
    out: list[Segment] = []
    done = 0
    for i, name in enumerate(CLASSES):
        first, last = math.ceil(edges[i] - 1e-9), math.floor(edges[i + 1] + 1e-9)
        if last <= first:
            continue
        # Between two classes that fill cells there is at most one cell that is mixed.
        out += [_cell(edges, at, palette) for at in range(done, first)]
        out.append(Segment("█" * (last - first), palette.style(name)))
        done = last
    return out + [_cell(edges, at, palette) for at in range(done, width)]


def _cell(edges: Sequence[float], at: int, palette: Palette) -> Segment:
    """One cell: the class that fills it, or the two that fill most of it, side by side."""
    covered = [max(0.0, min(edges[i + 1], at + 1) - max(edges[i], at)) for i in range(len(CLASSES))]
    most = sorted(range(len(CLASSES)), key=lambda i: -covered[i])[:2]
    left, right = sorted(most)
    eighths = round(8 * covered[left] / max(1e-9, covered[left] + covered[right]))
    if eighths in (0, 8):
        return Segment("█", palette.style(CLASSES[left if eighths else right]))
    return Segment(_EIGHTHS[eighths], palette.pair(CLASSES[left], CLASSES[right]))


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
    points = list(series[-width:])
    known = [point for point in points if not math.isnan(point)]
    if not known:
        return [Segment(" " * width)]
    low, high = min(known), max(known)
    spread = high - low
    # What moves less than a twentieth is drawn flat: noise is no news.
    flat = spread < 0.05 * high
    text = ""
    for point in points:
        if math.isnan(point):
            text += " "
        elif flat:
            text += SPARKS[3]
        else:
            text += SPARKS[round((point - low) / spread * (len(SPARKS) - 1))]
    return [Segment(text.rjust(width), palette.style("spark"))]


def legend(palette: Palette, *, counted: bool = False) -> list[Segment]:
    """What the colours of a bar mean."""
    out = []
    for name in CLASSES[:-1] if counted else CLASSES:
        glyph = "■" if palette.colour else GLYPHS[name]
        out += [Segment(glyph, palette.style(name)), Segment(f" {name}  ", palette.style("dim"))]
    return out
