"""The aggregate page of a session, kept up to date from the counters of its rings."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from megatrace.collect.source import Source
from megatrace.errors import RingError
from megatrace.ring.aggregate import NO_DEVICE, RANK_ROW, AggregatePage
from megatrace.ring.sums import Shape, Sums

MAX_ENDED = 16
"""Processes that have ended and still have a row: a session may run through hundreds."""
_TRY_AGAIN_S = 5.0
"""A try takes all the memory there is for a moment, and a ring may be made in it."""


class Publisher:
    """Writes the page; makes a new one where ranks, layers, roles or blocks change.

    Where there is no room for its tables it has the rows of the ranks alone, and its note says
    why as ``no_tables``.

    Attributes:
        failure: why there are no tables, and the next step; "" while there are.
    """

    def __init__(self, session: Path) -> None:
        """Publish in ``session``."""
        self._session = session
        self._page: AggregatePage | None = None
        self._roles: tuple[str, ...] = ()
        self._ranks: list[int] = []
        self._shape = Shape(0, 0, 0, 0)
        self._again_s = 0.0
        self._started_ns = time.monotonic_ns()
        self.failure = ""

    def publish(
        self,
        sources: Sequence[Source],
        file_bytes: int,
        clock_error_ns: Mapping[int, float],
        every_n: Mapping[int, int],
        note: Mapping[str, Any],
    ) -> None:
        """Put the state of ``sources`` on the page.

        ``clock_error_ns`` and ``every_n`` are by rank, where known; ``note`` is what the
        recorder says of itself.
        """
        sources, note = shown(sources), {**note, "left_out": left_out(sources)}
        ranks = sorted({source.rank for source in sources})
        traced = [source for source in sources if source.traced]
        roles = union_of_roles(traced)
        shape = Shape(len(ranks), _most(traced, "layers"), len(roles), _most(traced, "blocks"))
        page = self._page_of(shape, roles, ranks)
        if page is None:
            return
        rows = np.zeros(len(ranks), RANK_ROW)
        sums = Sums.zeros(page.shape)
        if self.failure:
            traced, note = [], {**note, "no_tables": self.failure}
        for at, rank in enumerate(ranks):
            mine = [source for source in sources if source.rank == rank]
            fill_row(rows[at : at + 1], rank, mine)
            rows[at]["clock_error_ns"] = clock_error_ns.get(rank, float("nan"))
            rows[at]["every_n"] = every_n.get(rank, 0)
        for source in traced:
            at = ranks.index(source.rank)
            add_counters(source, roles, sums, at)
            add_seen(source, roles, sums, at)
        errors = rows["clock_error_ns"]
        worst = float(np.nanmax(errors)) if np.isfinite(errors).any() else float("nan")
        page.publish(ranks=rows, sums=sums, file_bytes=file_bytes, clock_error_ns=worst, note=note)

    def close(self) -> None:
        """Unmap the page; it goes with the session."""
        if self._page is not None:
            self._page.close()
            self._page = None

    def _page_of(
        self, shape: Shape, roles: tuple[str, ...], ranks: list[int]
    ) -> AggregatePage | None:
        # Other ranks in the same rows are another page: viewers take differences row by row.
        same = (self._shape, self._roles, self._ranks) == (shape, roles, ranks)
        if same and (not self.failure or time.monotonic() < self._again_s):
            return self._page
        self._shape, self._roles, self._ranks = shape, roles, ranks
        rows_alone = self._page if same else None
        try:
            page: AggregatePage | None = self._create(shape, roles)
            self.failure = ""
        except (RingError, OSError) as error:
            hint = error.hint if isinstance(error, RingError) else ""
            self.failure = f"{error}; {hint}" if hint else str(error)
            self._again_s = time.monotonic() + _TRY_AGAIN_S
            page = rows_alone
            if page is None:
                with suppress(RingError, OSError):
                    page = self._create(Shape(shape.ranks, 0, 0, 0), ())
        if page is not self._page:
            self.close()
            self._page = page
        return page

    def _create(self, shape: Shape, roles: tuple[str, ...]) -> AggregatePage:
        return AggregatePage.create(
            self._session,
            ranks=shape.ranks,
            layers=shape.layers,
            roles=roles,
            blocks=shape.blocks,
            started_ns=self._started_ns,
        )


def shown(sources: Sequence[Source]) -> list[Source]:
    """Those of ranks that live, and of the MAX_ENDED last that do not."""
    living = {source.rank for source in sources if not source.ended}
    latest: dict[int, int] = {}
    for source in sources:
        created_ns = int(source.ring.header["created_mono_ns"])
        latest[source.rank] = max(latest.get(source.rank, 0), created_ns)
    ended = sorted(latest.keys() - living, key=latest.__getitem__)
    kept = living.union(ended[-MAX_ENDED:])
    return [source for source in sources if source.rank in kept]


def left_out(sources: Sequence[Source]) -> dict[str, int]:
    """What the others come to: processes, and their lines read and lost."""
    kept = {source.rank for source in shown(sources)}
    gone = [source for source in sources if source.rank not in kept]
    return {
        "processes": len({source.rank for source in gone}),
        "lines_read": sum(source.stats.read for source in gone),
        "lines_lost": sum(source.stats.lost for source in gone),
        "host_lost": sum(source.host_lost for source in gone),
    }


def _most(sources: Sequence[Source], field: str) -> int:
    return max((int(source.ring.header[field]) for source in sources), default=0)


def union_of_roles(sources: Sequence[Source]) -> tuple[str, ...]:
    """Every role once, in the order of ranks and warps."""
    names = (name for source in sources for name in source.roles)
    return tuple(dict.fromkeys(names))


def fill_row(row: Any, rank: int, sources: Sequence[Source]) -> None:
    """Fill one RANK_ROW ``(1,)`` from the ``sources`` of ``rank``."""
    acks = [source.ack() for source in sources]
    row["rank"] = rank
    row["alive"] = any(not source.ended for source in sources)
    row["level"] = max((ack.level for ack in acks), default=0)
    row["window_open"] = max((ack.window_open for ack in acks), default=0)
    row["step"] = max((ack.step for ack in acks), default=0)
    row["timeline_steps"] = max((ack.timeline_steps for ack in acks), default=0)
    row["lines_read"] = sum(source.stats.read for source in sources)
    row["lines_lost"] = sum(source.stats.lost for source in sources)
    row["host_records"] = sum(source.host_read for source in sources)
    row["host_lost"] = sum(source.host_lost for source in sources)
    traced = [source for source in sources if source.traced]
    row["device"] = int(traced[0].ring.header["device"]) if traced else NO_DEVICE
    rates = [s.observer.ns_per_cycle for s in traced if s.observer is not None]
    row["ns_per_cycle"] = rates[0] if rates else float("nan")
    for name in ("tokens", "verified", "accepted"):
        row[name] = max((getattr(source.served, name) for source in sources), default=0)


def add_counters(source: Source, roles: Sequence[str], sums: Sums, rank_at: int) -> None:
    """Add the counters of ``source`` to ``cycles``, ``count`` and ``block_cycles``."""
    mine = source.role_sums()
    at = [roles.index(name) for name in mine.roles]
    for target, table in (
        (sums.cycles, mine.cycles),
        (sums.count, mine.count),
        (sums.block_cycles, mine.block_cycles),
    ):
        target[rank_at, : len(table), at] += np.moveaxis(table, 1, 0)


def add_seen(source: Source, roles: Sequence[str], sums: Sums, rank_at: int) -> None:
    """Add what the observer of ``source`` has seen of its timelines."""
    seen = source.observer
    if seen is None:
        return
    at = [roles.index(name) for name in dict.fromkeys(source.roles)]
    layers = len(seen.busy)
    for target, table in (
        (sums.seen_cycles, seen.cycles),
        (sums.seen_busy, seen.busy),
        (sums.seen_launches, seen.launches),
        (sums.sm_cycles, seen.sm_cycles),
        (sums.sm_busy, seen.sm_busy),
    ):
        target[rank_at, : len(table), at] += np.moveaxis(table, 1, 0)
    sums.prefetch[rank_at, :layers] += seen.prefetch
