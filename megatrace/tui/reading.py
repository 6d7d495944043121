"""From readings of an aggregate page to a frame and a status."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from megatrace.ring.aggregate import Aggregate
from megatrace.ring.sums import Sums
from megatrace.schema.layout import LEVEL_COUNTERS, LEVEL_OFF, LEVEL_TIMELINE, LINE_BYTES
from megatrace.tui.model import F8, Frame, RankState, Status
from megatrace.tui.numbers import number

LEVELS = {LEVEL_OFF: "off", LEVEL_COUNTERS: "counters", LEVEL_TIMELINE: "timeline"}
DEVICES = {0: "cpu", 1: "cuda"}
MAX_POINTS = 14
"""Points of a sparkline: as many as its column is ever wide."""

CPU_NOTE = "cpu: the host build runs here; order and logic are real, times are no verdict"
IDLE_NOTE = "no launch has come for a while"


class Series:
    """Time of a launch ``(ranks, layers)`` over time; one point a reading that has any."""

    def __init__(self) -> None:
        """No points yet."""
        self._last: Sums | None = None
        self._points: list[F8] = []

    def add(self, reading: Aggregate) -> None:
        """Add what came between the last reading and this one."""
        if self._last is not None:
            busy = reading.sums.seen_busy - self._last.seen_busy
            launches = reading.sums.seen_launches - self._last.seen_launches
            if launches.any():
                self._points.append(_time_of(busy, launches))
                del self._points[:-MAX_POINTS]
                self._last = reading.sums
        else:
            self._last = reading.sums

    def table(self, shape: tuple[int, int]) -> F8:
        """``(ranks, layers, points)``, in cycles."""
        fitting = [point for point in self._points if point.shape == shape]
        return np.stack(fitting, axis=2) if fitting else np.zeros((*shape, 0))


def live_frame(now: Aggregate, before: Aggregate | None, series: Series) -> Frame:
    """Tables of the time from ``before`` to ``now``, of all since the start where None."""
    sums = now.sums if before is None else now.sums.since(before.sums)
    rate, unit = _rates(now)
    by_rank = rate[:, None]
    launches = sums.seen_launches.astype(np.float64)
    counted = not launches.any()
    time = _time_of(now.sums.seen_busy, now.sums.seen_launches)
    if not counted:
        recent = _time_of(sums.seen_busy, sums.seen_launches)
        time = np.where(np.isnan(recent), time, recent)
    stalled = sums.cycles if counted else sums.seen_cycles
    places, kind, place_stalled, place_busy = _places(sums, counted=counted)
    prefetch = sums.prefetch.astype(np.float64)
    points = series.table((len(now.ranks), launches.shape[1]))
    return Frame(
        ranks=tuple(int(r) for r in now.ranks["rank"]),
        layers=tuple(("", layer) for layer in range(launches.shape[1])),
        roles=now.roles,
        places=places,
        place_kind=kind,
        time=time * by_rank,
        stalled=stalled * rate[:, None, None, None],
        busy=sums.seen_busy * rate[:, None, None],
        launches=launches,
        uses=prefetch[..., 0],
        late=prefetch[..., 1],
        late_time=prefetch[..., 2] * by_rank,
        unseen=np.zeros(prefetch.shape[:2]),
        place_stalled=place_stalled * rate[:, None, None, None],
        place_busy=place_busy * rate[:, None, None],
        series=points * rate[:, None, None],
        counted=counted,
        unit=unit,
        whole_uses=False,
    )


def live_status(now: Aggregate, old: Aggregate, before: Aggregate | None) -> Status:
    """What ``now`` says above the tables; rates are since ``old``, tables since ``before``."""
    span_s = (now.updated_ns - old.updated_ns) / 1e9
    ranks = tuple(_rank(now, old, at, span_s) for at in range(len(now.ranks)))
    alive = [rank for rank in ranks if rank.alive]
    devices = sorted({DEVICES[int(d)] for d in now.ranks["device"] if int(d) in DEVICES})
    rates = [rank.steps_per_s for rank in alive if rank.steps_per_s is not None]
    served = [rank.tokens_per_s for rank in ranks if rank.tokens_per_s]
    accepts = [rank.accept_length for rank in ranks if rank.accept_length is not None]
    ended = _left_out(now)
    lost = int(now.ranks["lines_lost"].sum()) + ended["lines_lost"]
    read = int(now.ranks["lines_read"].sum()) + ended["lines_read"]
    lines = _lines_written(now) - _lines_written(old)
    host_lost = int(now.ranks["host_lost"].sum()) + ended["host_lost"]
    asked = now.note.get("asked")
    asked = asked if isinstance(asked, dict) else {}
    since = (now.updated_ns - (before.updated_ns if before else now.started_ns)) / 1e9
    notes = [CPU_NOTE] if "cpu" in devices else []
    if rates and not any(rates):
        notes.append(IDLE_NOTE)
    if ended["processes"]:
        notes.append(f"{ended['processes']:,} processes that ended earlier are not shown")
    if isinstance(why := now.note.get("no_tables"), str):
        notes.append(f"no tables: {why}")
    return Status(
        title="",
        state="live",
        text="",
        device=" and ".join(devices),
        steps_per_s=max(rates, default=None),
        tokens_per_s=max(served, default=None),
        accept_length=accepts[0] if accepts else None,
        level=str(asked.get("level", "")),
        sampling=_sampling(now, asked),
        loss=_loss(lost, read, host_lost),
        lossy=bool(lost or host_lost),
        clock_error_ns=None if np.isnan(now.clock_error_ns) else now.clock_error_ns,
        line_bytes_per_s=max(0, lines) * LINE_BYTES / span_s if span_s > 0 else None,
        file_bytes=now.file_bytes,
        span=f"last {since:.0f} s" if before else f"all {since:.0f} s",
        ranks=ranks,
        notes=tuple(notes),
        asked=tuple((str(k), str(v)) for k, v in asked.items()),
    )


def _left_out(now: Aggregate) -> dict[str, int]:
    """What the page leaves out: processes that ended, and their lines."""
    told = now.note.get("left_out")
    told = told if isinstance(told, dict) else {}
    names = ("processes", "lines_read", "lines_lost", "host_lost")
    return {name: value if isinstance(value := told.get(name), int) else 0 for name in names}


def _lines_written(page: Aggregate) -> int:
    """Lines of all processes, read or lost."""
    ended, names = _left_out(page), ("lines_read", "lines_lost")
    return sum(int(page.ranks[name].sum()) + ended[name] for name in names)


def _sampling(now: Aggregate, asked: dict[str, object]) -> str:
    """``1 step in 4 (auto)``, and what else narrows it."""
    every = sorted({int(n) for n in now.ranks["every_n"] if n})
    parts = []
    if asked.get("level", "timeline") != "timeline":
        parts.append("no timeline")
    elif not every:
        parts.append("no step")
    elif every[-1] == 1:
        parts.append("every step")
    else:
        parts.append(
            "1 step in " + (f"{every[0]}-{every[-1]}" if len(every) > 1 else f"{every[0]}")
        )
    if asked.get("every") == "auto" and every and every[-1] > 1:
        parts[0] += " (auto)"
    if asked.get("steps", "all") != "all":
        parts.append(f"of steps {asked['steps']}")
    if asked.get("sms", "all") != "all":
        parts.append(f"SMs {asked['sms']}")
    return ", ".join(parts)


def _loss(lost: int, read: int, host_lost: int) -> str:
    parts = [f"{number(lost) if lost > 9999 else lost} of {number(lost + read)} lines lost"] * (
        lost > 0
    )
    if host_lost:
        parts.append(f"{host_lost:,} host records lost")
    return ", ".join(parts) or "nothing lost"


def _rank(now: Aggregate, old: Aggregate, at: int, span_s: float) -> RankState:
    row = now.ranks[at]
    same = len(old.ranks) == len(now.ranks) and old.ranks[at]["rank"] == row["rank"]
    steps = tokens = None
    accept = None
    if same and span_s > 0:
        was = old.ranks[at]
        if row["step"]:  # a host without a hook says no steps
            steps = max(0.0, float(int(row["step"]) - int(was["step"])) / span_s)
        tokens = max(0.0, float(int(row["tokens"]) - int(was["tokens"])) / span_s)
        verified = int(row["verified"]) - int(was["verified"])
        if verified > 0:
            accept = (int(row["accepted"]) - int(was["accepted"])) / verified
    error = float(row["clock_error_ns"])
    return RankState(
        rank=int(row["rank"]),
        alive=bool(row["alive"]),
        step=int(row["step"]),
        steps_per_s=steps,
        level=LEVELS.get(int(row["level"]), "?"),
        every_n=int(row["every_n"]) or None,
        lines_read=int(row["lines_read"]),
        lines_lost=int(row["lines_lost"]),
        clock_error_ns=None if np.isnan(error) else error,
        tokens_per_s=tokens,
        accept_length=accept,
    )


def _rates(now: Aggregate) -> tuple[F8, str]:
    """Nanoseconds a cycle of each rank; 1 where no rank knows, and times are in cycles."""
    rate = now.ranks["ns_per_cycle"].astype(np.float64)
    known = np.isfinite(rate) & (rate > 0)
    if not known.any():
        return np.ones(len(rate)), "cycles"
    return np.where(known, rate, rate[known].mean()), "ns"


def _time_of(busy: NDArray[np.uint64], launches: NDArray[np.uint64]) -> F8:
    """Cycles of a launch: of the role that is in it longest, the mean of its warps."""
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = np.where(launches > 0, busy / launches, -1.0)
    longest = mean.max(axis=2, initial=-1.0)
    return np.where(longest >= 0, longest, np.nan)


def _places(sums: Sums, *, counted: bool) -> tuple[tuple[int, ...], str, F8, F8]:
    """By SM where launches were seen; counters only know the block."""
    if counted:
        ran = np.flatnonzero(sums.block_cycles.any(axis=(0, 2, 3)))
        stalled = sums.block_cycles[:, ran].astype(np.float64)
        return tuple(ran.tolist()), "block", stalled, np.zeros(stalled.shape[:3])
    ran = np.flatnonzero(sums.sm_busy.any(axis=(0, 2)))
    return (
        tuple(ran.tolist()),
        "SM",
        sums.sm_cycles[:, ran].astype(np.float64),
        sums.sm_busy[:, ran].astype(np.float64),
    )
