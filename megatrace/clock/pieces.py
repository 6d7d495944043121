"""The places where one line is not enough."""

from __future__ import annotations

import numpy as np

from megatrace.clock.lines import MIN_PIECE, Line, Window, block_medians, fit_line
from megatrace.clock.samples import F8

MAX_DEPTH = 8
_GAIN = 0.5
"""A split must leave less than this share of the squared residuals."""


def fit_pieces(
    window: Window, quantum: float, depth: int = 0, *, line: Line | None = None
) -> list[Line]:
    """Lines from left to right over sorted ``x``; more than one where the rate changes.

    A line that bends further than the noise of the samples is split where two lines fit
    best, if that helps: a clock that follows DVFS has corners, noise has none. ``line`` is
    that of the window, where it is known.
    """
    line = line or fit_line(window, quantum)
    x, y = window.x, window.y
    noise = 0.6 * quantum + 3.0
    if depth == MAX_DEPTH or len(x) < 2 * MIN_PIECE or line.bend <= noise:
        return _whole(line, window, noise)
    at = _corner(x, y - line.at - line.rate * (x - x[0]))
    for _ in range(2):
        left, right = (fit_line(part, quantum) for part in window.cut(at))
        at = _border(x, y, left, right)
    if left.cost + right.cost > _GAIN * line.cost:
        return _whole(line, window, noise)
    return [piece for part in window.cut(at) for piece in fit_pieces(part, quantum, depth + 1)]


def _whole(line: Line, window: Window, noise: float) -> list[Line]:
    """``line``, unless most points are off it by more than noise: no fewer lines would do."""
    return _through_points(line, window.x, window.y) if line.away > noise else [line]


def _through_points(whole: Line, x: F8, y: F8) -> list[Line]:
    """A line from each point to the next: the rate changes from launch to launch.

    It does under power limits: a kernel that streams weights runs at another clock than one
    that waits.
    """
    rate = np.diff(y) / np.diff(x)
    # Two points that do not follow each other in both clocks are no line.
    good = np.isfinite(rate) & (rate > 0)
    x, after, y, rate = x[:-1][good], x[1:][good], y[:-1][good], rate[good]
    change = np.abs(np.diff(rate, prepend=rate[:1], append=rate[-1:]))
    off = np.maximum(change[:-1], change[1:])
    columns = (column.tolist() for column in (x, after, y, rate, off))
    lines = [
        Line(a, b, at, slope, 0.0, 0.0, 0.0, by)
        for a, b, at, slope, by in zip(*columns, strict=True)
    ]
    return lines or [whole]


def _corner(x: F8, residual: F8) -> int:
    """About where two lines fit best: index of the first sample of the right one."""
    blocks = len(x) // MIN_PIECE
    bx, by = block_medians(x - x[0], residual, blocks)
    bx, by = bx / (bx[-1] or 1.0), by / (np.abs(by).max() or 1.0)
    total = _line_costs(bx, by)[:-1] + _line_costs(bx[::-1], by[::-1])[-2::-1]
    return (int(np.argmin(total)) + 1) * (len(x) // blocks)


def _line_costs(x: F8, y: F8) -> F8:
    """Squared residuals of the least-squares lines through the first 1, 2 ... points."""
    n = np.arange(1, len(x) + 1)
    sx, sy = np.cumsum(x), np.cumsum(y)
    xx = np.cumsum(x * x) - sx * sx / n
    xy = np.cumsum(x * y) - sx * sy / n
    yy = np.cumsum(y * y) - sy * sy / n
    along = np.divide(xy * xy, xx, out=np.zeros_like(xx), where=xx > 1e-12)
    return np.maximum(yy - along, 0.0)


def _border(x: F8, y: F8, left: Line, right: Line) -> int:
    """Where the samples go over from one line to the other."""
    off_left = np.abs(y - left.at - left.rate * (x - left.first))
    off_right = np.abs(y - right.at - right.rate * (x - right.first))
    cost = np.append(0.0, np.cumsum(off_left)) - np.append(0.0, np.cumsum(off_right))
    cost = cost[MIN_PIECE : len(x) - MIN_PIECE + 1]
    return MIN_PIECE + int(np.argmin(cost))
