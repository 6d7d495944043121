"""Robust straight lines, through the points of many windows at once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from megatrace.clock.samples import F8, Mask

MIN_PIECE = 4
_SEED_BLOCKS = 16
_AT_ONCE = 1 << 15
"""Points that are fitted together: arrays that stay in the caches."""


@dataclass(frozen=True, slots=True)
class Window:
    """Points [n] in a row, ``x`` cycles and ``y`` ns, and how much each counts."""

    x: F8
    y: F8
    weight: F8

    def __len__(self) -> int:
        return len(self.x)

    def cut(self, at: int) -> tuple[Window, Window]:
        """The first ``at`` points, and the others."""
        left, right = slice(None, at), slice(at, None)
        return (
            Window(self.x[left], self.y[left], self.weight[left]),
            Window(self.x[right], self.y[right], self.weight[right]),
        )


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
    away: float
    """Median distance (ns) of its points."""
    restless: float = 0.0
    """How far (ns a cycle) the rate is from that of the lines beside it, where each launch has
    one of its own."""

    def __call__(self, x: float) -> float:
        """``y`` at ``x``."""
        return self.at + self.rate * (x - self.first)


def fit_lines(windows: Sequence[Window], quantum: float) -> list[Line]:
    """The line through most points of each window.

    Theil-Sen over blocks, then trimmed least squares. Blocks of medians make it immune to a
    few bad points. ``quantum`` (ns) is the width of honest noise, never trimmed. All SMs run
    the same launches: most windows are of one length, and are fitted as one array.
    """
    by_length: dict[int, list[int]] = defaultdict(list)
    for i, window in enumerate(windows):
        by_length[len(window)].append(i)
    lines: dict[int, Line] = {}
    for length, same in by_length.items():
        many = max(1, _AT_ONCE // length)
        for start in range(0, len(same), many):
            group = same[start : start + many]
            x, y, weight = (
                np.stack([getattr(windows[i], name) for i in group])
                for name in ("x", "y", "weight")
            )
            lines.update(zip(group, _fit(x, y, weight, quantum), strict=True))
    return [lines[i] for i in range(len(windows))]


def fit_line(window: Window, quantum: float) -> Line:
    """:func:`fit_lines` of one."""
    return fit_lines([window], quantum)[0]


def median(values: F8) -> F8:
    """Medians over the last axis; many times faster than numpy's on short rows."""
    ordered, half = np.sort(values, axis=-1), values.shape[-1] // 2
    middle: F8 = ordered[..., half]
    return middle if values.shape[-1] % 2 else (ordered[..., half - 1] + middle) / 2


def block_medians(x: F8, y: F8, blocks: int) -> tuple[F8, F8]:
    """Medians of x and y [..., n] over blocks of neighbours; what is left over joins no block."""
    size = x.shape[-1] // blocks
    shape = (*x.shape[:-1], blocks, size)
    bx, by = (np.sort(values[..., : size * blocks].reshape(shape), axis=-1) for values in (x, y))
    return bx[..., size // 2], by[..., size // 2]


def _fit(x: F8, y: F8, weight: F8, quantum: float) -> list[Line]:
    """The lines of windows of one length, [m, n]."""
    length = x.shape[1]
    u = x - x[:, :1]
    rate = _seed_rates(*block_medians(u, y, max(2, min(_SEED_BLOCKS, length // 4))))
    at = median(y - rate[:, None] * u)
    for _ in range(3):
        r = y - at[:, None] - rate[:, None] * u
        away = np.abs(r - median(r)[:, None])
        keep = away <= np.maximum(3 * 1.4826 * median(away), quantum)[:, None]
        d_rate, d_at = _trimmed_lines(u, r, weight, keep)
        rate, at = rate + d_rate, at + d_at
    r = y - at[:, None] - rate[:, None] * u
    _, off = block_medians(u, r, max(1, length // MIN_PIECE))
    bend, cost = np.abs(off).max(axis=1), (off**2).sum(axis=1)
    facts = (x[:, 0], x[:, -1], at, rate, bend, cost, median(np.abs(r)))
    columns = (column.tolist() for column in facts)
    return [Line(*row) for row in zip(*columns, strict=True)]


def _seed_rates(x: F8, y: F8) -> F8:
    """Median slope [m] over all pairs of the points of each row."""
    i, j = np.triu_indices(x.shape[1], 1)
    run, rise = x[:, j] - x[:, i], y[:, j] - y[:, i]
    apart = run > 0
    rate = median(np.divide(rise, run, out=np.zeros_like(run), where=apart))
    for row in np.flatnonzero(~apart.all(axis=1)).tolist():
        there = apart[row]
        rate[row] = median(rise[row, there] / run[row, there]) if there.any() else 0.0
    return rate


def _trimmed_lines(x: F8, y: F8, weight: F8, keep: Mask) -> tuple[F8, F8]:
    """Weighted least squares of the points of each row that are kept: rate and offset [m]."""
    rate, at = _weighted_lines(x, y, weight)
    for row in np.flatnonzero(~keep.all(axis=1)).tolist():
        those = np.flatnonzero(keep[row])[None]
        rate[row : row + 1], at[row : row + 1] = _weighted_lines(
            x[row][those], y[row][those], weight[row][those]
        )
    return rate, at


def _weighted_lines(x: F8, y: F8, weight: F8) -> tuple[F8, F8]:
    total = weight.sum(axis=1)
    mean_x, mean_y = (weight * x).sum(axis=1) / total, (weight * y).sum(axis=1) / total
    dx = x - mean_x[:, None]
    spread = (weight * dx * dx).sum(axis=1)
    along = (weight * dx * (y - mean_y[:, None])).sum(axis=1)
    rate = np.divide(along, spread, out=np.zeros_like(spread), where=spread != 0.0)
    return rate, mean_y - rate * mean_x
