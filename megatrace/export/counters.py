"""How many warps stall, over time."""

from __future__ import annotations

import numpy as np

from megatrace.export.wire import I8

MAX_BINS = 2000
MIN_BIN_NS = 100


def stalled_warps(begin_ns: I8, end_ns: I8) -> tuple[I8, I8]:
    """Samples (time in ns, warps) of how many of the intervals hold a time.

    A sample is the mean over the bin that begins there, rounded; bins are of one length,
    at most :data:`MAX_BINS`, the last sample ends the last bin with 0.
    """
    first, last = int(begin_ns.min()), int(end_ns.max())
    bin_ns = max(MIN_BIN_NS, -(-(last - first) // MAX_BINS))
    edges = np.arange(first, last + bin_ns, bin_ns)
    if len(edges) == 1:
        edges = np.array([first, first + bin_ns])
    stalled = _time_before(edges, begin_ns) - _time_before(edges, end_ns)
    mean = np.rint(np.diff(stalled) / bin_ns).astype(np.int64)
    return edges, np.append(mean, 0)


def _time_before(edges: I8, starts: I8) -> I8:
    """Sum over ``starts`` of how long before each edge they are, 0 for later ones."""
    ordered = np.sort(starts) - edges[0]
    past = np.searchsorted(ordered, edges - edges[0])
    summed: I8 = np.concatenate([np.zeros(1, np.int64), np.cumsum(ordered)])
    before: I8 = past * (edges - edges[0]) - summed[past]
    return before
