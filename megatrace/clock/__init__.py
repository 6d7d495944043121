"""Clocks: an SM's cycles, its GPU's globaltimer and the host, each with its error."""

from megatrace.clock.fit import fit_rank
from megatrace.clock.host import HostClock, fit_host
from megatrace.clock.model import ClockModel, SmClock
from megatrace.clock.samples import ClockSamples, quantum_of

__all__ = [
    "ClockModel",
    "ClockSamples",
    "HostClock",
    "SmClock",
    "fit_host",
    "fit_rank",
    "quantum_of",
]
