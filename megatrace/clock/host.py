"""Host clock <-> globaltimer, from samples that bracket a read of the GPU's clock."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from megatrace.clock.samples import F8, I8
from megatrace.errors import ClockError

MIN_SAMPLES = 2
_GOOD_ROUND_TRIP = 1.5
"""Samples up to so many times the best round trip are used."""
_STRETCHES = 8
"""And the best of each of so many stretches of the recording."""


@dataclass(frozen=True, slots=True)
class HostClock:
    """``host = host0_ns + since + offset_ns + drift * since``, ``since = gt - gt0_ns``.

    ``error_ns`` is half the best round trip plus what the line leaves unexplained.
    """

    gt0_ns: int
    host0_ns: int
    offset_ns: float
    drift: float
    error_ns: float
    round_trip_ns: int
    samples: int

    def to_host_ns(self, globaltimer_ns: I8) -> I8:
        """CLOCK_MONOTONIC ns of globaltimer ns; any shape."""
        since = globaltimer_ns - self.gt0_ns
        shift = self.offset_ns + self.drift * since.astype(np.float64)
        return self.host0_ns + since + np.rint(shift).astype(np.int64)

    def from_host_ns(self, host_ns: I8) -> I8:
        """Globaltimer ns of CLOCK_MONOTONIC ns; any shape."""
        since = host_ns - self.host0_ns
        shift = (self.offset_ns + self.drift * since.astype(np.float64)) / (1.0 + self.drift)
        return self.gt0_ns + since - np.rint(shift).astype(np.int64)


def fit_host(begin_ns: I8, end_ns: I8, globaltimer_ns: I8) -> HostClock:
    """The line through samples (host before, host after, globaltimer between); [N] each.

    Samples with a short round trip count most: a long one was interrupted and says little
    of when within it the GPU's clock was read. Raises ClockError below
    :data:`MIN_SAMPLES`, where a drift cannot be told from nothing.
    """
    sane = end_ns >= begin_ns
    begin, end, gt = begin_ns[sane], end_ns[sane], globaltimer_ns[sane]
    if len(begin) < MIN_SAMPLES:
        raise ClockError(
            f"{len(begin)} clock samples between host and GPU, {MIN_SAMPLES} are needed",
            hint="record longer: the agent takes one at attach and then one a second",
        )
    round_trip = end - begin
    best = int(round_trip.min())
    good = round_trip <= _GOOD_ROUND_TRIP * best + 1
    # The shortest may all be of one moment, and a line through them leads anywhere.
    for stretch in np.array_split(np.argsort(gt, kind="stable"), min(_STRETCHES, len(gt))):
        good[stretch[np.argmin(round_trip[stretch])]] = True
    begin, end, gt, trip = begin[good], end[good], gt[good], round_trip[good]
    gt0, host0 = int(gt[0]), int(begin[0])
    since = (gt - gt0).astype(np.float64)
    apart = ((begin - host0) - (gt - gt0)).astype(np.float64) + trip / 2
    weight: F8 = 1.0 / (trip + 1.0).astype(np.float64) ** 2
    drift, offset = _line(since, apart, weight)
    residual = np.abs(apart - offset - drift * since)
    # Within its own round trip a sample is no outlier, and its doubt is the line's.
    keep = (residual <= 3 * 1.4826 * np.median(residual) + 1) | (residual <= trip / 2)
    if MIN_SAMPLES < keep.sum() < len(keep):
        drift, offset = _line(since[keep], apart[keep], weight[keep])
        residual = np.abs(apart - offset - drift * since)[keep]
    return HostClock(
        gt0, host0, offset, drift, best / 2 + float(residual.max()), best, int(good.sum())
    )


def _line(x: F8, y: F8, weight: F8) -> tuple[float, float]:
    """Slope and intercept by weighted least squares; slope 0 where all x are one."""
    mean_x, mean_y = np.average(x, weights=weight), np.average(y, weights=weight)
    spread = float((weight * (x - mean_x) ** 2).sum())
    if spread == 0.0:
        return 0.0, float(mean_y)
    slope = float((weight * (x - mean_x) * (y - mean_y)).sum()) / spread
    return slope, float(mean_y - slope * mean_x)
