"""The critical path of a launch or a step: backwards from its end, through what ended each wait."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd

from megatrace.analysis.columns import (
    BEFORE_START,
    CRITICAL_PATH,
    CRITICAL_PATH_SUMS,
    INPUT,
    NOT_WAITING,
    PEER,
    UNKNOWN,
    WAIT_FOR_LAUNCH,
)
from megatrace.analysis.lines import I8, Mask, Rows
from megatrace.analysis.numbers import numbers_of
from megatrace.analysis.phases import Spans, spans_of
from megatrace.analysis.pick import launch_columns, numbers_at, sound_launches, warp_columns
from megatrace.analysis.stalls import NAMES, Blocked, blocked
from megatrace.analysis.timeliness import first_uses
from megatrace.analysis.trace import Trace
from megatrace.analysis.waits import last_arrivers
from megatrace.analysis.walls import last_known
from megatrace.errors import UsageError
from megatrace.schema.processes import rank_text

LAUNCH_ORDER = "launch order"
"""Why the path goes from a launch to the one before it."""


@dataclass(frozen=True, slots=True)
class _Row:
    """One row of the path; ``launch`` is a row of ``Trace.launches``."""

    launch: int
    begin_ns: int
    end_ns: int
    what: str
    event: str = ""
    why: str = ""
    from_unknown: bool = False
    """It waits for another block or GPU, and no publish that ended it was recorded."""


@dataclass(frozen=True, slots=True)
class _Facts:
    """What the walk looks up."""

    begin_ns: I8
    end_ns: I8
    sound: Mask
    waits: Blocked
    spans: Spans
    event: list[str]
    """Event names by category code."""
    event_code: Rows
    ended_by: dict[int, tuple[int, int, str]]
    """Row of a wait -> (row of the launch that ended it, when, edge)."""
    by_a_peer: frozenset[int]
    """Rows of waits that a recorded publish of another GPU ended."""

    @classmethod
    def of(cls, trace: Trace) -> _Facts:
        """Of every launch of the trace: the path may lead anywhere."""
        events = trace.records["event"]
        ended_by, by_a_peer = _enders(trace)
        return cls(
            trace.launches["begin_ns"].to_numpy(),
            last_known(trace),
            sound_launches(trace),
            blocked(trace),
            spans_of(trace),
            [str(name) for name in events.cat.categories],
            events.cat.codes.to_numpy().astype(np.intp),
            ended_by,
            by_a_peer,
        )


def _enders(trace: Trace) -> tuple[dict[int, tuple[int, int, str]], frozenset[int]]:
    """What ended each wait of one GPU that blocked: a publish, or a prefetch that was late.

    And the waits that a publish of another GPU ended.
    """
    records = trace.records
    launch = records["launch_row"].to_numpy()
    names = [str(name) for name in records["edge"].cat.categories]
    edge = records["edge"].cat.codes.to_numpy()
    found: dict[int, tuple[int, int, str]] = {}
    arrivals = last_arrivers(trace)
    known = arrivals.publish >= 0
    # Another GPU's rows would be on another clock: the path stays on this one.
    mine, theirs = (numbers_at(trace, of) for of in (arrivals.wait, arrivals.publish))
    by_a_peer = frozenset(arrivals.wait[known & (mine != theirs)].tolist())
    known &= mine == theirs
    for wait, publish, when in zip(
        arrivals.wait[known].tolist(),
        arrivals.publish[known].tolist(),
        arrivals.publish_ns[known].tolist(),
        strict=True,
    ):
        found[wait] = (int(launch[publish]), when, names[edge[wait]])
    uses = first_uses(trace)
    begin = records["begin_ns"].to_numpy()
    for issue, use in zip(uses.issue.tolist(), uses.blocked.tolist(), strict=True):
        if use >= 0:
            found[use] = (int(launch[issue]), int(begin[issue]), names[edge[use]])
    return found, by_a_peer


@dataclass(slots=True)
class _Walk:
    """A walk from the end of ``launches`` (rows of warps, by launch number) to ``low_ns``."""

    facts: _Facts
    number: I8
    """[L] launch number of each row of ``Trace.launches``."""
    launches: Rows
    low_ns: int
    rows: list[_Row] = field(default_factory=list)
    """Latest first."""

    def run(self) -> list[_Row]:
        """The rows, earliest first; each begins where the one before it ends."""
        warp, now = self._last(self.launches)
        seen: set[int] = set()
        while now > self.low_ns:
            wait = self._wait_before(warp, now)
            if wait is None:
                begin = max(int(self.facts.begin_ns[warp]), self.low_ns)
                self._ran(warp, min(begin, now), now)
                found = self._before(warp, min(begin, now))
                if found is None:
                    break
                warp, now = found
                continue
            row = int(self.facts.waits.row[wait])
            end = min(int(self.facts.waits.end_ns[wait]), now)
            self._ran(warp, end, now)
            what = NAMES[int(self.facts.waits.code[wait])]
            event = self.facts.event[self.facts.event_code[row]]
            ender = self.facts.ended_by.get(row)
            if ender is None or row in seen:
                now = max(int(self.facts.waits.begin_ns[wait]), self.low_ns)
                unknown = ender is None and row not in self.facts.by_a_peer
                unknown &= what in (INPUT, PEER)
                self._add(_Row(warp, now, end, what, event, from_unknown=unknown))
                continue
            seen.add(row)
            by, when, edge = ender
            now = min(max(when, self.low_ns), end)
            self._add(_Row(warp, now, end, what, event, edge))
            warp = by
        return self.rows[::-1]

    def _last(self, launches: Rows) -> tuple[int, int]:
        """The warp that ended last, and when."""
        ends = self.facts.end_ns[launches]
        return int(launches[int(np.argmax(ends))]), int(ends.max())

    def _wait_before(self, warp: int, now: int) -> int | None:
        """The last wait of a warp that began before ``now``."""
        waits = self.facts.waits
        first, past = np.searchsorted(waits.launch, (warp, warp + 1))
        place = int(np.searchsorted(waits.begin_ns[first:past], now)) - 1
        return int(first) + place if place >= 0 else None

    def _before(self, warp: int, now: int) -> tuple[int, int] | None:
        """Where the path goes on from a warp's begin: the end of the launch before."""
        mine = self.number[warp]
        earlier = self.launches[self.number[self.launches] < mine]
        same = self.launches[self.number[self.launches] == mine]
        begin = max(int(self.facts.begin_ns[same].min()), self.low_ns) if len(same) else now
        if not len(earlier):
            self._add(_Row(warp, self.low_ns, now, BEFORE_START))
            return None
        last, end = self._last(earlier[self.number[earlier] == self.number[earlier].max()])
        if end >= now:
            # What a dependent launch does before the end of the one before hides behind it.
            self._cut(end)
            return last, end
        self._add(_Row(warp, max(begin, end), now, BEFORE_START))
        self._add(_Row(warp, end, max(begin, end), WAIT_FOR_LAUNCH, "", LAUNCH_ORDER))
        return last, end

    def _cut(self, until: int) -> None:
        """Drop what the path has before ``until``."""
        while self.rows and self.rows[-1].begin_ns < until:
            row = self.rows.pop()
            if row.end_ns > until:
                self.rows.append(replace(row, begin_ns=until, why=LAUNCH_ORDER))
                return
        if self.rows:
            self.rows[-1] = replace(self.rows[-1], why=LAUNCH_ORDER)

    def _ran(self, warp: int, begin: int, end: int) -> None:
        """Rows of what a warp did while it did not wait: the innermost span, or nothing known."""
        spans, idle = self.facts.spans, NOT_WAITING if self.facts.sound[warp] else UNKNOWN
        first, past = np.searchsorted(spans.launch, (warp, warp + 1))
        mine = np.arange(first, past)
        mine = mine[(spans.begin_ns[mine] < end) & (spans.end_ns[mine] > begin)]
        edges = np.concatenate([spans.begin_ns[mine], spans.end_ns[mine], [begin, end]])
        cuts = np.unique(np.clip(edges, begin, end)).tolist()
        for left, right in zip(cuts[-2::-1], cuts[:0:-1], strict=True):
            inside = mine[(spans.begin_ns[mine] <= left) & (spans.end_ns[mine] >= right)]
            if len(inside):  # records of a launch are by begin, longest first
                name = self.facts.event[self.facts.event_code[spans.row[inside[-1]]]]
                self._add(_Row(warp, left, right, name, name))
            else:
                self._add(_Row(warp, left, right, idle))

    def _add(self, row: _Row) -> None:
        """Put a row before the others, joined to the next where both say the same."""
        after = self.rows[-1] if self.rows else None
        if row.end_ns <= row.begin_ns:
            if row.why and after is not None and not after.why:
                self.rows[-1] = replace(after, why=row.why)
            return
        if (
            after is not None
            and not after.why
            and row == replace(after, begin_ns=row.begin_ns, end_ns=row.end_ns, why=row.why)
        ):
            self.rows[-1] = replace(after, begin_ns=row.begin_ns, why=row.why)
            return
        self.rows.append(row)


def critical_path(
    trace: Trace,
    *,
    launch_no: int | None = None,
    step: int | None = None,
    rank: int | None = None,
) -> pd.DataFrame:
    """What the end of a launch, or of a step, waited for; columns as ``CRITICAL_PATH`` says.

    From the warp that ended last, back in time: where it waited for a publish or a late
    prefetch that was recorded, on to that warp; where nobody knows whose, past the wait;
    at a warp's begin, in a step, to the launch before. It stays on one GPU: ``rank`` (a
    number), or the lowest that has the launch. Raises UsageError where there is none.
    """
    if (launch_no is None) == (step is None):
        raise UsageError(
            "a critical path is of one launch or of one step", hint="give launch_no or step"
        )
    launches = trace.launches
    name, wanted = ("launch", launch_no) if step is None else ("step", step)
    there = launches[name].to_numpy() == wanted
    ranks = numbers_of(launches)
    if there.any() or rank is not None:
        there &= ranks == (ranks[there].min() if rank is None else rank)
    rows = np.flatnonzero(there)
    if not len(rows):
        of = "" if rank is None else f" of rank {rank_text(rank)}"
        raise UsageError(
            f"no {name} {wanted}{of} in this trace",
            hint="launch_times() lists the launches and their steps",
        )
    facts = _Facts.of(trace)
    walk = _Walk(facts, launches["launch"].to_numpy(), rows, int(facts.begin_ns[rows].min()))
    return _frame(trace, walk.run())


def _frame(trace: Trace, path: list[_Row]) -> pd.DataFrame:
    if not path:
        return CRITICAL_PATH.empty()
    rows = np.array([row.launch for row in path], np.intp)
    begin, end = (np.array([getattr(r, n) for r in path]) for n in ("begin_ns", "end_ns"))
    return CRITICAL_PATH.frame(
        {
            **launch_columns(trace, rows),
            **warp_columns(trace, rows),
            "begin_ns": begin,
            "end_ns": end,
            "dur_ns": end - begin,
            **{name: [getattr(r, name) for r in path] for name in ("what", "event", "why")},
            "from_unknown_ns": np.where([row.from_unknown for row in path], end - begin, 0),
        }
    )


def critical_path_sums(
    trace: Trace,
    *,
    launch_no: int | None = None,
    step: int | None = None,
    rank: int | None = None,
) -> pd.DataFrame:
    """Where the time of a :func:`critical_path` goes; columns as ``CRITICAL_PATH_SUMS`` says.

    ``share`` is of that one path: of a step's sums it adds up to 1.
    """
    path = critical_path(trace, launch_no=launch_no, step=step, rank=rank)
    keys = ["rank", "process", "step", "kernel", "layer", "role", "what", "event"]
    sums = path.groupby(keys, observed=True, sort=False).agg(
        dur_ns=("dur_ns", "sum"),
        from_unknown_ns=("from_unknown_ns", "sum"),
        times=("dur_ns", "size"),
    )
    sums = sums.sort_values("dur_ns", ascending=False, kind="stable").reset_index()
    whole = sums.assign(share=sums["dur_ns"] / max(1, int(sums["dur_ns"].sum())))
    return CRITICAL_PATH_SUMS.frame({name: whole[name] for name in whole.columns})
