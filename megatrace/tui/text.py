"""The overview without a terminal: plain tables, or one JSON object."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from megatrace.schema.processes import count_text, process_of, rank_of, rank_text
from megatrace.sizes import size_text
from megatrace.tui.model import (
    CLASSES,
    Frame,
    RankState,
    Row,
    Status,
    layer_rows,
    rank_bar,
    role_rows,
)
from megatrace.tui.numbers import (
    clock_text,
    late_text,
    number,
    percent,
    time_text,
    unit_text,
)

_BAR = 20
UNSEEN_NOTE = "not waiting has waits in it that leave no record: block barriers, cp.async, wgmma"
_GLYPHS = "#=%@."
_MOST_RANKS = 32


@dataclass(frozen=True, slots=True)
class Fact:
    """A text above every table; where there is no room the least ``weight`` goes first."""

    text: str
    style: str
    weight: int


def facts_of(status: Status) -> list[Fact]:
    """What stands above every table."""
    parts: list[Fact] = []
    if status.device:
        parts.append(Fact(status.device, "warn" if "cpu" in status.device else "", 8))
    if status.ranks:
        alive = sum(rank.alive for rank in status.ranks)
        run = f"{alive} running of " if alive < len(status.ranks) else ""
        parts.append(Fact(run + count_text(rank.rank for rank in status.ranks), "", 6))
    if status.steps_per_s is not None:
        parts.append(Fact(f"{number(status.steps_per_s)} steps/s", "strong", 5))
    if status.tokens_per_s:
        parts.append(Fact(f"{number(status.tokens_per_s)} tok/s", "strong", 5))
    if status.accept_length is not None:
        parts.append(Fact(f"accept {status.accept_length:.2f}", "", 3))
    parts += [Fact(text, "", 4) for text in (status.level, status.sampling) if text]
    if status.loss:
        parts.append(Fact(status.loss, "bad" if status.lossy else "good", 9))
    if status.ranks:
        parts.append(Fact(f"clock {clock_text(status.clock_error_ns)}", "", 7))
    if status.line_bytes_per_s is not None:
        parts.append(Fact(f"overhead {size_text(status.line_bytes_per_s)}/s of lines", "", 2))
    if status.file_bytes:
        parts.append(Fact(size_text(status.file_bytes), "dim", 1))
    if status.span:
        parts.append(Fact(status.span, "dim", 8))
    return parts


def to_text(status: Status, frame: Frame | None) -> str:
    """The whole overview as it would stand on a screen, in at most 100 columns."""
    lines = [f"{status.title}: {status.state}{', ' * bool(status.text)}{status.text}"]
    facts = " · ".join(fact.text for fact in facts_of(status))
    lines += [facts] if facts else []
    lines += [f"note: {note}" for note in status.notes]
    if frame is not None:
        rows = layer_rows(frame, None)
        lines += ["", *_table(rows, "layer", frame, timed=status.timed)] if rows else []
        if rows:
            lines += ["", *_table(role_rows(frame, None, None), "role", frame, timed=False)]
            lines += ["", *_ranks(status, frame)] if len(frame.ranks) > 1 else []
            of = "of stall time" if frame.counted else "of warp time"
            legend = "  ".join(f"{g} {c}" for g, c in zip(_GLYPHS, CLASSES, strict=True))
            lines += [f"shares are {of}; bars: {legend}", UNSEEN_NOTE]
    return "\n".join(lines) + "\n"


def _table(rows: Sequence[Row], first: str, frame: Frame, *, timed: bool) -> list[str]:
    unit = unit_text(frame.unit)
    layers = first == "layer"
    head = [first, f"{unit}/launch"]
    floors = any(row.floor is not None for row in rows)
    head += ["share"] if layers else []
    head += ["of floor"] if floors else []
    head += ["bar", *CLASSES[:-1], f"sync {unit}"]
    head += ["late"] if layers else []
    body = []
    for row in rows:
        cells = [row.label, time_text(row.time, frame.unit)]
        cells += [percent(row.share)] if layers else []
        cells += [percent(row.floor)] if floors else []
        cells += [_bar(row.bar), *(percent(s) if s >= 0.0005 else "" for s in row.bar[:-1])]
        cells += [time_text(row.sync, frame.unit)]
        if layers:
            late = late_text(row.late, row.uses, row.unseen, whole=frame.whole_uses)
            cells += [late if timed else "cpu" * bool(row.uses)]
        body.append(cells)
    return _aligned(head, body)


def _aligned(head: list[str], body: list[list[str]]) -> list[str]:
    widths = [max(len(row[i]) for row in [head, *body]) for i in range(len(head))]
    left = {0, head.index("bar")}
    return [
        "  ".join(
            cell.ljust(widths[i]) if i in left else cell.rjust(widths[i])
            for i, cell in enumerate(row)
        ).rstrip()
        for row in [head, *body]
    ]


def _ranks(status: Status, frame: Frame) -> list[str]:
    """A row a rank: who is slower than the others, and where it waits."""
    states = {state.rank: state for state in status.ranks}
    live = any(state.step for state in status.ranks)
    ended = not all(state.alive for state in status.ranks)
    head = [
        "rank",
        *["state"] * ended,
        *["step"] * live,
        "steps/s",
        f"{unit_text(frame.unit)}/launch",
        "bar",
    ]
    head += [*CLASSES[:-1], "lines lost", "clock"]
    body = []
    for at, rank in enumerate(frame.ranks[:_MOST_RANKS]):
        state, bar = states.get(rank, RankState(rank)), rank_bar(frame, rank)
        known = frame.time[at][~np.isnan(frame.time[at])]
        cells = [rank_text(rank), *["runs" if state.alive else "ended"] * ended]
        cells += [f"{state.step or 0:,}"] * live
        cells += ["" if state.steps_per_s is None else number(state.steps_per_s)]
        cells += [time_text(float(known.mean()) if len(known) else None, frame.unit), _bar(bar)]
        cells += [percent(s) if s >= 0.0005 else "" for s in bar[:-1]]
        body.append([*cells, f"{state.lines_lost:,}", clock_text(state.clock_error_ns)])
    more = len(frame.ranks) - _MOST_RANKS
    return [*_aligned(head, body), *[f"{more:,} more: --json has all"] * (more > 0)]


def _bar(bar: Sequence[float]) -> str:
    text, edge = "", 0.0
    for glyph, share in zip(_GLYPHS, bar, strict=True):
        edge += share * _BAR
        text += glyph * (round(edge) - len(text))
    return text


def to_dict(status: Status, frame: Frame | None) -> dict[str, object]:
    """The overview as JSON has it; times in ns, or in cycles where ``unit`` says so."""
    body: dict[str, object] = {
        "title": status.title,
        "state": status.state,
        "text": status.text,
        "device": status.device,
        "timed": status.timed,
        "steps_per_s": status.steps_per_s,
        "tokens_per_s": status.tokens_per_s,
        "accept_length": status.accept_length,
        "level": status.level,
        "sampling": status.sampling,
        "loss": status.loss,
        "clock_error_ns": status.clock_error_ns,
        "line_bytes_per_s": status.line_bytes_per_s,
        "file_bytes": status.file_bytes,
        "span": status.span,
        "notes": list(status.notes),
        "asked": dict(status.asked),
        "ranks": [
            {"rank": rank_of(rank.rank), "process": process_of(rank.rank), **_other(rank)}
            for rank in status.ranks
        ],
    }
    if frame is not None:
        body["unit"] = frame.unit
        body["stalls_of"] = "counters" if frame.counted else "timelines"
        body["layers"] = [_row_dict(row, frame, None) for row in layer_rows(frame, None)]
        body["roles"] = [
            {"role": row.label, **_shares(row)} for row in role_rows(frame, None, None)
        ]
        body["layers_by_rank"] = {
            rank_text(rank): [_row_dict(row, frame, rank) for row in layer_rows(frame, rank)]
            for rank in frame.ranks
        }
    return {key: _plain(value) for key, value in body.items()}


def _other(state: RankState) -> dict[str, object]:
    names = (name for name in state.__dataclass_fields__ if name != "rank")
    return {name: getattr(state, name) for name in names}


def _row_dict(row: Row, frame: Frame, rank: int | None) -> dict[str, object]:
    kernel, layer = frame.layers[row.key]
    return {
        "kernel": kernel,
        "layer": layer,
        "time": row.time,
        "share": row.share,
        "floor": row.floor,
        **_shares(row),
        "sync": row.sync,
        "prefetches" if frame.whole_uses else "first_uses": row.uses,
        "late": row.late,
        "late_time": row.late_time,
        "unseen": row.unseen,
    }


def _shares(row: Row) -> dict[str, object]:
    names = [name.replace(" ", "_") for name in CLASSES]
    return dict(zip(names, row.bar, strict=True))


def _plain(value: object) -> object:
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_plain(one) for one in value]
    if isinstance(value, float):
        return round(value, 6) if math.isfinite(value) else None
    return value
