"""A GPU's clocks as they are: true time, what globaltimer shows of it, each SM's cycles."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from megatrace.clock import ClockSamples

I8 = NDArray[np.int64]


@dataclass(frozen=True)
class Gpu:
    """``rates`` (GHz) hold from the ``since`` (ns) beside them."""

    rates: tuple[float, ...] = (1.98,)
    since: tuple[int, ...] = (0,)
    quantum_ns: int = 32
    start_ns: int = 1_790_000_000_000_000_000
    """A globaltimer of today: too large for a float."""

    def cycles(self, sm: int, ns: I8) -> I8:
        """The SM's clock at true times, ns since start; each SM began elsewhere."""
        out = np.full(len(ns), 0.0)
        ends = [*self.since[1:], 1 << 62]
        for rate, begin, end in zip(self.rates, self.since, ends, strict=True):
            out += np.clip(ns - begin, 0, end - begin) * rate
        return np.asarray(out, np.int64) + 10_000_000 * (sm + 1)

    def launches(
        self, count: int, *, sms: int = 2, warps: int = 12, run_ns: int = 55_000, seed: int = 1,
        first_ns: int = 0, first: int = 0,
    ) -> ClockSamples:  # fmt: skip
        """Headers of launches of every warp; one warp an SM waits for a tick."""
        rng = np.random.default_rng(seed)
        parts = []
        for sm in range(sms):
            for warp in range(warps):
                begin = (
                    first_ns + np.arange(count) * (run_ns + 1000) + rng.integers(100, 900, count)
                )
                exact = np.full(count, warp == 0)
                if warp == 0:
                    begin = -(-begin // self.quantum_ns) * self.quantum_ns
                    begin += rng.integers(0, min(18, self.quantum_ns), count)
                parts.append((
                    np.full(count, sm, np.int32), first + np.arange(count),
                    self.cycles(sm, begin),
                    self.start_ns + begin // self.quantum_ns * self.quantum_ns, exact,
                ))  # fmt: skip
        return ClockSamples(*(np.concatenate(column) for column in zip(*parts, strict=True)))
