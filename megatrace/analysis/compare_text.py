"""A comparison as plain text and as plain values."""

from __future__ import annotations

import math
import textwrap
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, fields

from megatrace.analysis.compare import IDLE, SMALLEST_CAUSE, Change, Comparison, Verdict
from megatrace.analysis.measured import ALL_LAYERS, LAUNCH, STEP, Side
from megatrace.analysis.plain import WIDTH, many, table

TOP_ROWS = 20
"""Rows of a table; the JSON has all."""
_NAMED = 3
"""Classes that are named beside a launch that got slower."""


def compare_to_text(comparison: Comparison, *, top: int = TOP_ROWS) -> str:
    """Both captures, what hinders the comparison, three tables and how they came about."""
    whole, layers, causes = comparison.overall, comparison.layers, comparison.causes
    parts = [
        "\n".join([_side("a", comparison.a), _side("b", comparison.b)]),
        "\n".join(f"warning: {text}" for text in comparison.warnings),
        _cpu(comparison),
        _table("All layers together, one launch in the mean", whole, top, by_size=False),
        _table("Launches by layer, first warp in to last warp out", layers, top),
        _table("Causes by layer and role, the mean warp's time", causes, top),
        _notes(comparison),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def compare_to_dict(comparison: Comparison) -> dict[str, object]:
    """Plain dicts and lists; NaN becomes None."""
    return {
        "a": _side_dict(comparison.a),
        "b": _side_dict(comparison.b),
        "warnings": list(comparison.warnings),
        "judged": comparison.judged,
        "confidence": comparison.confidence,
        "draws": comparison.draws,
        "seed": comparison.seed,
        "overall": [_change_dict(row) for row in comparison.overall],
        "layers": [_change_dict(row) for row in comparison.layers],
        "causes": [_change_dict(row) for row in comparison.causes],
        "small_causes": comparison.small_causes,
    }


def change_sentence(row: Change, grown: Sequence[Change] = ()) -> str:
    """``layer 3 of decode: +4.1 % slower (+2.8 % to +5.3 %); more loader input (+2.80 us)``.

    ``grown``: classes of which its warps have more; the first of them are named.
    """
    side = "slower" if row.share > 0 else "faster"
    interval = f"{_percent(row.low)} to {_percent(row.high)}"
    text = f"{_of(row)}: {_percent(abs(row.share))} {side} ({interval})"
    more = [f"{r.role} {r.what} ({_signed_us(r.change_us)} us)" for r in grown[:_NAMED]]
    return f"{text}; more {', '.join(more)}" if more else text


def unjudged_sentence(found: Comparison) -> str:
    """``too few launches for a verdict: layer 3 of decode, all layers of prefill``."""
    if not found.judged:
        return "too few launches for any verdict"
    of = [_of(row) for row in found.unjudged]
    more = ", ..." if len(of) > _NAMED else ""
    return f"too few launches for a verdict: {', '.join(of[:_NAMED])}{more}"


def _of(row: Change) -> str:
    if row.layer == ALL_LAYERS:
        return f"all layers of {row.kernel}"
    return f"layer {row.layer} of {row.kernel}"


def _side(name: str, side: Side) -> str:
    machine = ", ".join(side.gpus) if side.gpus and not side.cpu else ""
    facts = [
        f"device={','.join(side.devices)}", machine, side.sms,
        many(side.ranks, "rank")
        + (f" in {side.processes:,} processes" if side.processes > side.ranks else ""),
        many(side.steps, "step"), many(side.launches, "launch", "es"), side.loss,
    ]  # fmt: skip
    text = f"{name}: {side.path}: " + ", ".join(fact for fact in facts if fact)
    return textwrap.fill(text, WIDTH, subsequent_indent="   ", break_on_hyphens=False)


def _cpu(comparison: Comparison) -> str:
    if not comparison.a.cpu:
        return ""
    return (
        "cpu: times of the host build, where order and logic are real and speed is not: no verdict."
    )


def _table(title: str, rows: Sequence[Change], top: int, *, by_size: bool = True) -> str:
    if not rows:
        return ""
    order = sorted(rows, key=_importance) if by_size else list(rows)
    shown = order[:top]
    has_roles = any(row.role for row in rows)
    has_layers = any(row.layer != ALL_LAYERS for row in rows)
    columns: list[tuple[str, Callable[[Change], str]]] = [("kernel", lambda r: r.kernel)]
    if has_roles:
        columns += [("role", lambda r: r.role), ("what", lambda r: r.what)]
    words = len(columns)
    if has_layers:
        columns.append(("layer", lambda r: str(r.layer)))
    columns += [
        ("n a", lambda r: f"{r.blocks_a:,}"),
        ("n b", lambda r: f"{r.blocks_b:,}"),
        ("a us", lambda r: _us(r.a_us)),
        ("b us", lambda r: _us(r.b_us)),
        ("change us", lambda r: _signed_us(r.change_us)),
        ("change", lambda r: _percent(r.share)),
        ("interval", _interval),
        ("verdict", lambda r: r.verdict),
    ]
    head = [name for name, _ in columns]
    body = [[cell(row) for _, cell in columns] for row in shown]
    lines = [title, table(head, body, left=words), _tally(rows)]
    if len(shown) < len(rows):
        lines.append(f"{len(rows) - len(shown):,} more rows are in the JSON")
    return "\n".join(lines)


_CHANGED: tuple[Verdict, ...] = ("slower", "faster", "more", "less")


def _importance(row: Change) -> tuple[bool, bool, float]:
    """Rows with a change first, of those what warps do and wait for, the largest first."""
    return row.verdict not in _CHANGED, row.what in IDLE, -abs(row.change_us)


def _tally(rows: Sequence[Change]) -> str:
    counts = Counter(str(row.verdict) for row in rows)
    names = (*_CHANGED, "same", "too few launches", "cpu")
    return ", ".join(f"{counts[name]:,} {name}" for name in names if counts[name])


def _notes(comparison: Comparison) -> str:
    if comparison.a.cpu:
        return ""
    blocks = " and ".join(sorted({_resampled(side) for side in (comparison.a, comparison.b)}))
    notes = [
        f"n: {_blocks(comparison)}. Times are medians over them, change is of the launch's time "
        "in a.",
        f"interval: percentile bootstrap, {comparison.confidence:.0%} for all rows of a table "
        f"together, {comparison.draws:,} draws of {blocks}, seed {comparison.seed}.",
        "slower, faster: of launches. more, less: classes of a warp's time explain a launch and "
        "are no worse or better by themselves: a loader that waits more for a free stage is "
        "further ahead, a longer tail is of a warp that ended earlier.",
        "same: the interval holds 0, or the change is within the clocks' error. too few launches: "
        "so few could lie apart by chance. One capture a side: what differs from run to run is "
        "not in it.",
    ]
    if comparison.small_causes:
        notes.append(
            f"{comparison.small_causes:,} causes of less than {SMALLEST_CAUSE:.1%} of their "
            "launch in both are left out."
        )
    return "\n".join(textwrap.fill(note, WIDTH, subsequent_indent="  ") for note in notes)


def _resampled(side: Side) -> str:
    if side.blocks_by == STEP:
        return "whole steps (the launches of one step are not independent)"
    return "launches (there is one step: taken as independent, so the interval may be too narrow)"


def _blocks(comparison: Comparison) -> str:
    by = {comparison.a.blocks_by, comparison.b.blocks_by}
    return "steps" if by == {STEP} else "launches" if STEP not in by else "steps or launches"


def _interval(row: Change) -> str:
    if math.isnan(row.low):
        return ""
    return f"{100 * row.low:+.1f} to {_percent(row.high)}"


def _percent(share: float) -> str:
    return f"{100 * share:+.1f} %"


def _us(value: float) -> str:
    return f"{value:,.0f}" if value >= 10_000 else f"{value:,.2f}"


def _signed_us(value: float) -> str:
    return f"{value:+,.0f}" if abs(value) >= 10_000 else f"{value:+,.2f}"


def _side_dict(side: Side) -> dict[str, object]:
    return {f.name: _plain(getattr(side, f.name)) for f in fields(side) if f.name != "values"}


def _change_dict(row: Change) -> dict[str, object]:
    return {name: _plain(value) for name, value in asdict(row).items()} | {
        "is_launch": row.what == LAUNCH
    }


def _plain(value: object) -> object:
    if isinstance(value, tuple):
        return list(value)
    if isinstance(value, float):
        return None if math.isnan(value) else round(value, 6)
    return value
