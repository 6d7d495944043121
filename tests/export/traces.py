"""Traces made up from nothing: the shape of a megakernel's step, small or large."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from megatrace.analysis import LossRow, LossTable, Trace
from megatrace.analysis.frames import empty_launches, empty_records
from megatrace.clock import ClockModel, HostClock, SmClock
from megatrace.schema import Arg, Cause, Event, EventTable, Kind

TABLE = EventTable(
    "decode",
    (
        Event(16, "qkv", Kind.SPAN, "Query, key and value of one layer.", category="gemm"),
        Event(18, "attention", Kind.SPAN, "Attention of one layer."),
        Event(20, "experts", Kind.SPAN, "Experts of one layer.", category="gemm"),
        Event(22, "tile", Kind.SPAN, "One tile of weights."),
        Event(24, "load", Kind.PREFETCH, "A tile is asked for.", edge="tile"),
        Event(
            25, "full", Kind.WAIT, "The tile has not arrived.", cause=Cause.DATA, edge="tile"
        ),
        Event(26, "done", Kind.PUBLISH, "A block has its part.", edge="layer"),
        Event(
            27, "others", Kind.WAIT, "A block has not.", cause=Cause.INPUT, edge="layer",
            args=(Arg("last_block"),),
        ),
        Event(28, "space", Kind.STALL, "No stage is free.", cause=Cause.SPACE),
        Event(29, "depth", Kind.COUNTER, "Stages in use.", args=()),
        Event(30, "mark", Kind.INSTANT, "Something happened."),
    ),
)  # fmt: skip
PHASES = ("qkv", "attention", "experts")
ROLES = ("loader", "consumer", "consumer", "storer")
LAUNCH_NS = 20_000
OVERLAP_NS = 800
EPOCH_NS = 1_700_000_000_000_000_000
HOST_EPOCH_NS = 5_000_000_000_000


def clock(rank: int, *, host: bool = True, error_ns: float = 40.0) -> ClockModel:
    """A model whose GPU runs one microsecond a rank ahead of the host."""
    sm = SmClock(0, np.zeros(1, np.int64), 0, np.zeros(1), np.ones(1), error_ns, 8, True)
    tie = HostClock(EPOCH_NS + 1000 * rank, HOST_EPOCH_NS, 0.0, 0.0, 600.0, 1200, 5)
    return ClockModel(rank, 32, {0: sm}, tie if host else None)


class Builder:
    """Launches and records of one rank, a warp at a time."""

    def __init__(self, rank: int = 0) -> None:
        """Start without launches."""
        self.rank = rank
        self.launches: list[dict[str, Any]] = []
        self.records: list[dict[str, Any]] = []

    def launch(self, **fields: Any) -> int:
        """Add a launch row; returns its number."""
        row: dict[str, Any] = {
            "rank": self.rank, "process": 1, "block": 0, "warp": 0, "role": ROLES[0], "sm": 0,
            "launch": 1, "step": 1, "kernel": "decode", "layer": 0, "ring": 0, "t0_cycles": 0,
            "begin_ns": EPOCH_NS, "end_ns": EPOCH_NS + LAUNCH_NS, "clock_error_ns": 40.0,
            "words": 0, "lost_lines": 0, "complete": True, "time_uncertain": False,
        }  # fmt: skip
        row |= fields
        row["dur_ns"] = row["end_ns"] - row["begin_ns"] if row["end_ns"] >= 0 else -1
        self.launches.append(row)
        return len(self.launches) - 1

    def record(
        self,
        launch: int,
        event: str,
        begin_ns: int,
        dur_ns: int = 0,
        table: EventTable = TABLE,
        **fields: Any,
    ) -> None:
        """Add a record of one launch row."""
        of = next(e for e in table if e.name == event)
        owner = self.launches[launch]
        row: dict[str, Any] = {
            name: owner[name]
            for name in ("rank", "process", "block", "warp", "role", "step", "kernel", "layer")
        }
        row |= {
            "launch_row": launch, "event": event, "kind": of.kind.value,
            "cause": of.cause.value if of.cause else "", "category": of.category,
            "edge": of.edge, "slot": -1, "begin_ns": begin_ns, "dur_ns": dur_ns, "a0": -1,
        }  # fmt: skip
        self.records.append(row | fields)


def step(
    builder: Builder, number: int, begin_ns: int, *, layers: int, blocks: int, seed: int = 0
) -> int:
    """One step of launches that overlap a little; returns its end."""
    rng = np.random.default_rng((seed, number))
    for layer in range(layers):
        launch_begin = begin_ns + layer * (LAUNCH_NS - OVERLAP_NS)
        for block in range(blocks):
            for warp, role in enumerate(ROLES):
                begin = launch_begin + int(rng.integers(0, 200))
                row = builder.launch(
                    block=block, warp=warp, role=role, sm=2 * block, step=number, layer=layer,
                    launch=number * layers + layer, ring=block * len(ROLES) + warp,
                    begin_ns=begin, end_ns=begin + LAUNCH_NS - int(rng.integers(400, 700)),
                )  # fmt: skip
                _warp(builder, row, role, begin, rng)
    return begin_ns + layers * (LAUNCH_NS - OVERLAP_NS) + OVERLAP_NS


def _warp(builder: Builder, row: int, role: str, begin: int, rng: np.random.Generator) -> None:
    tile_ns = LAUNCH_NS // 12
    for tile in range(10):
        at = begin + 100 + tile * tile_ns
        if role == "loader":
            builder.record(row, "load", at, slot=tile % 3)
            builder.record(row, "depth", at + 5, a0=tile % 4)
            builder.record(row, "space", at + 20, int(rng.integers(50, 900)))
        elif role == "consumer":
            if tile in (0, 3, 6):
                phase = PHASES[tile // 3]
                builder.record(row, phase, at, tile_ns * (4 if tile == 6 else 3) - 60)
            waited = int(rng.integers(0, 2) * rng.integers(50, 500))
            builder.record(row, "full", at + 10, waited, slot=tile % 3)
            builder.record(row, "tile", at + 10 + waited, tile_ns - waited - 80)
        elif tile == 9:
            builder.record(row, "done", at, slot=builder.launches[row]["layer"])
        elif tile == 0:
            layer = builder.launches[row]["layer"]
            builder.record(
                row, "others", at, 400, slot=max(layer - 1, 0), a0=builder.launches[row]["block"]
            )


def assemble(
    builders: Sequence[Builder],
    *,
    host: pd.DataFrame | None = None,
    clocks: dict[int, ClockModel] | None = None,
    lines_lost: int = 0,
    complete: bool = True,
) -> Trace:
    """A Trace of the builders' rows, sorted as ``decode`` sorts them."""
    launches, records, base = [], [], 0
    for builder in builders:
        launches += builder.launches
        records += [r | {"launch_row": r["launch_row"] + base} for r in builder.records]
        base += len(builder.launches)
    ranks = [builder.rank for builder in builders]
    loss = tuple(
        LossRow(rank, 1, 100, lines_lost, 0, 3000, 30 * lines_lost, 0, 0, 0, {}, 0, 0)
        for rank in ranks
    )
    return Trace(
        launches=_frame(launches, ("role", "kernel")) if launches else empty_launches(),
        records=_sorted(
            _frame(records, ("role", "kernel", "event", "kind", "cause", "category", "edge"))
        ),
        host=pd.DataFrame() if host is None else host,
        loss=LossTable(loss, complete),
        clock=clocks if clocks is not None else {rank: clock(rank) for rank in ranks},
        tables=dict.fromkeys(ranks, TABLE),
        devices=dict.fromkeys(ranks, "cuda"),
        arg_names={"others": ("last_block",), "depth": ("value",), "hang": ("event",)},
        complete=complete,
        problems=(),
    )


def _frame(rows: list[dict[str, Any]], categories: Sequence[str]) -> pd.DataFrame:
    frame = pd.DataFrame(rows)
    for name in categories:
        if name in frame:
            frame[name] = frame[name].astype("category")
    return frame


def _sorted(records: pd.DataFrame) -> pd.DataFrame:
    if not len(records):
        return empty_records()
    order = np.lexsort((-records["dur_ns"], records["begin_ns"], records["launch_row"]))
    ordered: pd.DataFrame = records.iloc[order].reset_index(drop=True)
    return ordered


def host_event(
    event: str, rank: int, number: int, begin_ns: int, end_ns: int, **fields: Any
) -> dict[str, Any]:
    """A row of ``Trace.host``; times are of the host."""
    row: dict[str, Any] = {
        "event": event, "rank": rank, "process": 1, "step": number, "begin_ns": -1,
        "end_ns": -1, "host_begin_ns": begin_ns, "host_end_ns": end_ns, "batch_size": -1,
        "tokens": -1, "graph": -1, "accepted": -1, "text": "",
    }  # fmt: skip
    return row | fields


def small_trace(
    *, ranks: int = 1, steps: int = 3, layers: int = 4, blocks: int = 3, **how: Any
) -> Trace:
    """A few steps on a few ranks, with their host."""
    builders, host = [], []
    for rank in range(ranks):
        builder = Builder(rank)
        begin = EPOCH_NS + 1000 * rank
        for number in range(1, steps + 1):
            at = HOST_EPOCH_NS + begin - EPOCH_NS - 1000 * rank
            end = step(builder, number, begin, layers=layers, blocks=blocks, seed=rank)
            took = end - begin
            host += [
                host_event("step", rank, number, at - 9000, at + took),
                host_event("draft", rank, number, at - 8000, at - 5000, batch_size=2, tokens=8),
                host_event(
                    "verify",
                    rank,
                    number,
                    at - 4000,
                    at + took - 100,
                    batch_size=2,
                    tokens=16,
                    graph=1,
                    accepted=5 + number,
                ),
                host_event("request", rank, number, at - 9000, at + took, text=f"request-{number}"),
            ]
            begin = end + 12_000
        builders.append(builder)
    return assemble(builders, host=pd.DataFrame(host), **how)
