"""The fraction of the floor as plain text."""

from __future__ import annotations

import textwrap

from megatrace.analysis.plain import WIDTH, number, table, titled
from megatrace.analysis.report import Floors


def floor_text(floors: Floors, top: int) -> str:
    """The fraction of the floor by layer, or in a line why it is not known."""
    title = "Fraction of the floor"
    if floors.why_not:
        return textwrap.fill(f"{title}: {floors.why_not}", WIDTH, subsequent_indent="  ")
    if not floors.rows:
        return ""
    head = ("kernel", "layer", "launches", "experts", "MB", "floor us", "median us", "of the floor")
    body = [
        (
            row.kernel, str(row.layer), f"{row.launches:,}",
            f"{row.experts:.1f}" if row.experts >= 0 else "", f"{row.bytes / 1e6:,.1f}",
            number(row.floor_us), number(row.median_us), f"{100 * row.fraction:.0f} %",
        )
        for row in floors.rows[:top]
    ]  # fmt: skip
    rate = f"{floors.bandwidth_bytes_per_s / 1e12:.2f} TB/s, {floors.bandwidth_from}"
    notes = [
        f"floor: the time of the bytes that a launch must read at {rate}. "
        f"All together: {100 * floors.fraction:.0f} %."
    ]
    if floors.left_out:
        notes.append(f"{floors.left_out}: read beside and not counted, so it is no less than this.")
    wrapped = [textwrap.fill(note, WIDTH, subsequent_indent="  ") for note in notes]
    return "\n".join([titled(title, table(head, body), floors.rows, body), *wrapped])
