"""Count, total, median and p95 of durations in many groups at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from megatrace.analysis.lines import F8, I8, Rows

F4: TypeAlias = NDArray[np.float32]

EXACT_LIMIT = 4_000_000
"""Durations kept one by one; beyond that all go into histograms."""
RELATIVE_ERROR = 0.004
"""Of a histogram's quantiles: half a bin, of 128 an octave."""
_MANTISSA = 7
_SHIFT = 23 - _MANTISSA
_ONE = 127 << _MANTISSA
"""Bin of 1 ns: exponent and first bits of mantissa of a float32."""
BINS = 33 << _MANTISSA
"""Up to 8.6 s."""


@dataclass(frozen=True, slots=True)
class Quantiles:
    """Per group, arrays [G], in ns; NaN where a group is empty."""

    median_ns: F8
    p95_ns: F8


class Durations:
    """Gathers durations by group. Not for several threads at once."""

    def __init__(self, exact_limit: int = EXACT_LIMIT) -> None:
        """Keep up to ``exact_limit`` durations one by one."""
        self._limit = exact_limit
        self._groups: list[NDArray[np.uint32]] = []
        self._values: list[F4] = []
        self._kept = 0
        self._histogram: NDArray[np.uint32] | None = None

    @property
    def exact(self) -> bool:
        """Whether quantiles are exact, not from a histogram."""
        return self._histogram is None

    def add(self, group: Rows, dur_ns: F8) -> None:
        """Add durations [n] in ns, >= 0, each to its group, a small number."""
        if not len(group):
            return
        values = dur_ns.astype(np.float32)
        if self._histogram is not None:
            self._count(group, values)
            return
        self._groups.append(group.astype(np.uint32))
        self._values.append(values)
        self._kept += len(group)
        if self._kept > self._limit:
            self._histogram = np.zeros((0, BINS), np.uint32)
            for groups, kept in zip(self._groups, self._values, strict=True):
                self._count(groups.astype(np.intp), kept)
            self._groups, self._values = [], []

    def quantiles(self, groups: int) -> Quantiles:
        """Median and p95 of groups [0, groups)."""
        if self._histogram is not None:
            return self._from_histogram(groups)
        group = np.concatenate([np.zeros(0, np.uint32), *self._groups])
        value = np.concatenate([np.zeros(0, np.float32), *self._values])
        value = value[np.lexsort((value, group))].astype(np.float64)
        count = np.bincount(group, minlength=groups)[:groups]
        start = np.cumsum(count) - count
        return Quantiles(_at(value, start, count, 0.5), _at(value, start, count, 0.95))

    def _count(self, group: Rows, values: F4) -> None:
        assert self._histogram is not None
        need = int(group.max()) + 1
        if need > len(self._histogram):
            grown = np.zeros((max(need, len(self._histogram) * 5 // 4), BINS), np.uint32)
            grown[: len(self._histogram)] = self._histogram
            self._histogram = grown
        place = (values.view(np.uint32) >> _SHIFT).astype(np.intp)
        place -= _ONE - 1
        np.clip(place, 0, BINS - 1, out=place)  # bin 0: below 1 ns
        place += group * BINS
        np.add.at(self._histogram.reshape(-1), place, np.uint32(1))

    def _from_histogram(self, groups: int) -> Quantiles:
        assert self._histogram is not None
        median, p95 = np.full(groups, np.nan), np.full(groups, np.nan)
        middles = _middles()
        for group in range(min(groups, len(self._histogram))):
            running = np.cumsum(self._histogram[group], dtype=np.int64)
            total = int(running[-1])
            if total:
                for out, q in ((median, 0.5), (p95, 0.95)):
                    out[group] = middles[np.searchsorted(running, q * (total - 1), side="right")]
        return Quantiles(median, p95)


def _middles() -> F8:
    """Middle of each bin, ns."""
    edges = ((np.arange(BINS, dtype=np.uint32) + (_ONE - 1)) << np.uint32(_SHIFT)).view(np.float32)
    middles = edges.astype(np.float64)
    middles[:-1] = (middles[:-1] + middles[1:]) / 2
    middles[0] = 0.0
    return middles


def _at(value: F8, start: I8, count: I8, q: float) -> F8:
    """Quantile ``q`` of each sorted run, linear between neighbours as numpy does it."""
    out = np.full(len(count), np.nan)
    some = np.flatnonzero(count)
    place = start[some] + q * (count[some] - 1)
    low = np.floor(place).astype(np.intp)
    high = np.minimum(low + 1, start[some] + count[some] - 1)
    out[some] = value[low] + (place - low) * (value[high] - value[low])
    return out
