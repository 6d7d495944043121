"""Cuts a rank's launches into chunks that fit the caches, whole blocks where possible."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from megatrace.analysis.launches import Scan
from megatrace.analysis.lines import I8, LineSource, Mask, Rows, spread
from megatrace.analysis.words import Chunk

PIECE_LINES = 1 << 13
"""Lines decoded at once: arrays of a few megabytes stay in the caches."""
_STRETCH = 4
"""A chunk may be so many times its size to keep the warps of a block together."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A chunk and which launches of the scan it holds: ``launches[i]`` is its launch i."""

    chunk: Chunk
    launches: Rows


def pieces(
    source: LineSource, scan: Scan, warps: int, wanted: Mask | None = None
) -> Iterator[Piece]:
    """Chunks of all launches, or of those where ``wanted`` [L], in the order of the rings."""
    keep = scan.segments.launch >= 0
    if wanted is not None:
        keep &= wanted[scan.segments.launch]
    yield from pieces_of(source, scan, warps, np.flatnonzero(keep))


def pieces_of(source: LineSource, scan: Scan, warps: int, rows: Rows) -> Iterator[Piece]:
    """Chunks of the segments at ``rows``, each of a launch, in their order."""
    segments = scan.segments
    if not len(rows):
        return
    owner = segments.launch[rows]
    size = segments.last[rows] - segments.first[rows]
    opens = np.flatnonzero(np.append(True, owner[1:] != owner[:-1]))
    lines = np.append(0, np.cumsum(np.add.reduceat(size, opens)))
    block = (segments.ring[rows[opens]] // max(1, warps)).astype(np.intp)
    opens = np.append(opens, len(rows))
    start = 0
    while start < len(block):
        stop = _stop(lines, block, start)
        part = rows[opens[start] : opens[stop]]
        yield _piece(source, scan, part, owner[opens[start] : opens[stop]])
        start = stop


def _stop(lines: I8, block: Rows, start: int) -> int:
    full = int(np.searchsorted(lines, lines[start] + PIECE_LINES, side="left"))
    stop = min(max(full, start + 1), len(block))
    if stop == len(block) or block[stop] != block[stop - 1]:
        return stop
    here = block[stop]
    begin = int(np.searchsorted(block, here, side="left"))
    if begin > start:
        return begin
    end = int(np.searchsorted(block, here, side="right"))
    return end if lines[end] - lines[start] <= _STRETCH * PIECE_LINES else stop


def _piece(source: LineSource, scan: Scan, part: Rows, owner: I8) -> Piece:
    segments = scan.segments
    first, size = segments.first[part], segments.last[part] - segments.first[part]
    fresh = np.append(True, owner[1:] != owner[:-1])
    local = np.cumsum(fresh) - 1
    lines = source.gather(scan.where.take(spread(first, size)))
    chunk = Chunk(lines, np.cumsum(size) - size, local, segments.head[part], int(local[-1]) + 1)
    return Piece(chunk, owner[fresh])
