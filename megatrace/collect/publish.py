"""The aggregate page of a session, kept up to date from the counters of its rings."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from megatrace.collect.source import Source
from megatrace.errors import RingError
from megatrace.ring.aggregate import NO_DEVICE, RANK_ROW, AggregatePage
from megatrace.ring.control import read_ack
from megatrace.ring.sums import Shape, Sums


class Publisher:
    """Writes the page; makes a new one where ranks, layers, roles or blocks change.

    Attributes:
        failure: why there is no page; "" while there is one.
    """

    def __init__(self, session: Path) -> None:
        """Publish in ``session``."""
        self._session = session
        self._page: AggregatePage | None = None
        self._roles: tuple[str, ...] = ()
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
        ranks = sorted({source.rank for source in sources})
        traced = [source for source in sources if source.traced]
        roles = union_of_roles(traced)
        shape = Shape(len(ranks), _most(traced, "layers"), len(roles), _most(traced, "blocks"))
        page = self._page_of(shape, roles)
        if page is None:
            return
        rows = np.zeros(len(ranks), RANK_ROW)
        sums = Sums.zeros(shape)
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

    def _page_of(self, shape: Shape, roles: tuple[str, ...]) -> AggregatePage | None:
        if self._page is None or self._page.shape != shape or self._roles != roles:
            self.close()
            self._roles = roles
            try:
                self._page = AggregatePage.create(
                    self._session,
                    ranks=shape.ranks,
                    layers=shape.layers,
                    roles=roles,
                    blocks=shape.blocks,
                    started_ns=self._started_ns,
                )
            except (RingError, OSError) as error:
                self.failure = str(error)
        return self._page


def _most(sources: Sequence[Source], field: str) -> int:
    return max((int(source.ring.header[field]) for source in sources), default=0)


def union_of_roles(sources: Sequence[Source]) -> tuple[str, ...]:
    """Every role once, in the order of ranks and warps."""
    names = (name for source in sources for name in source.roles)
    return tuple(dict.fromkeys(names))


def fill_row(row: Any, rank: int, sources: Sequence[Source]) -> None:
    """Fill one RANK_ROW ``(1,)`` from the ``sources`` of ``rank``."""
    acks = [read_ack(source.ring) for source in sources]
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
    header = source.ring.header
    blocks, warps, layers = (int(header[name]) for name in ("blocks", "warps", "layers"))
    if not blocks * warps * layers:
        return
    now = source.counters().reshape(layers, blocks, warps)
    own = source.roles
    for name in dict.fromkeys(own):
        of_role = [warp for warp, role in enumerate(own) if role == name]
        at = roles.index(name)
        for target, field in ((sums.cycles, "cycles"), (sums.count, "count")):
            target[rank_at, :layers, at] += now[field][:, :, of_role].sum(
                axis=(1, 2), dtype=np.uint64
            )
        sums.block_cycles[rank_at, :blocks, at] += now["cycles"][:, :, of_role].sum(
            axis=(0, 2), dtype=np.uint64
        )


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
