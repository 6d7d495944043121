"""From lines to launches: where each begins and ends, what of it is certain, what is lost."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from megatrace.analysis.lines import (
    CHUNK_LINES,
    CLOSING,
    I4,
    I8,
    U1,
    U4,
    Heads,
    LineSource,
    Mask,
    Rows,
    look,
    payload,
    ring_order,
)
from megatrace.analysis.loss import RingLoss, account
from megatrace.schema.layout import (
    ARG_BIT,
    ARG_BITS,
    ARG_MASK,
    CLOSING_WORDS,
    HEADER_EDGE,
    KERNEL_SHIFT,
    LAYER_MASK,
    RECORDS_PER_LINE,
    TIME_BITS,
    TIME_MASK,
)

SM_MASK = HEADER_EDGE - 1
MAX_RINGS = 1 << 20
"""Of a rank whose ring facts are gone: a damaged ring number must not size an array."""
_SLACK_CYCLES = 256
"""A closing's time field and its clock are one read; this much apart they are not."""


@dataclass(frozen=True, slots=True)
class Launches:
    """Launches of the warps of one rank, sorted by ring and time; arrays of length L."""

    ring: I4
    segment: I8
    """Its first segment, the one that its header opens."""
    launch: I8
    """Running number of the launches that this warp recorded."""
    step: I8
    kernel: I4
    layer: I4
    sm: I4
    exact: Mask
    """Its pair of clocks was read on the edge of a tick."""
    globaltimer: I8
    clock: I8
    """The SM's clock at launch start, 62 bits: t = 0 of its records."""
    complete: Mask
    """Its closing survives."""
    end_clock: I8
    """-1 where not complete."""
    words: I8
    """Words captured, header and closing included."""
    lost_lines: I8
    """Lines known to be missing inside it."""

    def __len__(self) -> int:
        return len(self.launch)

    def lost(self, *, joined: bool = False) -> int:
        """Launches of warps that left no header, by the running numbers of the others.

        ``joined``: what was before the first of a ring is not meant to be here.
        """
        before = np.append(-1, self.launch[:-1])[: len(self)]
        first = np.append(True, self.ring[1:] != self.ring[:-1])[: len(before)]
        before[first] = self.launch[first] - 1 if joined else -1
        return int(np.maximum(self.launch - before[: len(self)] - 1, 0).sum())

    @property
    def unchecked(self) -> Mask:
        """Lines are missing inside and no closing is left to check the times against."""
        return (self.lost_lines > 0) & ~self.complete


@dataclass(frozen=True, slots=True)
class Segments:
    """Runs of lines without a gap, each opened by a header or by a gap; length S."""

    ring: I4
    first: I8
    """Its first place in ``Scan.where``."""
    last: I8
    """One past its last."""
    launch: I8
    """Launch whose records it holds; -1: the header is gone, so these words are orphans."""
    head: Mask
    gap_lines: I8
    """Lines missing before it."""


@dataclass(frozen=True, slots=True)
class Scan:
    """One rank's lines in order, cut into segments and launches."""

    where: Rows
    """Row of the source of each line, sorted by ring and number, sound lines only."""
    words: U1
    launches: Launches
    segments: Segments
    loss: RingLoss
    strange: int
    """Lines of rings that the rank does not have; nothing else counts them."""


@dataclass(frozen=True, slots=True)
class _Ends:
    """The closing at the end of each segment, where there is one."""

    found: Mask
    time: I8
    clock: I8
    words: I8


def scan(
    source: LineSource, *, capacity: int = 0, rings: int | None = None, joined: bool = False
) -> Scan:
    """Find the launches of one rank. Reads every line once and the ends of launches twice.

    Args:
        source: the lines.
        capacity: lines each ring has, to know an older lap's number; 0 where unknown.
        rings: number of rings; from the lines where None.
        joined: the capture begins in the middle of the rings: what was before is not lost.
    """
    heads = look(source, capacity)
    if rings is None:
        rings = min(int(source.ring.max(initial=0)) + 1, MAX_RINGS)
    inside = source.ring < rings
    known = heads.sound & inside
    where, ring, number, repeats = _in_order(source, heads, np.flatnonzero(known))
    words, head = heads.words.take(where), heads.head.take(where)
    first, gap = _cut(ring, number, head, joined=joined)
    last = np.append(first[1:], len(where)).astype(np.int64)
    seg_ring, seg_head = ring[first], head[first]
    seg_words = _sums(words, first)
    ends = _closings(source, where, first, last)
    rows_of_fields = np.cumsum(heads.head) - 1
    fields = heads.fields[rows_of_fields[where[first[seg_head]]]]
    launches, seg_launch = _assemble(seg_ring, seg_head, gap, seg_words, ends, fields)
    segments = Segments(seg_ring, first, last, seg_launch, seg_head, gap)
    words_before = np.full(len(first), -1, np.int64)
    words_before[seg_head] = _arg(fields, 8)
    loss = account(
        rings=rings,
        seen=np.bincount(ring, minlength=rings),
        torn=np.bincount(source.ring[inside & ~known], minlength=rings),
        repeated=np.bincount(source.ring[repeats], minlength=rings),
        segments=segments,
        seg_words=seg_words,
        words_before=words_before,
        words_after=np.where(ends.found, ends.words, -1),
        joined=joined,
    )
    return Scan(where, words, launches, segments, loss, int((~inside).sum()))


def _in_order(source: LineSource, heads: Heads, rows: Rows) -> tuple[Rows, I4, I8, Rows]:
    """Sound rows in order, their rings and numbers, and the repeats left out.

    Of equals the fullest stays.
    """
    order, ring, number = ring_order(source.ring, source.number, rows)
    same = np.zeros(len(order), bool)
    same[1:] = (ring[1:] == ring[:-1]) & (number[1:] == number[:-1])
    repeats = order[:0]
    if same.any():
        by_words = np.lexsort((-heads.words[order].astype(np.int64), np.cumsum(~same)))
        order = order[by_words]
        order, repeats = order[~same], order[same]
        ring, number = ring[~same], number[~same]
    return order, ring.astype(np.int32), number.astype(np.int64), repeats


def _cut(ring: I4, number: I8, head: Mask, *, joined: bool) -> tuple[I8, I8]:
    """First line of each segment, and the lines missing before it."""
    new_ring = np.ones(len(ring), bool)
    new_ring[1:] = ring[1:] != ring[:-1]
    before = np.zeros(len(ring), np.int64)
    before[1:] = number[:-1]
    before[new_ring] = number[new_ring] - 1 if joined else 0
    missing = number - before - 1
    first = np.flatnonzero(head | new_ring | (missing > 0)).astype(np.int64)
    return first, missing[first]


def _sums(words: U1, first: I8) -> I8:
    if not len(first):
        return np.zeros(0, np.int64)
    return np.add.reduceat(words, first, dtype=np.int64)


def _closings(source: LineSource, where: Rows, first: I8, last: I8) -> _Ends:
    """Look for a closing in the last line of each segment; it may begin one line before."""
    count = len(first)
    found = np.zeros(count, bool)
    out = np.zeros((count, CLOSING_WORDS), np.uint32)
    for start in range(0, count, CHUNK_LINES // 2):
        part = slice(start, start + CHUNK_LINES // 2)
        final = payload(source.gather(where[last[part] - 1]))
        has_more = last[part] - 1 > first[part]
        before = payload(source.gather(where[np.maximum(last[part] - 2, 0)]))
        before[~has_more] = 0
        window = np.concatenate([before, final], axis=1)
        used = window.shape[1] - np.argmax(window[:, ::-1] != 0, axis=1)
        # Words fill a line from the left: the closing is the last three that are not zero.
        at = np.maximum(used - CLOSING_WORDS, 0)[:, None] + np.arange(CLOSING_WORDS)
        tail = np.take_along_axis(window, at, axis=1)
        tail = np.where((before[:, -1:] == 0) & (at < RECORDS_PER_LINE), 0, tail)
        found[part] = (tail[:, 0] >> TIME_BITS == CLOSING) & (tail[:, 1:] >= ARG_BIT).all(axis=1)
        out[part] = tail
    words = (out & ARG_MASK).astype(np.int64)
    return _Ends(found, words[:, 0] & TIME_MASK, words[:, 1], words[:, 2])


def _assemble(
    seg_ring: I4, seg_head: Mask, gap: I8, seg_words: I8, ends: _Ends, fields: U4
) -> tuple[Launches, I8]:
    """Launches of the headers, and the launch of each segment or -1."""
    count = len(seg_head)
    heads = np.flatnonzero(seg_head)
    if not len(heads):
        return _no_launches(), np.full(count, -1, np.int64)
    owner = np.cumsum(seg_head) - 1
    astray = owner < 0
    astray[~astray] = seg_ring[heads[owner[~astray]]] != seg_ring[~astray]
    safe = np.maximum(owner, 0)
    lost = np.where(seg_head, 0, gap)
    proven = _proven(heads, safe, seg_words, lost, ends, fields)
    closes = ends.found & proven & ~astray

    index = np.arange(count)
    end = np.full(len(heads), count)
    np.minimum.at(end, owner[closes], index[closes])
    complete = end < count
    launch, ring = _arg(fields, 1), seg_ring[heads]
    follows = np.zeros(len(heads), bool)
    follows[:-1] = (launch[1:] == launch[:-1] + 1) & (ring[1:] == ring[:-1])
    limit = np.where(complete, end, np.where(follows, count, heads))
    attached = ~astray & (index <= limit[safe])

    clock = _arg(fields, 6) | (_arg(fields, 7) << ARG_BITS)
    gt = _arg(fields, 4) | (_arg(fields, 5) << ARG_BITS)
    at = np.where(complete, end, 0)
    end_clock = clock + ((ends.clock[at] - clock) & ARG_MASK)
    first_word = fields[:, 0].astype(np.int64)
    many = len(heads)
    return Launches(
        ring=ring,
        segment=heads.astype(np.int64),
        launch=launch,
        step=_arg(fields, 2),
        kernel=(_arg(fields, 3) >> KERNEL_SHIFT).astype(np.int32),
        layer=(_arg(fields, 3) & LAYER_MASK).astype(np.int32),
        sm=(first_word & SM_MASK).astype(np.int32),
        exact=(first_word & HEADER_EDGE) != 0,
        globaltimer=gt,
        clock=clock,
        complete=complete,
        end_clock=np.where(complete, end_clock, -1),
        words=np.bincount(safe[attached], seg_words[attached], many).astype(np.int64),
        lost_lines=np.bincount(safe[attached], lost[attached], many).astype(np.int64),
    ), np.where(attached, owner, -1).astype(np.int64)


def _proven(heads: Rows, owner: Rows, seg_words: I8, lost: I8, ends: _Ends, fields: U4) -> Mask:
    """Segments whose closing belongs to the launch ``owner`` [S] of the last header.

    Lines after a gap belong to the launch before it only where that is proven: here, by a
    closing whose time and clock point back to the start of that launch and whose word
    count leaves no more words than the gap could hold. (The other proof: the next header
    is of the very next launch of the warp.)
    """
    cum_words, cum_lost = np.cumsum(seg_words), np.cumsum(lost)
    seen = cum_words - (cum_words - seg_words)[heads][owner]
    missing = cum_lost - (cum_lost - lost)[heads][owner]
    start = _arg(fields, 6)[owner]
    off = (ends.clock - ends.time - start + _SLACK_CYCLES) & TIME_MASK
    written = (ends.words - _arg(fields, 8)[owner]) & ARG_MASK
    counted = (written >= seen) & (written <= seen + RECORDS_PER_LINE * missing)
    proven: Mask = (off <= 2 * _SLACK_CYCLES) & (counted | (missing == 0))
    return proven


def whole_launches(launches: Launches) -> tuple[Rows, Rows]:
    """Which launches of warps are one launch of the GPU.

    Returns an order [L] and where in it each launch of the GPU begins. Warps agree on step,
    kernel and layer, and on how often they were there in the step. Without step ids all
    there is is each warp's own running number, which agrees while all SMs record.
    """
    kernel_layer = launches.kernel.astype(np.int64) << KERNEL_SHIFT | launches.layer
    known = launches.step > 0
    number = np.where(known, launches.step, launches.launch) << ARG_BITS | kernel_layer
    key = np.where(known, number, ~number)
    order = np.argsort(key, kind="stable")
    fresh = np.append(True, np.diff(key[order]) != 0)
    turn = fresh | np.append(True, np.diff(launches.ring[order]) != 0)
    first = np.flatnonzero(turn)
    again = np.arange(len(order)) - np.repeat(first, np.diff(first, append=len(order)))
    if again.any():
        by_turn = np.lexsort((again, np.cumsum(fresh)))
        fresh[1:] |= again[by_turn][1:] != again[by_turn][:-1]
        order = order[by_turn]
    return order, np.flatnonzero(fresh)


def launch_numbers(launches: Launches, begin_ns: I8) -> I8:
    """[L] which launch of the GPU each launch of a warp belongs to, from 0 in order of begin."""
    order, first = whole_launches(launches)
    group = np.empty(len(order), np.int64)
    group[order] = np.repeat(np.arange(len(first)), np.diff(first, append=len(order)))
    begin = np.full(len(first), np.iinfo(np.int64).max)
    np.minimum.at(begin, group, begin_ns)
    place = np.empty(len(first), np.int64)
    place[np.argsort(begin, kind="stable")] = np.arange(len(first))
    return place[group]


def _no_launches() -> Launches:
    i4, i8, no = np.zeros(0, np.int32), np.zeros(0, np.int64), np.zeros(0, bool)
    return Launches(i4, i8, i8, i8, i4, i4, i4, no, i8, i8, no, i8, i8, i8)


def _arg(fields: U4, at: int) -> I8:
    return (fields[:, at] & ARG_MASK).astype(np.int64)
