"""What every view shows, whether it comes from a live session or from a capture.

A :class:`Frame` holds tables of one span of time, summed over launches; a :class:`Status`
says where they come from and how far they can be trusted. Nothing here draws.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from megatrace.schema import CAUSES, Cause

F8 = NDArray[np.float64]

CLASSES: tuple[str, ...] = (*(cause.value for cause in CAUSES), "not waiting")
"""The parts of a bar, in order."""
SYNC = [CAUSES.index(Cause.INPUT), CAUSES.index(Cause.PEER)]

SORTS = ("layer", "time", *CLASSES[:-1], "sync", "late")
"""What rows can be sorted by; all but ``layer`` from the largest."""


@dataclass(frozen=True, slots=True)
class RankState:
    """One rank, as it is or as it was recorded. None where nobody knows.

    Every ``rank`` here is a number of :mod:`megatrace.schema.processes`.
    """

    rank: int
    alive: bool = True
    step: int | None = None
    steps_per_s: float | None = None
    level: str = ""
    every_n: int | None = None
    lines_read: int = 0
    lines_lost: int = 0
    clock_error_ns: float | None = None
    tokens_per_s: float | None = None
    accept_length: float | None = None


@dataclass(frozen=True, slots=True)
class Status:
    """What stands above every table.

    Attributes:
        state: ``live``, ``waiting``, ``ended``, ``loading``, ``replay`` or ``failed``.
        text: the state in a few words.
        device: ``cpu``, ``cuda``, both, or "".
        loss: one phrase; ``lossy`` where it is not "nothing lost".
        span: which time the tables are of.
        notes: what else the reader must know, most important first.
        asked: level, every, steps, sms as the recorder has them now.
    """

    title: str
    state: str
    text: str
    device: str = ""
    steps_per_s: float | None = None
    tokens_per_s: float | None = None
    accept_length: float | None = None
    level: str = ""
    sampling: str = ""
    loss: str = ""
    lossy: bool = False
    clock_error_ns: float | None = None
    line_bytes_per_s: float | None = None
    """What kernels wrote of late: measured. The time that it cost them is not."""
    file_bytes: int = 0
    span: str = ""
    ranks: tuple[RankState, ...] = ()
    notes: tuple[str, ...] = ()
    asked: tuple[tuple[str, str], ...] = ()

    @property
    def timed(self) -> bool:
        """Whether times may be judged: those of a host build on a CPU may not."""
        return "cpu" not in self.device


@dataclass(frozen=True, slots=True)
class Frame:
    """Tables of one span of time. R ranks, L layers, W roles of warps, P places.

    Attributes:
        layers: kernel and layer number of each row; kernel "" where it is not known.
        places: SM numbers, or blocks where ``place_kind`` is "block".
        time: time of one launch ``(R, L)``; nan: not known.
        stalled: ``(R, L, W, causes)``, over all warps and launches.
        busy: time the warps spent in launches ``(R, L, W)``; all 0 where ``counted``.
        launches: launches of warps ``(R, L, W)``.
        uses: prefetches, or in a live session first uses of them, ``(R, L)``.
        late: of those, blocked; ``late_time`` for how long in all.
        unseen: prefetches without a use that was seen.
        place_stalled: ``(R, P, W, causes)``, ``place_busy`` ``(R, P, W)``.
        series: time of a launch over time ``(R, L, T)``, oldest first; nan: none then.
        counted: the stalls are of counters: no time beside them, shares are of stall time.
        unit: of all times: ``ns``, or ``cycles`` where no clock rate is known.
        whole_uses: whether ``uses`` counts prefetches.
        floor: fraction of the floor that a launch reaches ``(R, L)``, nan: not known; None
            where nothing says it.
    """

    ranks: tuple[int, ...]
    layers: tuple[tuple[str, int], ...]
    roles: tuple[str, ...]
    places: tuple[int, ...]
    place_kind: str
    time: F8
    stalled: F8
    busy: F8
    launches: F8
    uses: F8
    late: F8
    late_time: F8
    unseen: F8
    place_stalled: F8
    place_busy: F8
    series: F8
    counted: bool = False
    unit: str = "ns"
    whole_uses: bool = True
    floor: F8 | None = None

    def at(self, rank: int | None) -> list[int] | slice:
        """Places of ``rank`` on the first axis; of all where None."""
        if rank is None:
            return slice(None)  # a view: no table is copied
        return [i for i, r in enumerate(self.ranks) if r == rank]

    def label(self, layer: int) -> str:
        """How a layer is named: its number, with the kernel where there are several."""
        kernel, number = self.layers[layer]
        return f"{kernel} {number}" if self.several else str(number)

    @property
    def several(self) -> bool:
        """Whether layers of more than one kernel are here."""
        return any(kernel != self.layers[0][0] for kernel, _ in self.layers)


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a table of stalls. Times are of the frame's unit, None: not known.

    ``bar`` has a share for each of CLASSES and sums to 1, or is all 0. ``sync`` is the
    mean time a warp waits for others in a launch.
    """

    key: int
    label: str
    time: float | None
    share: float | None
    bar: tuple[float, ...]
    sync: float | None
    uses: int
    late: int
    late_time: float
    unseen: int
    series: tuple[float, ...]
    floor: float | None = None
    """Fraction of the floor that its launches reach."""


def shares(stalled: F8, busy: F8) -> list[tuple[float, ...]]:
    """Share of each of CLASSES, a row each: of ``busy`` time, or of the stalls where it is 0.

    ``stalled`` is ``(n, causes)``, ``busy`` ``(n,)``.
    """
    total = stalled.sum(axis=1)
    whole = np.maximum(busy, total)
    safe = np.where(whole > 0, whole, 1.0)[:, None]
    table = np.concatenate([stalled, (whole - total)[:, None]], axis=1) / safe
    return [tuple(row) for row in table.tolist()]


def layer_rows(frame: Frame, rank: int | None) -> list[Row]:
    """A row a layer, in the frame's order; layers in which nothing ran are left out."""
    at = frame.at(rank)
    stalled = frame.stalled[at].sum(axis=(0, 2))
    busy = frame.busy[at].sum(axis=(0, 2))
    launches = frame.launches[at].sum(axis=(0, 2))
    time = _mean(frame.time[at])
    whole = float(np.nansum(time))
    series = _mean(frame.series[at]).tolist()
    uses, late, late_time, unseen = (
        t[at].sum(axis=0).tolist() for t in (frame.uses, frame.late, frame.late_time, frame.unseen)
    )
    sync = stalled[:, SYNC].sum(axis=1) / np.maximum(launches, 1)
    ran = (launches > 0) | stalled.any(axis=1)
    bars = shares(stalled, busy)
    floors = [math.nan] * len(ran) if frame.floor is None else _mean(frame.floor[at]).tolist()
    # Lists: taking a number out of an array is slow.
    times, syncs, counts = time.tolist(), sync.tolist(), launches.tolist()
    first = int(not frame.several)
    return [
        Row(
            key=i,
            label=" ".join(map(str, frame.layers[i][first:])),
            time=times[i] if times[i] == times[i] else None,
            share=times[i] / whole if times[i] == times[i] and whole else None,
            bar=bars[i],
            sync=syncs[i] if counts[i] else None,
            uses=int(uses[i]),
            late=int(late[i]),
            late_time=late_time[i],
            unseen=int(unseen[i]),
            series=tuple(series[i]),
            floor=floors[i] if floors[i] == floors[i] else None,
        )
        for i in np.flatnonzero(ran).tolist()
    ]


def role_rows(frame: Frame, rank: int | None, layer: int | None) -> list[Row]:
    """A row a role, of one layer or of all."""
    at = frame.at(rank)
    of = slice(None) if layer is None else slice(layer, layer + 1)
    stalled = frame.stalled[at][:, of].sum(axis=(0, 1))
    busy = frame.busy[at][:, of].sum(axis=(0, 1))
    launches = frame.launches[at][:, of].sum(axis=(0, 1))
    bars = shares(stalled, busy)
    return [
        Row(
            key=i,
            label=role,
            time=float(busy[i] / launches[i]) if launches[i] and busy[i] else None,
            share=None,
            bar=bars[i],
            sync=float(stalled[i, SYNC].sum() / launches[i]) if launches[i] else None,
            uses=0,
            late=0,
            late_time=0.0,
            unseen=0,
            series=(),
        )
        for i, role in enumerate(frame.roles)
    ]


def rank_bar(frame: Frame, rank: int) -> tuple[float, ...]:
    """The bar of everything that ran on one rank."""
    at = frame.at(rank)
    stalled = frame.stalled[at].sum(axis=(0, 1, 2))
    return shares(stalled[None], frame.busy[at].sum(keepdims=True).reshape(1))[0]


def place_shares(frame: Frame, rank: int | None) -> tuple[F8, F8]:
    """``(P, W)`` share of time stalled, nan where nothing ran; and by cause ``(P, W, causes)``.

    Where no time is known (counters), the share is of the most any place stalled.
    """
    at = frame.at(rank)
    stalled = frame.place_stalled[at].sum(axis=0)
    busy = frame.place_busy[at].sum(axis=0)
    if frame.counted:
        most = stalled.sum(axis=2).max(initial=0.0)
        busy = np.where(stalled.sum(axis=2) > 0, most, 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        by_cause = np.where(busy[..., None] > 0, stalled / busy[..., None], np.nan)
    return np.clip(by_cause.sum(axis=2), 0, 1), by_cause


def sort_rows(rows: list[Row], by: str) -> list[Row]:
    """``rows`` by one of SORTS."""
    if by == "layer":
        return rows
    if by in CLASSES:
        slot = CLASSES.index(by)
        return sorted(rows, key=lambda row: -row.bar[slot])
    value = {
        "time": lambda row: row.time or 0.0,
        "sync": lambda row: row.sync or 0.0,
        "late": lambda row: row.late_time,
    }[by]
    return sorted(rows, key=value, reverse=True)


def _mean(table: F8) -> F8:
    """Mean over the first axis of what is not nan; nan where nothing is."""
    known = ~np.isnan(table)
    many = known.sum(axis=0)
    total = np.where(known, table, 0.0).sum(axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean: F8 = np.where(many > 0, total / many, np.nan)
    return mean
