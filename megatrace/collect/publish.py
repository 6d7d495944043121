"""The aggregate page of a session, kept up to date from the counters of its rings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megatrace.collect.source import Source
from megatrace.errors import RingError
from megatrace.ring.aggregate import RANK_ROW, AggregatePage
from megatrace.ring.control import read_ack
from megatrace.schema.layout import CAUSE_SLOTS

Sums = NDArray[np.uint64]


class Publisher:
    """Writes the page; makes a new one where ranks, layers or roles change.

    Attributes:
        failure: why there is no page; "" while there is one.
    """

    def __init__(self, session: Path) -> None:
        """Publish in ``session``."""
        self._session = session
        self._page: AggregatePage | None = None
        self._roles: tuple[str, ...] = ()
        self.failure = ""

    def publish(
        self, sources: Sequence[Source], file_bytes: int, clock_error_ns: dict[int, float]
    ) -> None:
        """Put the state of ``sources`` on the page; ``clock_error_ns`` by rank, where known."""
        ranks = sorted({source.rank for source in sources})
        traced = [source for source in sources if source.traced]
        roles = union_of_roles(traced)
        layers = max((int(s.ring.header["layers"]) for s in traced), default=0)
        page = self._page_of(len(ranks), layers, roles)
        if page is None:
            return
        rows = np.zeros(len(ranks), RANK_ROW)
        cycles = np.zeros(page.shape, np.uint64)
        count = np.zeros(page.shape, np.uint64)
        for at, rank in enumerate(ranks):
            mine = [source for source in sources if source.rank == rank]
            fill_row(rows[at : at + 1], rank, mine, clock_error_ns.get(rank, float("nan")))
        for source in traced:
            add_counters(source, roles, cycles, count, ranks.index(source.rank))
        errors = rows["clock_error_ns"]
        worst = float(np.nanmax(errors)) if np.isfinite(errors).any() else float("nan")
        page.publish(
            ranks=rows, cycles=cycles, count=count, file_bytes=file_bytes, clock_error_ns=worst
        )

    def close(self) -> None:
        """Unmap the page; it goes with the session."""
        if self._page is not None:
            self._page.close()
            self._page = None

    def _page_of(self, ranks: int, layers: int, roles: tuple[str, ...]) -> AggregatePage | None:
        shape = (ranks, layers, len(roles), CAUSE_SLOTS)
        if self._page is None or self._page.shape != shape or self._roles != roles:
            self.close()
            self._roles = roles
            try:
                self._page = AggregatePage.create(
                    self._session, ranks=ranks, layers=layers, roles=roles
                )
            except (RingError, OSError) as error:
                self.failure = str(error)
        return self._page


def roles_of(source: Source) -> tuple[str, ...]:
    """The role of each warp; ``warp3`` where the ring does not say."""
    warps = int(source.ring.header["warps"])
    given = source.ring.meta.get("roles")
    names = [str(name) for name in given[:warps]] if isinstance(given, list) else []
    return tuple(names + [f"warp{warp}" for warp in range(len(names), warps)])


def union_of_roles(sources: Sequence[Source]) -> tuple[str, ...]:
    """Every role once, in the order of ranks and warps."""
    names = (name for source in sources for name in roles_of(source))
    return tuple(dict.fromkeys(names))


def fill_row(row: Any, rank: int, sources: Sequence[Source], clock_error_ns: float) -> None:
    """Fill one RANK_ROW ``(1,)`` from the ``sources`` of ``rank``."""
    acks = [read_ack(source.ring) for source in sources if not source.ended]
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
    row["clock_error_ns"] = clock_error_ns


def add_counters(
    source: Source, roles: Sequence[str], cycles: Sums, count: Sums, rank_at: int
) -> None:
    """Add the counters of ``source`` to ``cycles`` and ``count`` ``[rank][layer][role][cause]``."""
    header = source.ring.header
    blocks, warps, layers = (int(header[name]) for name in ("blocks", "warps", "layers"))
    if not blocks * warps * layers:
        return
    now = source.counters().reshape(layers, blocks, warps)
    own = roles_of(source)
    for name in dict.fromkeys(own):
        of_role = [warp for warp, role in enumerate(own) if role == name]
        at = roles.index(name)
        for target, field in ((cycles, "cycles"), (count, "count")):
            sums = now[field][:, :, of_role].sum(axis=(1, 2), dtype=np.uint64)
            target[rank_at, :layers, at] += sums
