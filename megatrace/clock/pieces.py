"""Robust straight lines, and the places where one line is not enough."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from megatrace.clock.samples import F8

MIN_PIECE = 4
MAX_DEPTH = 8
_SEED_BLOCKS = 16
_GAIN = 0.5
"""A split must leave less than this share of the squared residuals."""


@dataclass(frozen=True, slots=True)
class Line:
    """``y = at + rate * (x - first)`` for x in [first, last].

    ``bend`` (ns) is the largest median residual of :data:`MIN_PIECE` points in a row and
    ``cost`` the sum of their squares: what a bad point cannot move, and a
    change of the rate cannot hide from.
    """

    first: float
    last: float
    at: float
    rate: float
    bend: float
    cost: float
    restless: float = 0.0
    """How far (ns a cycle) the rate is from that of the lines beside it, where each launch has
    one of its own."""

    def __call__(self, x: float) -> float:
        """``y`` at ``x``."""
        return self.at + self.rate * (x - self.first)


def fit_line(x: F8, y: F8, weight: F8, quantum: float) -> Line:
    """The line through most of (x, y): Theil-Sen over blocks, then trimmed least squares.

    Blocks of medians make it immune to a few bad points.
    ``quantum`` (ns) is the width of honest noise, never trimmed.
    """
    u = x - x[0]
    bx, by = _block_medians(u, y, max(2, min(_SEED_BLOCKS, len(x) // 4)))
    i, j = np.triu_indices(len(bx), 1)
    run = bx[j] - bx[i]
    slopes = (by[j] - by[i])[run > 0] / run[run > 0]
    rate = float(np.median(slopes)) if len(slopes) else 0.0
    at = float(np.median(y - rate * u))
    for _ in range(3):
        r = y - at - rate * u
        away = np.abs(r - np.median(r))
        keep = away <= max(3 * 1.4826 * float(np.median(away)), quantum)
        d_rate, d_at = _weighted_line(u[keep], r[keep], weight[keep])
        rate, at = rate + d_rate, at + d_at
    _, off = _block_medians(u, y - at - rate * u, max(1, len(x) // MIN_PIECE))
    return Line(
        float(x[0]), float(x[-1]), at, rate, float(np.abs(off).max()), float((off**2).sum())
    )


def fit_pieces(x: F8, y: F8, weight: F8, quantum: float, depth: int = 0) -> list[Line]:
    """Lines from left to right over sorted ``x``; more than one where the rate changes.

    A line that bends further than the noise of the samples is split where two lines fit
    best, if that helps: a clock that follows DVFS has corners, noise has none.
    """
    line = fit_line(x, y, weight, quantum)
    noise = 0.6 * quantum + 3.0
    if depth == MAX_DEPTH or len(x) < 2 * MIN_PIECE or line.bend <= noise:
        return _through_points(line, x, y) if _astray(line, x, y, noise) else [line]
    at = _corner(x, y - line.at - line.rate * (x - x[0]))
    for _ in range(2):
        left = fit_line(x[:at], y[:at], weight[:at], quantum)
        right = fit_line(x[at:], y[at:], weight[at:], quantum)
        at = _border(x, y, left, right)
    if left.cost + right.cost > _GAIN * line.cost:
        return _through_points(line, x, y) if _astray(line, x, y, noise) else [line]
    return [
        *fit_pieces(x[:at], y[:at], weight[:at], quantum, depth + 1),
        *fit_pieces(x[at:], y[at:], weight[at:], quantum, depth + 1),
    ]


def _astray(line: Line, x: F8, y: F8, noise: float) -> bool:
    """Whether most points are off the line by more than noise, and no fewer lines would do."""
    return bool(np.median(np.abs(y - line.at - line.rate * (x - x[0]))) > noise)


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
        Line(a, b, at, slope, 0.0, 0.0, by) for a, b, at, slope, by in zip(*columns, strict=True)
    ]
    return lines or [whole]


def _corner(x: F8, residual: F8) -> int:
    """About where two lines fit best: index of the first sample of the right one."""
    blocks = len(x) // MIN_PIECE
    bx, by = _block_medians(x - x[0], residual, blocks)
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


def _block_medians(x: F8, y: F8, blocks: int) -> tuple[F8, F8]:
    """Medians of x and y over blocks of neighbours; what is left over joins no block."""
    size = len(x) // blocks
    head = size * blocks
    bx = np.sort(x[:head].reshape(blocks, size), axis=1)[:, size // 2]
    by = np.sort(y[:head].reshape(blocks, size), axis=1)[:, size // 2]
    return bx, by


def _weighted_line(x: F8, y: F8, weight: F8) -> tuple[float, float]:
    total = float(weight.sum())
    mean_x, mean_y = float((weight * x).sum()) / total, float((weight * y).sum()) / total
    dx = x - mean_x
    spread = float((weight * dx * dx).sum())
    if spread == 0.0:
        return 0.0, mean_y
    rate = float((weight * dx * (y - mean_y)).sum()) / spread
    return rate, mean_y - rate * mean_x
