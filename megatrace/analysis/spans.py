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
    rows = np.flatnonzero(lut.kind[records.event] == SPAN)
    code = records.event[rows].astype(np.uint8)
    # Eight bits: a radix sort, which keeps time order within an event.
    rows = rows[np.argsort(lut.begin[code], kind="stable")]
    begins: list[Rows] = []
    ends: list[Rows] = []
    for _ in range(_MAX_NESTING):
        code = records.event[rows].astype(np.uint8)
        is_end = lut.is_end[code]
        event = lut.begin[code]
        segment = records.segment[rows]
        match = ~is_end[:-1] & is_end[1:]
        match &= (event[:-1] == event[1:]) & (segment[:-1] == segment[1:])
        at = np.flatnonzero(match)
        if not len(at):
            break
        begins.append(rows[at])
        ends.append(rows[at + 1])
        left = np.ones(len(rows), bool)
        left[at] = False
        left[at + 1] = False
        rows = rows[left]
        if not len(rows):
            break
    none = np.zeros(0, np.intp)
    is_end = lut.is_end[records.event[rows]]
    return Spans(
        np.concatenate(begins) if begins else none,
        np.concatenate(ends) if ends else none,
        rows[~is_end],
        rows[is_end],
    )
