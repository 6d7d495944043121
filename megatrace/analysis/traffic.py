"""Experts that a layer's rows hit, against its time: weights read follow their number."""

from __future__ import annotations

import numpy as np
import pandas as pd

from megatrace.analysis.columns import EXPERT_TRAFFIC, FLOOR
from megatrace.analysis.pick import is_one_of, launch_columns
from megatrace.analysis.trace import Trace
from megatrace.analysis.walls import walls_of
from megatrace.errors import UsageError
from megatrace.schema import Kind

COUNTER = "distinct_experts"
"""Name of the counter event by which a kernel says how many experts its rows hit."""


def expert_traffic(trace: Trace) -> pd.DataFrame:
    """A row a launch that counts experts; columns as ``EXPERT_TRAFFIC`` says."""
    records = trace.records
    counts = is_one_of(records["event"], (COUNTER,)) & is_one_of(records["kind"], (Kind.COUNTER,))
    rows = np.flatnonzero(counts)
    if not len(rows):
        return EXPERT_TRAFFIC.empty()
    walls = walls_of(trace)
    wall = walls.of_launch[records["launch_row"].to_numpy()[rows]]
    most = np.full(len(walls.first), -1, np.int64)
    np.maximum.at(most, wall, _values(trace)[rows])
    told = np.flatnonzero(most >= 0)
    which = launch_columns(trace, walls.first[told])
    known = walls.end_ns[told] >= 0
    dur = np.where(known, walls.end_ns[told] - walls.begin_ns[told], -1)
    return EXPERT_TRAFFIC.frame({**which, "distinct_experts": most[told], "dur_ns": dur})


def _values(trace: Trace) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    values: np.ndarray[tuple[int], np.dtype[np.int64]] = trace.records["a0"].to_numpy()
    return values


def floor(
    trace: Trace, *, bytes_fixed: int, bytes_per_expert: int, bandwidth_gb_s: float
) -> pd.DataFrame:
    """Each launch of :func:`expert_traffic` against the time its bytes take; ``FLOOR``.

    A capture does not say how many bytes a layer must read: ``bytes_fixed`` (what every
    launch reads, KV cache included) and ``bytes_per_expert`` are of the model and of how it
    is sharded, ``bandwidth_gb_s`` (1e9 bytes a second) of the GPU. Raises UsageError for
    what cannot be.
    """
    if bytes_fixed < 0 or bytes_per_expert < 0 or not bandwidth_gb_s > 0:
        raise UsageError(
            "a floor needs bytes of 0 or more and a bandwidth above 0",
            hint="give the bytes that a layer reads on one GPU, and what its memory delivers",
        )
    traffic = expert_traffic(trace)
    read = bytes_fixed + traffic["distinct_experts"].to_numpy() * bytes_per_expert
    floor_ns = np.rint(read / bandwidth_gb_s).astype(np.int64)
    dur = traffic["dur_ns"].to_numpy()
    cpus = [rank for rank, device in trace.devices.items() if device == "cpu"]
    known = (dur > 0) & ~np.isin(traffic["rank"].to_numpy(), cpus)
    return FLOOR.frame(
        {
            **{name: traffic[name] for name in traffic.columns},
            "bytes": read,
            "floor_ns": floor_ns,
            "fraction": np.where(known, floor_ns / np.maximum(dur, 1), -1.0),
        }
    )
