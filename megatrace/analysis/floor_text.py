"""The fraction of the floor as plain text."""

from __future__ import annotations

import textwrap

from megatrace.analysis.plain import WIDTH, number, table, titled
from megatrace.analysis.report import Floors

COPY_NOTE = (
    "A copy's rate counts bytes read and written: a launch that only reads can be a little above "
    "it."
)


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
        f"All together: {100 * floors.fraction:.0f} %.",
        COPY_NOTE,
    ]
    notes += [
        f"{bound[0].upper()}{bound[1:]}."
        for bound in bounds_text(floors.part_recorded, floors.left_out)
    ]
    wrapped = [textwrap.fill(note, WIDTH, subsequent_indent="  ") for note in notes]
    return "\n".join([titled(title, table(head, body), floors.rows, body), *wrapped])


def bounds_text(part_recorded: str, left_out: str) -> list[str]:
    """On which side of the fraction the true one lies, and why: the two fields of Floors."""
    said = []
    if part_recorded:
        said.append(
            f"the fraction of the floor is at most this{' of the bytes counted' * bool(left_out)}: "
            f"{part_recorded} were recorded, and a whole launch takes no less time"
        )
        said += [f"not counted in the floor: {left_out}"] * bool(left_out)
    elif left_out:
        said.append(f"the fraction of the floor is no less than this: not counted: {left_out}")
    return said
