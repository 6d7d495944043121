"""A whole capture as traces that fit in memory: at once where it is small, else by step."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from megatrace.analysis.bystep import by_step
from megatrace.analysis.trace import Trace, decode
from megatrace.capture.reader import Capture
from megatrace.schema.layout import RECORDS_PER_LINE

SMALL_LINES = 1 << 18
"""Of fewer lines all is decoded at once: a gigabyte at most, and nothing is cut by a window."""

Progress = Callable[[int, int], None]


def windows(
    capture: Capture, progress: Progress | None = None, *, small_lines: int = SMALL_LINES
) -> Iterator[Trace]:
    """At least one trace; together they hold every launch once.

    ``progress`` is told ``(done, total)`` after each. Raises as
    :func:`megatrace.analysis.decode`.
    """
    lines = len(capture.line_index())
    if lines <= small_lines:
        yield decode(capture)
        return
    none = True
    words, total = 0, lines * RECORDS_PER_LINE
    for trace in by_step(capture):
        none = False
        yield trace
        words += int(trace.launches["words"].sum())
        if progress is not None:
            progress(min(words, total), total)
    if none:
        yield decode(capture, steps=())
