"""Decodes arrays of lines without a capture, and says what the decoder should have found."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from megatrace.analysis.launches import Scan, scan
from megatrace.analysis.lines import ArrayLines
from megatrace.analysis.plan import pieces
from megatrace.analysis.spans import pair
from megatrace.analysis.tables import KINDS, Lookup, lookup
from megatrace.analysis.words import Malformed, Records, decode_chunk
from megatrace.schema import EventTable, Kind
from tests.build import TABLE, Build, Launch, Rec

Found = tuple[int, int, int, int, tuple[int, ...]]
"""Launch number, event code, begin, duration (-1: none), arguments."""


@dataclass(frozen=True, slots=True)
class Decoded:
    scan: Scan
    records: list[Found]
    spans: list[tuple[int, int, int, int]]
    """Launch number, event, begin, end."""
    open_spans: int
    stray_ends: int
    malformed: Malformed
    uncertain: set[int]
    """Numbers of launches with uncertain times."""


def decode_lines(
    ring: NDArray[np.uint32],
    lines: NDArray[np.uint32],
    *,
    table: EventTable = TABLE,
    capacity: int = 1024,
    warps: int = 1,
) -> Decoded:
    lut = lookup(table)
    source = ArrayLines(ring, lines)
    found = scan(source, capacity=capacity)
    records: list[Found] = []
    spans: list[tuple[int, int, int, int]] = []
    uncertain: set[int] = set()
    malformed = Malformed()
    opened = stray = 0
    for piece in pieces(source, found, warps):
        launches = found.launches
        end = launches.end_clock[piece.launches]
        ran = np.where(end >= 0, end - launches.clock[piece.launches], -1)
        chunk = decode_chunk(piece.chunk, lut, ran)
        number = launches.launch[piece.launches]
        malformed += chunk.malformed
        doubt = chunk.uncertain | launches.unchecked[piece.launches]
        uncertain.update(number[doubt].tolist())
        records += [_found(chunk, lut, i, number) for i in range(len(chunk.at))]
        paired = pair(chunk, lut)
        for b, e in zip(paired.begin.tolist(), paired.end.tolist(), strict=True):
            launch = int(number[chunk.launch[b]])
            spans.append((launch, int(chunk.event[b]), int(chunk.t[b]), int(chunk.t[e])))
        opened += len(paired.open)
        stray += len(paired.closed)
    return Decoded(found, records, spans, opened, stray, malformed, uncertain)


def _found(chunk: Records, lut: Lookup, row: int, number: NDArray[np.int64]) -> Found:
    code = int(chunk.event[row])
    at = np.array([row])
    args = tuple(int(chunk.arg(at, i)[0]) for i in range(int(lut.args[code])))
    kind = KINDS[lut.kind[code]]
    dur = int(chunk.dur[row]) if kind in (Kind.STALL, Kind.WAIT) else -1
    return int(number[chunk.launch[row]]), code, int(chunk.t[row]), dur, args


def expected(launch: Launch) -> list[Found]:
    """What a launch's records decode to, in the order in which they were committed."""
    blocking = {e.id for e in TABLE if e.kind in (Kind.STALL, Kind.WAIT)}
    return [
        (launch.launch, rec.code, rec.t, rec.args[0] if rec.code in blocking else -1, rec.args)
        for rec in sorted(launch.records, key=lambda r: r.order)
    ]


def one_launch(*records: Rec, **facts: int) -> Launch:
    """A launch long enough for its records."""
    end = max((r.order for r in records), default=0) + 2000
    begin = facts.pop("begin_ns", 1_000_000)
    return Launch(1, begin, begin + int(end / 1.98) + 1, records=records, **facts)


def lines_of(*launches: Launch) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
    """Ring and lines of launches of one warp."""
    build = Build()
    for launch in launches:
        build.add(0, launch)
    return build.arrays()
