"""Steps of the host beside the launches that ran in them."""

from __future__ import annotations

import numpy as np
import pandas as pd

from megatrace.analysis.columns import STEP_TIMES
from megatrace.analysis.lines import I8
from megatrace.analysis.numbers import BOTH, numbers_of
from megatrace.analysis.pick import number_keys
from megatrace.analysis.server import STAGES, STEP_ARGS
from megatrace.analysis.trace import Trace
from megatrace.analysis.walls import launch_times
from megatrace.schema.processes import PROCESSES_APART


def step_times(trace: Trace) -> pd.DataFrame:
    """A row a step or forward of the host; columns as ``STEP_TIMES`` says."""
    device = _device_times(trace)
    host = trace.host[trace.host["event"].isin(list(STAGES.values()))]
    stages = pd.DataFrame(
        {
            **{name: host[name].astype("int64") for name in BOTH},
            "step": host["step"],
            "stage": host["event"].astype(object),
            "begin_ns": host["begin_ns"],
            "dur_ns": host["host_end_ns"] - host["host_begin_ns"],
            "host_gap_ns": _gaps(host),
            **{name: host[name] for name in ("batch_size", "tokens", "accepted")},
        }
    )
    # All zero is a span that somebody wrote without values.
    silent = (host[list(STEP_ARGS)] == 0).all(axis=1)
    stages.loc[silent, ["batch_size", "tokens", "accepted"]] = -1
    step = [*BOTH, "step"]
    ids, told_of = (pd.MultiIndex.from_frame(of[step]) for of in (device, stages))
    alone = device[~ids.isin(told_of)]
    joined = stages.merge(device[[*step, "launches", "device_ns"]], on=step, how="left")
    alone = alone.assign(stage="", host_gap_ns=-1, batch_size=-1, tokens=-1, accepted=-1)
    whole = pd.concat([joined, alone], ignore_index=True)
    if not len(whole):
        return STEP_TIMES.empty()
    for name in ("launches", "device_ns"):
        whole[name] = whole[name].fillna(-1)  # no timeline of that step
    told = (whole["batch_size"] > 0) & (whole["accepted"] >= 0)
    whole["accept_length"] = np.where(told, whole["accepted"] / whole["batch_size"].clip(1), -1.0)
    whole = whole.sort_values(["process", "rank", "step", "begin_ns", "stage"], kind="stable")
    return STEP_TIMES.frame({name: whole[name].to_numpy() for name in whole.columns})


def _gaps(host: pd.DataFrame) -> I8:
    """Since the latest end of the same rank and stage so far."""
    gap = np.full(len(host), -1, np.int64)
    if not len(host):
        return gap
    key = number_keys(numbers_of(host), pd.factorize(host["event"])[0])
    begin, end = host["host_begin_ns"].to_numpy(), host["host_end_ns"].to_numpy()
    order = np.lexsort((begin, key))
    latest = pd.Series(end[order]).groupby(key[order]).cummax().to_numpy()
    same = np.diff(key[order]) == 0
    gap[order[1:][same]] = np.maximum(begin[order][1:] - latest[:-1], 0)[same]
    return gap


def _device_times(trace: Trace) -> pd.DataFrame:
    """Launches by rank and step: how many, when, and the time in which at least one ran."""
    launches = launch_times(trace)
    begin = launches["begin_ns"].to_numpy()
    end = np.maximum(launches["end_ns"].to_numpy(), begin)
    rank, step = numbers_of(launches), launches["step"].to_numpy()
    order = np.lexsort((begin, step, rank))
    begin, end, rank, step = begin[order], end[order], rank[order], step[order]
    fresh = np.ones(len(order), bool)
    fresh[1:] = (np.diff(rank) != 0) | (np.diff(step) != 0)
    group = np.cumsum(fresh) - 1
    latest = pd.Series(end).groupby(group).cummax().to_numpy()
    before = np.append(0, latest[:-1])[: len(order)]
    before[fresh] = 0
    ran = np.maximum(end - np.maximum(begin, before), 0)
    first = np.flatnonzero(fresh)
    last = np.append(first[1:], len(order))[: len(first)] - 1
    return pd.DataFrame(
        {
            "rank": rank[first] % PROCESSES_APART,
            "process": rank[first] // PROCESSES_APART + 1,
            "step": step[first],
            "begin_ns": begin[first],
            "dur_ns": latest[last] - begin[first],
            "launches": np.diff(np.append(first, len(order))),
            "device_ns": np.bincount(group, ran, len(first)).astype(np.int64),
        }
    )
