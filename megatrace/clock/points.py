"""One point a launch and SM, out of the pairs that its warps took at nearly one time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from megatrace.clock.samples import EXACT_NS, F8, I8, ClockSamples, Mask


@dataclass(frozen=True, slots=True)
class Points:
    """Arrays of length P, sorted by SM and time.

    ``x`` cycles and ``y`` ns are relative to the SM's first sample, at ``base_clock`` and
    ``base_ns`` once the points are of one SM (:meth:`part`).
    """

    sm: NDArray[np.int32]
    launch: I8
    x: F8
    y: F8
    weight: F8
    bases: tuple[I8, I8]
    base_clock: int = 0
    base_ns: int = 0

    def __len__(self) -> int:
        return len(self.x)

    def part(self, first: int, last: int) -> Points:
        """Points [first, last), all of one SM."""
        rows = slice(first, last)
        clock, ns = self.bases
        return Points(
            self.sm[rows], self.launch[rows], self.x[rows], self.y[rows], self.weight[rows],
            self.bases, int(clock[first]), int(ns[first]),
        )  # fmt: skip

    def where(self, keep: Mask) -> Points:
        """Those of one SM's points that ``keep`` says."""
        return Points(
            self.sm[keep], self.launch[keep], self.x[keep], self.y[keep], self.weight[keep],
            self.bases, self.base_clock, self.base_ns,
        )  # fmt: skip


def points_of(samples: ClockSamples, quantum: int) -> Points:
    """Average the samples of each (SM, launch); ``samples`` are sorted by SM and clock.

    Clock and globaltimer are averaged alike: the mean of points of a line is on it,
    whatever its slope. Samples whose two reads were pulled apart are left out first.
    """
    count = len(samples)
    new_sm = np.append(True, samples.sm[1:] != samples.sm[:-1])
    first = np.flatnonzero(new_sm)
    lengths = np.diff(first, append=count)
    base_clock = np.repeat(samples.clock[first], lengths)
    base_ns = np.repeat(samples.globaltimer[first], lengths)
    exact_ns = min(EXACT_NS, float(quantum))
    x = (samples.clock - base_clock).astype(np.float64)
    y = (samples.globaltimer - base_ns).astype(np.float64)
    y += np.where(samples.exact, exact_ns / 2, quantum / 2)
    weight = np.where(samples.exact, (quantum / exact_ns) ** 2, 1.0)

    final = first + lengths - 1
    slope = np.divide(y[final], x[final], out=np.zeros(len(first)), where=x[final] > 0)
    begins = np.append(True, samples.launch[1:] != samples.launch[:-1]) | new_sm
    start = np.flatnonzero(begins)
    group = np.cumsum(begins) - 1
    off = y - np.repeat(slope, lengths) * x
    away = np.abs(off - _medians(off, group, start)[group])
    keep = away <= np.maximum(3 * 1.4826 * _medians(away, group, start)[group], quantum)
    kept = np.where(keep, weight, 0.0)
    total = np.bincount(group, kept).astype(np.float64)
    return Points(
        sm=samples.sm[start],
        launch=samples.launch[start],
        x=np.bincount(group, kept * x) / total,
        y=np.bincount(group, kept * y) / total,
        weight=total,
        bases=(base_clock[start], base_ns[start]),
    )


def _medians(values: F8, group: NDArray[np.intp], start: NDArray[np.intp]) -> F8:
    """Median of each group (the upper one of two); groups are runs that begin at ``start``."""
    size = np.diff(start, append=len(values))
    if (size == size[0]).all():  # each warp of the SM gave one
        rows = np.sort(values.reshape(len(start), -1), axis=1)
        return rows[:, rows.shape[1] // 2]
    ordered = values[np.lexsort((values, group))]
    medians: F8 = ordered[start + size // 2]
    return medians
