"""What a capture's recorder was asked to record, in words; and which rank is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from megatrace.errors import UsageError

if TYPE_CHECKING:
    from megatrace.capture.reader import Capture

_MAX_NAMED = 16
"""Ranks named where one was asked for that is not there."""


def rank_asked(text: str | None, capture: Capture) -> int | None:
    """The number of a rank of this capture. Raises UsageError, with those that there are."""
    from megatrace.schema.processes import parse_rank, rank_text

    if text is None:
        return None
    there = {row.rank for row in capture.facts("ring")} | set(capture.line_index().rank.tolist())
    names = [rank_text(number) for number in sorted(there)]
    more = [f"{len(names) - _MAX_NAMED} more"] if len(names) > _MAX_NAMED else []
    hint = f"it has {', '.join([*names[:_MAX_NAMED], *more])}" if names else "it has no rank"
    try:
        number = parse_rank(text)
    except ValueError as error:
        raise UsageError(str(error), hint=hint) from None
    if number not in there:
        raise UsageError(f"no rank {text} in {capture.path}", hint=hint)
    return number


def layers_asked(text: str | None) -> frozenset[int] | None:
    """``0-3,7`` as layers; None where none was asked for. Raises UsageError."""
    from megatrace.collect.options import parse_list
    from megatrace.schema.layout import LAYER_MASK

    return None if text is None else parse_list(text, "--layer", "layer", LAYER_MASK + 1)


def asked_of(capture: Capture) -> dict[str, str]:
    """The options by name: every, counters, level, steps, burst, sms; {} where it has none."""
    from megatrace.collect.options import LEVELS

    options = capture.options
    if not options:
        return {}
    burst, counters = options.get("burst"), options.get("counters_every")
    found = {
        "every": _every(capture, options.get("every_n")),
        "counters": f"1 step in {counters}" if isinstance(counters, int) else "",
        "level": next((n for n, level in LEVELS.items() if level == options.get("level")), ""),
        "steps": _steps(options.get("steps")),
        "burst": f"{burst:,} steps first" if isinstance(burst, int) and burst else "",
        "sms": sms_of(capture) or "all",
    }
    return {name: text for name, text in found.items() if text}


def sms_of(capture: Capture) -> str:
    """``4 of 132 SMs recorded (--sms 0-3)``; "" where all were asked for."""
    if not isinstance(capture.options.get("sms"), list):
        return ""
    from megatrace.analysis.plain import ranges_text
    from megatrace.analysis.summary import sms_recorded

    found = sms_recorded(capture)
    return f"{found.text} (--sms {ranges_text(found.chosen or ())})"


def _every(capture: Capture, every_n: object) -> str:
    if every_n != "auto":
        return "" if every_n is None else f"1 step in {every_n}"
    ends = capture.end.fields.get("every_n") if capture.end else None
    values = ends.values() if isinstance(ends, dict) else ()
    last = max((n for n in values if isinstance(n, int)), default=0)
    if last < 2:
        return "auto: every step, as far as the rings had room" if last else "auto"
    return f"auto: 1 step in {last} at the end"


def _steps(window: object) -> str:
    match window:
        case [int(begin), int(end)]:
            return f"{begin} to {end - 1}" if end else "all"
    return ""
