"""Intervals for a change of medians: a percentile bootstrap, seeded, without loops over draws.

Blocks (steps) are drawn with replacement, each side on its own. The median of a draw is one
or two order statistics, so a draw is its ranks: they are made once for each number of blocks
and serve every row.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from megatrace.analysis.lines import F8

DRAWS = 20_000
FEWEST_BLOCKS = 5
"""Below it a percentile interval of a median misses more often than it says."""
_SPARE = 4
"""How many times less likely than the stated miss it must be that two sets of blocks lie
apart by chance: with fewer blocks even that says nothing."""

Ranks = tuple[NDArray[np.int64], NDArray[np.int64]]


@dataclass(frozen=True, slots=True)
class Interval:
    """Where the true change lies: ``b - a`` and ``b / a - 1``, NaN where a draw of a is 0."""

    low: float
    high: float
    low_ratio: float
    high_ratio: float


class Bootstrap:
    """Draws of one comparison; the same ``seed`` gives the same intervals."""

    def __init__(self, *, seed: int = 0, draws: int = DRAWS, confidence: float = 0.95) -> None:
        """``confidence`` is of all rows of a table together."""
        self.seed = seed
        self.draws = draws
        self.confidence = confidence
        self._ranks: dict[tuple[int, int], Ranks] = {}

    def medians(self, values: F8, side: int) -> F8:
        """The median of each draw, [draws]; ``side`` 0 and 1 draw independently."""
        low, high = self._ranks_of(len(values), side)
        ordered = np.sort(values)
        middle: F8 = (ordered[low] + ordered[high]) / 2
        return middle

    def interval(self, a: F8, b: F8, rows: int) -> Interval:
        """Of ``median(b) - median(a)``, which holds for ``rows`` such rows together.

        ``a`` and ``b`` are one value a block.
        """
        before, after = self.medians(a, 0), self.medians(b, 1)
        tail = (1 - self.confidence) / max(rows, 1) / 2
        low, high = np.quantile(after - before, [tail, 1 - tail])
        if (before <= 0).any():
            return Interval(float(low), float(high), math.nan, math.nan)
        low_ratio, high_ratio = np.quantile(after / before - 1, [tail, 1 - tail])
        return Interval(float(low), float(high), float(low_ratio), float(high_ratio))

    def enough(self, blocks_a: int, blocks_b: int, rows: int) -> bool:
        """Whether so many blocks can show a change in a table of ``rows`` rows."""
        if min(blocks_a, blocks_b) < FEWEST_BLOCKS:
            return False
        apart = 2 / math.comb(blocks_a + blocks_b, blocks_a)
        return apart * _SPARE * max(rows, 1) / 2 <= 1 - self.confidence

    def _ranks_of(self, blocks: int, side: int) -> Ranks:
        found = self._ranks.get((blocks, side))
        if found is None:
            rng = np.random.default_rng((self.seed, side, blocks))
            found = self._ranks[blocks, side] = _draw(rng, blocks, self.draws)
        return found


def _draw(rng: np.random.Generator, blocks: int, draws: int) -> Ranks:
    """Ranks of the two middle ones of ``blocks`` draws from as many.

    An index drawn is floor(n u), which keeps order: the middle indices are those of the
    middle u, whose distribution is known. No draw needs all n.
    """
    upper = blocks // 2 + 1
    high = rng.beta(upper, blocks + 1 - upper, draws)
    low = high
    if blocks % 2 == 0:
        below = upper - 1
        low = high * rng.random(draws) ** (1 / below)
    last = blocks - 1
    return (
        np.minimum((low * blocks).astype(np.int64), last),
        np.minimum((high * blocks).astype(np.int64), last),
    )
