"""Which launches an export shows: by default one step, and no more than a budget."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd

from megatrace.errors import UsageError
from megatrace.export.wire import I8, Mask

_MAX_NS = 1 << 62
Steps = Collection[int] | Literal["one", "all"]


@dataclass(frozen=True, slots=True)
class Selection:
    """What is shown and what is not.

    ``launches`` is a mask over the rows of ``Trace.launches``, ``steps`` the ids shown,
    ``left_out`` one phrase for each thing that is not.
    """

    launches: Mask
    steps: tuple[int, ...]
    left_out: tuple[str, ...]


def select(launches: pd.DataFrame, records: pd.DataFrame, steps: Steps, budget: int) -> Selection:
    """Choose launches, whole ones, until ``budget`` slices are reached.

    ``"one"`` is the step of median duration among those seen whole by every rank. Raises
    UsageError for steps the frames do not have.
    """
    if not len(launches):
        return Selection(np.zeros(0, np.bool_), (), ())
    wanted = chosen_steps(launches, steps)
    left_out = list(steps_left_out(launches, wanted))
    step, begin = launches["step"].to_numpy(), launches["begin_ns"].to_numpy()
    chosen = np.isin(step, wanted)
    # Damaged headers can place a launch where no clock has ever been.
    nowhere = chosen & ((begin < 0) | (begin >= _MAX_NS))
    if nowhere.any():
        chosen &= ~nowhere
        left_out.append(f"{int(nowhere.sum()):,} launches of warps at impossible times")
    chosen, cut = _within(launches, records, chosen, budget)
    if cut:
        left_out.append(f"{cut} (budget of {budget:,} slices)")
    return Selection(chosen, tuple(np.unique(step[chosen]).tolist()), tuple(left_out))


def chosen_steps(launches: pd.DataFrame, steps: Steps) -> list[int]:
    """Ids of the steps that ``steps`` means, sorted. Raises UsageError for unknown ones."""
    have: list[int] = np.unique(launches["step"].to_numpy()).tolist()
    if steps == "all":
        return have
    if steps == "one":
        return [_typical(launches)]
    wanted = sorted({int(step) for step in steps})
    if missing := sorted(set(wanted) - set(have)):
        raise UsageError(
            f"no launch of step {', '.join(map(str, missing))} in this capture",
            hint=f"it has steps {have[0]} to {have[-1]}",
        )
    return wanted


def steps_left_out(launches: pd.DataFrame, chosen: list[int]) -> tuple[str, ...]:
    """A phrase for the steps that were not chosen, if there are any."""
    have = launches["step"].nunique()
    return (f"{have - len(chosen):,} of {have:,} steps",) if len(chosen) < have else ()


def _typical(launches: pd.DataFrame) -> int:
    """The step of median duration among the complete ones; of all, where none is."""
    by_rank = launches.groupby(["rank", "step"]).agg(
        begin=("begin_ns", "min"),
        end=("end_ns", "max"),
        whole=("complete", "all"),
        lost=("lost_lines", "sum"),
    )
    by_rank["dur"] = by_rank["end"] - by_rank["begin"]
    steps = by_rank.groupby("step").agg(
        dur=("dur", "max"), whole=("whole", "all"), lost=("lost", "sum"), ranks=("dur", "size")
    )
    whole = steps[steps["whole"] & (steps["lost"] == 0) & (steps["ranks"] == steps["ranks"].max())]
    pool = whole if len(whole) else steps
    by_duration = pool["dur"].sort_values(kind="stable")
    return int(by_duration.index[(len(by_duration) - 1) // 2])


def _within(
    launches: pd.DataFrame, records: pd.DataFrame, chosen: Mask, budget: int
) -> tuple[Mask, str]:
    """``chosen`` cut to the budget, at the boundary of a launch, and what that cut off."""
    owner = records["launch_row"].to_numpy()
    cost = np.bincount(owner, minlength=len(launches)).astype(np.int64)
    if cost[chosen].sum() <= budget:
        return chosen, ""
    number = launches["launch"].to_numpy()
    rank = launches["rank"].to_numpy().astype(np.int64)
    rows = np.flatnonzero(chosen)
    _, group = np.unique(np.stack([rank[rows], number[rows]]), axis=1, return_inverse=True)
    group = group.ravel()
    # Clocks of ranks differ: each counts from its own first launch.
    begin = launches["begin_ns"] - launches.groupby("rank")["begin_ns"].transform("min")
    kept = _first_groups(group, begin.to_numpy()[rows], cost[rows], budget)
    mask = np.zeros(len(launches), np.bool_)
    mask[rows[kept[group]]] = True
    return mask, f"{int((~kept).sum()):,} of {len(kept):,} launches"


def _first_groups(group: I8, begin: I8, cost: I8, budget: int) -> Mask:
    """Which groups fit, in the order they begin; at least the first."""
    count = int(group.max()) + 1
    begins = np.full(count, np.iinfo(np.int64).max)
    np.minimum.at(begins, group, begin)
    costs = np.bincount(group, cost, count)
    order = np.argsort(begins, kind="stable")
    fits = np.cumsum(costs[order]) <= budget
    fits[0] = True
    kept = np.zeros(count, np.bool_)
    kept[order[fits]] = True
    return kept
