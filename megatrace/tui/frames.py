"""Tables of a capture, out of its flat arrays: of one step, or of all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from megatrace.schema.processes import number_of
from megatrace.tui.model import F8, Frame
from megatrace.tui.reading import MAX_POINTS

if TYPE_CHECKING:
    import pandas as pd

    from megatrace.tui.flat import Flat, StepOf

Ints = NDArray[np.int64]

_STEP_BITS = 48


@dataclass(frozen=True, slots=True)
class LaunchFloors:
    """Launches whose fraction of the floor is known: places in Flat ``(n,)``, and the fraction."""

    rank: Ints
    step: Ints
    layer: Ints
    fraction: F8


def floors_of(flat: Flat, frames: Sequence[pd.DataFrame]) -> LaunchFloors:
    """The launches of tables ``floor`` that have a fraction."""
    ranks = {rank: at for at, rank in enumerate(flat.ranks)}
    layers = {layer: at for at, layer in enumerate(flat.layers)}
    rows = [
        (ranks[number_of(rank, process)], step, layers[kernel, layer], fraction)
        for frame in frames
        for rank, process, step, kernel, layer, fraction in frame.loc[
            frame["fraction"] >= 0, ["rank", "process", "step", "kernel", "layer", "fraction"]
        ].itertuples(index=False)
    ]
    places, fraction = np.array(rows, float).reshape(-1, 4)[:, :3], [row[3] for row in rows]
    rank, step, layer = places.astype(np.int64).T
    return LaunchFloors(rank, step, layer, np.array(fraction, float))


def frame_of(flat: Flat, step: StepOf | None, floors: LaunchFloors | None = None) -> Frame:
    """Tables of one step, or of all."""
    shape = (len(flat.ranks), len(flat.layers), len(flat.roles))
    order = sorted(range(len(flat.layers)), key=lambda i: flat.layers[i])
    place_of: Ints = np.argsort(np.array(order, np.int64)).astype(np.int64)
    warps, walls, asked = flat.warps, flat.walls, flat.prefetches
    mine = flat.within(warps.rank, warps.step, step)
    layer = place_of[warps.layer[mine]]
    group = (warps.rank[mine] * shape[1] + layer) * shape[2] + warps.role[mine]
    places, place_stalled, place_busy = places_of(flat, step, None)
    of = flat.within(asked.rank, asked.step, step)
    issued = asked.rank[of] * shape[1] + place_of[asked.layer[of]]
    late, early = asked.late[of], asked.early[of]
    two = shape[:2]
    ran = flat.within(walls.rank, walls.step, step)
    wall = _medians(walls.rank[ran], place_of[walls.layer[ran]], walls.wall[ran], two)
    return Frame(
        ranks=flat.ranks,
        layers=tuple(flat.layers[i] for i in order),
        roles=flat.roles,
        places=places,
        place_kind="SM",
        time=wall,
        stalled=_by_cause(group, warps.stalled[mine], shape),
        busy=_sum(group, warps.dur[mine], shape),
        launches=_sum(group, None, shape),
        uses=_sum(issued, None, two),
        late=_sum(issued, late.astype(np.float64), two),
        late_time=_sum(issued, np.where(late, asked.time[of], 0.0), two),
        unseen=_sum(issued, (~late & ~early).astype(np.float64), two),
        place_stalled=place_stalled,
        place_busy=place_busy,
        series=_series(flat, place_of, two),
        floor=None if floors is None else _floor(flat, floors, step, place_of, two),
    )


def _floor(
    flat: Flat, floors: LaunchFloors, step: StepOf | None, place_of: Ints, shape: tuple[int, int]
) -> F8:
    of = flat.within(floors.rank, floors.step, step)
    return _medians(floors.rank[of], place_of[floors.layer[of]], floors.fraction[of], shape)


def places_of(flat: Flat, step: StepOf | None, layer: int | None) -> tuple[tuple[int, ...], F8, F8]:
    """SMs, and by rank, SM and role the time stalled by cause and the time spent."""
    warps = flat.warps
    mine = np.ones(len(warps.rank), bool)
    if step is not None:
        mine &= flat.within(warps.rank, warps.step, step)
    if layer is not None:
        mine &= warps.layer == layer
    sms, sm = np.unique(warps.sm[mine], return_inverse=True)
    shape = (len(flat.ranks), len(sms), len(flat.roles))
    group = (warps.rank[mine] * shape[1] + sm) * shape[2] + warps.role[mine]
    stalled = _by_cause(group, warps.stalled[mine], shape)
    return tuple(sms.tolist()), stalled, _sum(group, warps.dur[mine], shape)


def _sum(group: Ints, values: F8 | None, shape: tuple[int, ...]) -> F8:
    size = int(np.prod(shape))
    return np.bincount(group, values, size).astype(np.float64).reshape(shape)


def _by_cause(group: Ints, stalled: F8, shape: tuple[int, ...]) -> F8:
    return np.stack([_sum(group, column, shape) for column in stalled.T], axis=-1)


def _medians(rank: Ints, layer: Ints, wall: F8, shape: tuple[int, int]) -> F8:
    """Median time of a launch, by rank and layer; nan where there is none."""
    out = np.full(shape, np.nan)
    group = rank * shape[1] + layer
    order = np.lexsort((wall, group))
    values, sorted_group = wall[order], group[order]
    if len(order):
        starts = np.flatnonzero(np.diff(sorted_group, prepend=-1))
        for group_values, at in zip(np.split(values, starts[1:]), starts, strict=True):
            out.reshape(-1)[sorted_group[at]] = np.median(group_values)
    return out


def _series(flat: Flat, place_of: Ints, shape: tuple[int, int]) -> F8:
    """Time of a launch step by step, one process of the ranks after the other.

    Of many steps, the means of equal runs of them.
    """
    walls = flat.walls
    many = min(len(flat.steps), MAX_POINTS)
    if not many:
        return np.zeros((*shape, 0))
    steps = np.array([(s.process << _STEP_BITS) + s.step for s in flat.steps])
    wanted = (flat.processes[walls.rank] << _STEP_BITS) + walls.step
    point = np.searchsorted(steps, wanted) * many // len(flat.steps)
    group = (walls.rank * shape[1] + place_of[walls.layer]) * many + point
    total = _sum(group, walls.wall, (*shape, many))
    with np.errstate(invalid="ignore"):
        series: F8 = total / _sum(group, None, (*shape, many))
    return series
