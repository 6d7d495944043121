"""Captures bigger than memory: one step after the other, each a Trace of its own."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import numpy as np

from megatrace.analysis.lines import I8, Rows
from megatrace.analysis.rank import Rank
from megatrace.analysis.streamed import streamed_steps
from megatrace.analysis.trace import Loaded, Trace, load, trace_of
from megatrace.capture.reader import Capture

INDEXED_LINES = 1 << 21
"""Up to so many lines (a quarter of a GB) all are indexed at once: about 90 bytes each."""


def by_step(
    capture: Capture,
    *,
    ranks: Collection[int] | None = None,
    steps: Collection[int] | None = None,
    lean: bool = False,
    indexed_lines: int = INDEXED_LINES,
) -> Iterator[Trace]:
    """A Trace for each step that has launches, in the order of the step ids.

    Memory holds the steps in progress in the file at one place, and of the rest about 40
    bytes a launch of a warp, for the clocks. ``launch_no`` and clocks are those of the
    whole capture, ``host`` the events of the step alone (``decode(capture, steps=())`` has
    all of them). What crosses from one step into the next is not seen: a prefetch for the
    next step's first layer has no use.

    ``lean`` leaves out of ``records`` what no view needs, for ``launches`` says it: rank,
    process, block, warp, role, step, kernel, layer, and the category. Captures of more than
    ``indexed_lines`` lines are read twice; the loss of their traces counts what is missing
    within the step. Raises as :func:`megatrace.analysis.decode`.
    """
    parts = indexed_steps if capture.line_count <= indexed_lines else streamed_steps
    for loaded, chosen, step in parts(capture, ranks, steps):
        host = loaded.host[loaded.host["step"] == step].reset_index(drop=True)
        yield trace_of(loaded, chosen, host, lean=lean)


def indexed_steps(
    capture: Capture, ranks: Collection[int] | None, steps: Collection[int] | None
) -> Iterator[tuple[Loaded, list[Rows], int]]:
    """What each step's trace is made of, from an index of all lines; and the step."""
    yield from steps_of(load(capture, ranks), steps)


def steps_of(
    loaded: Loaded, steps: Collection[int] | None = None
) -> Iterator[tuple[Loaded, list[Rows], int]]:
    """The same of a capture whose lines were indexed already."""
    parts = [_Steps(rank) for rank in loaded.ranks]
    found = np.unique(np.concatenate([np.zeros(0, np.int64), *(part.steps for part in parts)]))
    for step in found.tolist():
        if steps is None or step in steps:
            yield loaded, [part.of(step) for part in parts], step


class _Steps:
    """The segments of one rank, by step."""

    def __init__(self, rank: Rank) -> None:
        segments = rank.scan.segments.launch
        rows = np.flatnonzero(segments >= 0) if rank.placed is not None else segments[:0]
        step = rank.scan.launches.step[segments[rows]]
        order = np.argsort(step, kind="stable")  # the order of the rings stays
        self._rows = rows[order]
        self.steps: I8
        self.steps, self._first = np.unique(step[order], return_index=True)
        self._last = np.append(self._first[1:], len(order))

    def of(self, step: int) -> Rows:
        """The segments of one step."""
        place = int(np.searchsorted(self.steps, step))
        if place == len(self.steps) or self.steps[place] != step:
            return self._rows[:0]
        return self._rows[self._first[place] : self._last[place]]
