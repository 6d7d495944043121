"""Pairs of (globaltimer, clock) as the headers of launches give them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

I8: TypeAlias = NDArray[np.int64]
F8: TypeAlias = NDArray[np.float64]
Mask: TypeAlias = NDArray[np.bool_]

EXACT_NS = 20.0
"""An edge-aligned pair is read at most so long after its tick: one turn of the loop."""
MAX_QUANTUM_NS = 1024
_ENOUGH_FOR_QUANTUM = 16


@dataclass(frozen=True, slots=True)
class ClockSamples:
    """One rank's pairs; arrays of one length N.

    A pair says: when the SM's clock was ``clock`` cycles, globaltimer was in
    ``[globaltimer, globaltimer + quantum)`` ns, and where ``exact`` in the first
    :data:`EXACT_NS` of that.
    """

    sm: NDArray[np.int32]
    launch: I8
    """Number of the launch, so that a fit can hold out whole launches."""
    clock: I8
    globaltimer: I8
    exact: Mask

    def __len__(self) -> int:
        return len(self.clock)

    def take(self, rows: NDArray[np.intp]) -> ClockSamples:
        """The pairs at ``rows``."""
        return ClockSamples(
            self.sm[rows],
            self.launch[rows],
            self.clock[rows],
            self.globaltimer[rows],
            self.exact[rows],
        )


def quantum_of(globaltimer: I8, default_ns: int) -> int:
    """The step of a globaltimer in ns, as its values show it.

    Too few different values leave ``default_ns``: a large common divisor of two numbers
    says nothing.
    """
    values = np.unique(globaltimer[:4096])
    if len(values) < _ENOUGH_FOR_QUANTUM:
        return default_ns
    step = int(np.gcd.reduce(np.diff(values)))
    return step if 1 <= step <= MAX_QUANTUM_NS else default_ns
