"""The steps of a capture as its lines go by in the file: nothing is kept of those that are done."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd

from megatrace.analysis.frames import host_frame
from megatrace.analysis.launches import MAX_RINGS, launch_numbers
from megatrace.analysis.lines import Rows
from megatrace.analysis.ownership import NO_STEP, Headers, Owned, owned_lines
from megatrace.analysis.rank import clock_of, host_clock, load_rank
from megatrace.analysis.server import host_ranks
from megatrace.analysis.trace import Loaded, segments_of
from megatrace.capture.facts import MetaRow
from megatrace.capture.reader import Capture, LineIndex
from megatrace.clock import ClockModel, ClockSamples
from megatrace.errors import ClockError
from megatrace.schema import EventTable

_SAMPLE_FIELDS = ("sm", "launch", "clock", "globaltimer", "exact")
_INDEX_FIELDS = ("rank", "ring", "number", "at")


def streamed_steps(
    capture: Capture, ranks: Collection[int] | None, steps: Collection[int] | None
) -> Iterator[tuple[Loaded, list[Rows], int]]:
    """What each step's trace is made of, and the step, in the order of the step ids.

    The lines are read twice: for where each step ends and for the clocks, then step by
    step, each of which is a capture of its own.
    """
    rings = {rank: capture.rings[rank].rings if rank in capture.rings else MAX_RINGS
             for rank in _ranks_with_lines(capture) if ranks is None or rank in ranks}  # fmt: skip
    survey = _Survey.of(capture, rings)
    spoke = [rank for rank in host_ranks(capture) if ranks is None or rank in ranks]
    stream = _Stream(capture, survey, host_frame(capture, spoke, survey.clocks), sorted(rings))
    waiting = sorted(survey.last_batch)
    for batch, owned in owned_lines(capture, rings):
        while waiting and survey.last_batch[waiting[0]] < batch:
            yield from stream.finish(waiting.pop(0), steps)
        stream.gather(owned)
    for step in waiting:
        yield from stream.finish(step, steps)


def _ranks_with_lines(capture: Capture) -> list[int]:
    found = {number for number, facts in capture.rings.items() if facts.traced}
    for batch in range(capture.line_batches):
        found.update(np.unique(capture.lines_of(batch).rank).tolist())
    return sorted(found)


@dataclass(slots=True)
class _Survey:
    """What one reading of all lines tells: where each step ends, and the clocks."""

    last_batch: dict[int, int] = field(default_factory=dict)
    clocks: dict[int, ClockModel] = field(default_factory=dict)
    problems: dict[int, list[str]] = field(default_factory=lambda: defaultdict(list))

    @classmethod
    def of(cls, capture: Capture, rings: dict[int, int]) -> _Survey:
        """Read every line once."""
        survey = cls()
        headers: dict[int, list[Headers]] = defaultdict(list)
        for batch, owned in owned_lines(capture, rings):
            for step in np.unique(owned.step).tolist():
                survey.last_batch[step] = batch
            headers[owned.rank].append(owned.headers)
        survey.last_batch.pop(NO_STEP, None)
        for rank, parts in headers.items():
            survey._fit(capture, rank, parts)
        return survey

    def _fit(self, capture: Capture, rank: int, parts: list[Headers]) -> None:
        each = [part.samples() for part in parts]
        samples = ClockSamples(
            *(np.concatenate([getattr(one, name) for one in each]) for name in _SAMPLE_FIELDS)
        )
        host = host_clock(capture, rank, self.problems[rank])
        try:
            self.clocks[rank] = clock_of(capture, rank, samples, _longest(parts), host)
        except ClockError as error:
            self.problems[rank].append(f"{error}: no record of this rank can be placed in time")


def _longest(parts: list[Headers]) -> int:
    """In cycles: a launch is not longer than to the next one of its warp and step."""
    longest = 0
    for part in parts:
        same = (np.diff(part.ring.astype(np.int64)) == 0) & (np.diff(part.step) == 0)
        longest = max(longest, int(np.diff(part.clock)[same].max(initial=0)))
    return longest


class _Stream:
    """The lines of the steps in progress."""

    def __init__(
        self, capture: Capture, survey: _Survey, host: pd.DataFrame, ranks: list[int]
    ) -> None:
        self._capture, self._survey, self._host, self._ranks = capture, survey, host, ranks
        self._lines: dict[int, list[LineIndex]] = defaultdict(list)
        self._numbered = dict.fromkeys(ranks, 0)

    def gather(self, owned: Owned) -> None:
        """Put lines to those of their steps."""
        for step in np.unique(owned.step).tolist():
            if step != NO_STEP:
                rows = np.flatnonzero(owned.step == step)
                columns = (getattr(owned.index, name)[rows] for name in _INDEX_FIELDS)
                self._lines[step].append(LineIndex(*columns))

    def finish(
        self, step: int, steps: Collection[int] | None
    ) -> Iterator[tuple[Loaded, list[Rows], int]]:
        """The step whose lines are all here, if it was asked for."""
        parts = self._lines.pop(step, [])
        index = LineIndex(
            *(np.concatenate([getattr(part, name) for part in parts]) for name in _INDEX_FIELDS)
        )
        capture = self._capture.with_lines(index)
        # What was before in its rings is of other steps, not lost.
        capture.meta = [*capture.meta, MetaRow("capture", 0, {"joined": True})]
        tables, clocks = capture.tables, self._survey.clocks
        ranks, numbers = [], []
        for number in self._ranks:
            table = tables.get(number, EventTable("unknown", ()))
            rank = load_rank(capture, number, table, clocks.get(number))
            known = dict.fromkeys((*self._survey.problems[number], *rank.problems))
            rank = replace(rank, problems=tuple(known))
            ranks.append(rank)
            if rank.placed is None:
                numbers.append(np.zeros(0, np.int64))
                continue
            # Steps follow each other, so the launches of this one are numbered from the last.
            found = launch_numbers(rank.scan.launches, rank.placed.begin_ns)
            numbers.append(found + self._numbered[number])
            self._numbered[number] += int(found.max(initial=-1)) + 1
        if steps is not None and step not in steps:
            return
        loaded = Loaded(capture, tuple(ranks), self._host, tuple(numbers))
        every = [np.full(len(r.scan.launches), r.placed is not None) for r in ranks]
        chosen = [segments_of(r, wanted) for r, wanted in zip(ranks, every, strict=True)]
        yield loaded, chosen, step
