"""How well each rank's GPU clock is tied to the host, from its clock samples so far."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from megatrace.clock.host import fit_host
from megatrace.errors import ClockError
from megatrace.schema.host import HOST
from megatrace.schema.layout import HOST_RECORD

MAX_SAMPLES = 1024
"""A rank's samples that are kept; the oldest go first."""

_CLOCK_SAMPLE = next(event.id for event in HOST if event.name == "clock_sample")


class HostClocks:
    """Collects ``clock_sample`` records and states the error of each rank."""

    def __init__(self) -> None:
        """Start with no samples."""
        self._samples: dict[int, list[NDArray[np.int64]]] = {}
        self._errors: dict[int, float] = {}

    def feed(self, rank: int, records: NDArray[Any]) -> None:
        """Take the samples among HOST_RECORDs ``(n,)`` of ``rank``."""
        mine = records[records["event"] == _CLOCK_SAMPLE]
        if not mine.size:
            return
        kept = self._samples.setdefault(rank, [])
        for row in mine:
            kept.append(np.array([row["begin_ns"], row["end_ns"], row["values"][0]], np.int64))
        del kept[:-MAX_SAMPLES]
        self._errors.pop(rank, None)

    def latest(self, rank: int, many: int = 64) -> NDArray[Any]:
        """HOST_RECORDs ``(n,)`` of the last samples of ``rank``, numbered anew."""
        samples = self._samples.get(rank, [])[-many:]
        records = np.zeros(len(samples), HOST_RECORD)
        records["event"] = _CLOCK_SAMPLE
        records["number"] = records["number_end"] = np.arange(len(samples)) + 1
        for record, (begin, end, globaltimer) in zip(records, samples, strict=True):
            record["begin_ns"], record["end_ns"] = begin, end
            record["values"][0] = globaltimer
        return records

    def errors_ns(self) -> dict[int, float]:
        """Rank -> error of host against GPU, in ns; ranks without enough samples are absent."""
        for rank, samples in self._samples.items():
            if rank not in self._errors:
                begin, end, globaltimer = np.array(samples).T
                try:
                    self._errors[rank] = fit_host(begin, end, globaltimer).error_ns
                except ClockError:
                    continue
        return dict(self._errors)
