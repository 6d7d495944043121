"""Numbers as short as a table has room for."""

from __future__ import annotations

import math


def time_text(value: float | None, unit: str) -> str:
    """A time in us, or in thousands of cycles where no clock rate is known; ``-``: none."""
    if value is None or math.isnan(value):
        return "-"
    return number(value / 1000) if unit == "ns" else f"{number(value / 1000)}k"


def unit_text(unit: str) -> str:
    """What :func:`time_text` writes times in."""
    return "us" if unit == "ns" else "cycles"


def number(value: float) -> str:
    """Three or four digits: ``0.62``, ``96.4``, ``9,184``, ``12.3M``."""
    if value >= 9_999_500:
        return f"{value / 1e6:,.1f}M"
    if value >= 99.95:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 9.995 else f"{value:.2f}"


def percent(share: float | None) -> str:
    """``54 %``; small ones keep a digit."""
    if share is None or math.isnan(share):
        return "-"
    value = 100 * share
    return f"{value:.1f} %" if 0.05 <= value < 9.95 else f"{value:.0f} %"


def clock_text(error_ns: float | None) -> str:
    """``±1.2 us``, or that it is not known."""
    if error_ns is None or math.isnan(error_ns):
        return "unknown"
    return f"±{error_ns / 1000:.1f} us" if error_ns >= 100 else f"±{error_ns:.0f} ns"


def late_text(late: int, uses: int, unseen: int, *, whole: bool) -> str:
    """``61/144 +83?``: late of all, and those nobody is seen to use. Live, a share."""
    if not uses:
        return ""
    if not whole:
        return percent(late / uses)
    return f"{late:,}/{uses:,}" + (f" +{unseen:,}?" if unseen else "")
