"""Begins and ends of spans, paired."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from megatrace.analysis.lines import Rows
from megatrace.analysis.tables import SPAN, Lookup
from megatrace.analysis.words import Records

_MAX_NESTING = 64


@dataclass(frozen=True, slots=True)
class Spans:
    """Rows of Records: ``begin[i]`` and ``end[i]`` are one span.

    ``open`` began and did not end where it could be seen; ``closed`` ended only. A gap in
    the lines ends what is open: what follows it may be the end of another span.
    """

    begin: Rows
    end: Rows
    open: Rows
    closed: Rows


def pair(records: Records, lut: Lookup) -> Spans:
    """Pair spans of one event from the inside out, within a segment of a launch.

    Spans of different events may overlap, those of one event nest.
    """
    rows = np.flatnonzero((lut.kind == SPAN).take(records.event))
    code = records.event.take(rows).astype(np.uint8)
    event = lut.begin.take(code)
    if (event[1:] < event[:-1]).any():
        # Eight bits: a radix sort, which keeps time order within an event.
        order = np.argsort(event, kind="stable")
        rows, code, event = rows.take(order), code.take(order), event.take(order)
    is_end, segment = code != event, records.segment.take(rows)
    begins: list[Rows] = []
    ends: list[Rows] = []
    for _ in range(_MAX_NESTING):
        match = ~is_end[:-1] & is_end[1:]
        match &= (event[:-1] == event[1:]) & (segment[:-1] == segment[1:])
        at = np.flatnonzero(match)
        if not len(at):
            break
        begins.append(rows.take(at))
        ends.append(rows.take(at + 1))
        left = np.ones(len(rows), bool)
        left[:-1] ^= match
        left[1:] ^= match
        still = np.flatnonzero(left)
        rows, segment = rows.take(still), segment.take(still)
        event, is_end = event.take(still), is_end.take(still)
        if not len(rows):
            break
    none = np.zeros(0, np.intp)
    return Spans(
        np.concatenate(begins) if begins else none,
        np.concatenate(ends) if ends else none,
        rows[~is_end],
        rows[is_end],
    )
