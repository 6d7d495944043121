"""Which launches an export shows: by default one step, and no more than a budget."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from megatrace.analysis.numbers import BOTH, numbers_of
from megatrace.analysis.plain import ranges_text
from megatrace.errors import UsageError
from megatrace.export.wire import I8, Mask
from megatrace.schema.processes import PROCESSES_APART, rank_text

_MAX_NS = 1 << 62
_NAMED = 3
"""Processes left out that are named one by one."""
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
    """Choose launches, whole ones and at least one, until ``budget`` slices are reached.

    ``"one"`` is the step of median duration among those seen whole by every rank, of the
    process with most launches where a rank has had several. Raises
    UsageError for steps the frames do not have.
    """
    if not len(launches):
        return Selection(np.zeros(0, np.bool_), (), ())
    chosen: Mask = np.ones(len(launches), np.bool_)
    left_out: list[str] = []
    if steps == "one":
        chosen, left_out = one_process(numbers_of(launches))
    wanted = chosen_steps(launches[chosen], steps)
    left_out += steps_left_out(launches[chosen], wanted)
    step, begin = launches["step"].to_numpy(), launches["begin_ns"].to_numpy()
    chosen &= np.isin(step, wanted)
    # Damaged headers can place a launch where no clock has ever been.
    nowhere = chosen & ((begin < 0) | (begin >= _MAX_NS))
    if nowhere.any():
        chosen &= ~nowhere
        left_out.append(f"{int(nowhere.sum()):,} launches of warps at impossible times")
    cost = np.bincount(records["launch_row"].to_numpy(), minlength=len(launches))
    chosen, cut = within(launches, cost, chosen, budget, "slices")
    return Selection(chosen, tuple(np.unique(step[chosen]).tolist()), (*left_out, *cut))


def one_process(rank: NDArray[Any]) -> tuple[Mask, list[str]]:
    """Rows of the process that most of ``rank`` (numbers) is of, and a phrase for the others.

    Their steps are numbered alike, and have nothing to do with each other.
    """
    process = rank.astype(np.int64) // PROCESSES_APART
    each, rows = np.unique(process, return_counts=True)
    others = np.unique(rank[process != each[rows.argmax()]]).tolist() if len(each) else []
    mine: Mask = ~np.isin(rank, others)
    words = [f"rank {rank_text(number)}" for number in others[:_NAMED]]
    more = [f"{len(others) - _NAMED} more processes"] if len(others) > _NAMED else []
    return mine, [*words, *more]


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
            hint=f"it has step{'s' * (len(have) > 1)} {ranges_text(have)}",
        )
    return wanted


def steps_left_out(launches: pd.DataFrame, chosen: list[int]) -> tuple[str, ...]:
    """A phrase for the steps that were not chosen, if there are any."""
    have = launches["step"].nunique()
    return (f"{have - len(chosen):,} of {have:,} steps",) if len(chosen) < have else ()


def _typical(launches: pd.DataFrame) -> int:
    """The step of median duration among the complete ones; of all, where none is."""
    by_rank = launches.groupby([*BOTH, "step"]).agg(
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


def within(
    launches: pd.DataFrame, cost: I8, chosen: Mask, budget: int, unit: str
) -> tuple[Mask, tuple[str, ...]]:
    """``chosen`` cut to the budget between launches, and a phrase for what that cut off.

    ``cost`` is what each row of ``launches`` takes of the budget, in ``unit``. The launch
    that begins first is kept whatever it takes.
    """
    if cost[chosen].sum() <= budget:
        return chosen, ()
    number = launches["launch"].to_numpy()
    rank = numbers_of(launches)
    rows = np.flatnonzero(chosen)
    _, group = np.unique(np.stack([rank[rows], number[rows]]), axis=1, return_inverse=True)
    group = group.ravel()
    # Clocks of ranks differ: each counts from its own first launch.
    begin = launches["begin_ns"] - launches.groupby(rank)["begin_ns"].transform("min")
    kept = _first_groups(group, begin.to_numpy()[rows], cost[rows], budget)
    mask = np.zeros(len(launches), np.bool_)
    mask[rows[kept[group]]] = True
    if kept.all():
        return mask, ()
    cut = f"{int((~kept).sum()):,} of {len(kept):,} launches"
    return mask, (f"{cut} (budget of {budget:,} {unit})",)


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
