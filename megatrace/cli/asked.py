"""What a capture's recorder was asked to record, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from megatrace.capture.reader import Capture


def asked_of(capture: Capture) -> dict[str, str]:
    """The options by name: every, level, steps, burst, sms; {} where the capture has none."""
    from megatrace.collect.options import LEVELS

    options = _options(capture)
    if not options:
        return {}
    burst = options.get("burst")
    found = {
        "every": _every(capture, options.get("every_n")),
        "level": next((n for n, level in LEVELS.items() if level == options.get("level")), ""),
        "steps": _steps(options.get("steps")),
        "burst": f"{burst:,} steps first" if isinstance(burst, int) and burst else "",
        "sms": sms_of(capture) or "all",
    }
    return {name: text for name, text in found.items() if text}


def sms_of(capture: Capture) -> str:
    """``4 of 132 SMs recorded (--sms 0-3)``; "" where all were asked for."""
    if not isinstance(_options(capture).get("sms"), list):
        return ""
    from megatrace.analysis import rows
    from megatrace.analysis.rank import load_rank
    from megatrace.analysis.summary import ranks_of
    from megatrace.export.select import ranges_text
    from megatrace.schema import EventTable

    # Headers are of no table, and a table that cannot be read is no matter here.
    ranks = [load_rank(capture, rank, EventTable("unknown", ())) for rank in ranks_of(capture)]
    found = rows.sms_of(capture, ranks)
    of = "" if found.of is None else f" of {found.of:,}"
    return f"{found.recorded:,}{of} SMs recorded (--sms {ranges_text(found.chosen or ())})"


def _options(capture: Capture) -> dict[str, Any]:
    opening = next(iter(capture.facts("capture")), None)
    options = opening.fields.get("options") if opening else None
    return options if isinstance(options, dict) else {}


def _every(capture: Capture, every_n: object) -> str:
    if every_n != "auto":
        return "" if every_n is None else f"1 step in {every_n}"
    ends = capture.end.fields.get("every_n") if capture.end else None
    values = ends.values() if isinstance(ends, dict) else ()
    last = max((n for n in values if isinstance(n, int)), default=0)
    if last < 2:
        return "auto: every step" if last else "auto"
    return f"auto: 1 step in {last} at the end"


def _steps(window: object) -> str:
    match window:
        case [int(begin), int(end)]:
            return f"{begin} to {end - 1}" if end else "all"
    return ""
