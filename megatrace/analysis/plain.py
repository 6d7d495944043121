"""Plain text that every report is made of: aligned tables, numbers as short as they may be."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

WIDTH = 100


def table(head: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> str:
    """Rows below ``head``; the first ``left`` columns flush left, the others right."""
    body = [list(row) for row in rows]
    widths = [max(len(row[i]) for row in [list(head), *body]) for i in range(len(head))]
    spare = WIDTH - sum(widths) - 2 * (len(widths) - 1)
    for i in range(left):
        if spare < 0:
            cut = min(-spare, max(0, widths[i] - 12))
            widths[i] -= cut
            spare += cut
    lines = []
    for row in [list(head), *body]:
        cells = [
            _fit(cell, widths[i]).ljust(widths[i]) if i < left else cell.rjust(widths[i])
            for i, cell in enumerate(row)
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def _fit(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


def titled(title: str, text: str, rows: Sequence[object], shown: Sequence[object]) -> str:
    """``text`` below ``title``, with how many of ``rows`` are not shown."""
    return more(f"{title}\n{text}", len(rows), len(shown))


def more(text: str, all_rows: int, shown: int) -> str:
    """``text``, and how many rows it leaves out."""
    if shown == all_rows:
        return text
    return f"{text}\n{all_rows - shown:,} more rows are in the JSON"


def many(count: int, noun: str, plural: str = "s") -> str:
    """``1 layer``, ``4 layers``."""
    return f"{count:,} {noun}{'' if count == 1 else plural}"


def number(value: float) -> str:
    """As many decimals as the number is worth; empty for NaN."""
    if value != value:
        return ""
    return f"{value:,.0f}" if value >= 10_000 else f"{value:,.2f}"


def ranges_text(numbers: Iterable[int], limit: int = 8) -> str:
    """``0-3, 7``; of more than ``limit`` ranges the first ones and the last."""
    runs: list[list[int]] = []
    for one in sorted(set(numbers)):
        if runs and one == runs[-1][-1] + 1:
            runs[-1][1:] = [one]
        else:
            runs.append([one])
    texts = ["-".join(map(str, run)) for run in runs]
    if len(texts) > limit:
        texts = [*texts[: limit - 1], "...", texts[-1]]
    return ", ".join(texts)
