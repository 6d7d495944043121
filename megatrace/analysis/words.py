"""From the lines of some launches to records, without a loop over records.

A record's time is a running sum of differences modulo 2**23, each from the END of the
record before: a stall may outlast the time field, its duration has 31 bits. Where the
2**23 values begin follows from who is asking: a warp writes a span or an instant when it
happens, a wait perhaps later. Two things set the sum right: the start of a launch, and an
epoch record.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from megatrace.analysis.lines import (
    CLOSING,
    EPOCH,
    HANG,
    HEADER,
    I4,
    I8,
    U4,
    Mask,
    Rows,
    in_use,
    words_of,
)
from megatrace.analysis.tables import UNKNOWN, Lookup
from megatrace.schema.layout import ARG_MASK, HEADER_WORDS, TIME_BITS, TIME_MASK

_BACK = 1 << 12
"""How far a record may begin before the end of the one written before it."""
_LATE = 1 << (TIME_BITS - 1)
"""The same for a wait, which may be written down late."""
_CARRY = TIME_MASK - (1 << 20)
"""Where the low bits of a time are above this, an epoch just after it may be one on."""
_LAUNCH_SHIFT = 46
"""Above every time: 23 bits of an epoch and the time field."""
_FIRST_ARG_CODE = 256


@dataclass(frozen=True, slots=True)
class Malformed:
    """Words that no record is made of, by reason."""

    unknown_event: int = 0
    wrong_args: int = 0
    cut: int = 0
    """Of records whose arguments went with a lost line."""
    misplaced: int = 0
    """Headers not at the start of a line, and whatever follows a closing."""
    orphan_args: int = 0
    """Arguments whose record went with a lost line."""

    def __add__(self, other: Malformed) -> Malformed:
        return Malformed(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    @property
    def total(self) -> int:
        """All of them."""
        return sum(getattr(self, f.name) for f in fields(self))


@dataclass(frozen=True, slots=True)
class Chunk:
    """The lines of launches [0, L), each launch's in order.

    ``lines`` u4[n, 32]; ``segment_first`` [S] the first line of each segment,
    ``segment_launch`` [S] its launch, ``head`` [S] whether it opens it.
    """

    lines: U4
    segment_first: I8
    segment_launch: I8
    head: Mask
    launches: int


@dataclass(frozen=True, slots=True)
class Records:
    """Records of a chunk in the order of the rings; arrays of length R.

    ``event`` is the code of the word; ``at`` its place in ``words``, arguments follow.
    ``t`` are cycles since launch start of its BEGIN, ``dur`` cycles it blocked.
    ``segment`` tells records with a gap between them apart. Headers, closings, epochs and
    ticks are gone.
    """

    words: U4
    at: Rows
    event: Rows
    launch: Rows
    segment: I4
    t: I8
    dur: I8
    uncertain: Mask
    """[L] The closing's clock disagrees with the sum of the differences."""
    malformed: Malformed

    def of(self, rows: Rows) -> Records:
        """Those at ``rows``, in their order; words, launches and what was malformed stay."""
        return Records(
            self.words, self.at.take(rows), self.event.take(rows), self.launch.take(rows),
            self.segment.take(rows), self.t.take(rows), self.dur.take(rows), self.uncertain,
            self.malformed,
        )  # fmt: skip

    def own(self) -> Records:
        """The kernel's own records and hangs: no header, closing or epoch."""
        return self.of(np.flatnonzero(self.event >= HANG))

    def arg(self, rows: Rows, index: int) -> U4:
        """Argument ``index`` of the records at ``rows``, 31 bits."""
        return self.words.take(self.at.take(rows) + (1 + index)) & np.uint32(ARG_MASK)


def decode_chunk(chunk: Chunk, lut: Lookup, span_clock: I8) -> Records:
    """Decode; never raises, whatever the words are.

    ``span_clock`` [L]: cycles from header to closing (31 bits), -1 where there is none;
    checked against the closing's own time.
    """
    return decode_all(chunk, lut, span_clock).own()


def decode_all(chunk: Chunk, lut: Lookup, span_clock: I8) -> Records:
    """As :func:`decode_chunk`, headers, closings and epochs among the records: without a copy."""
    # Whole numbers of the machine's width are what numpy indexes by, `take` at its fastest.
    words, starts = _dense(chunk)
    is_record = words.view(np.int32) >= 0
    orphans = starts[(starts < len(words)) & ~chunk.head]
    is_record[orphans] = True  # an argument here belongs to no record that is left
    at = np.flatnonzero(is_record)
    found = np.empty_like(at)
    np.subtract(at[1:], at[:-1], out=found[:-1])
    found[-1:] = len(words) - at[-1:]
    found -= 1
    first = words.take(at)
    event = (first >> np.uint32(TIME_BITS)).astype(np.intp)
    segment = np.searchsorted(at, starts)
    size = np.diff(segment, append=len(at))
    segment_of = np.repeat(np.arange(len(starts), dtype=np.int32), size)
    launch = np.repeat(chunk.segment_launch.astype(np.intp), size)

    found[segment[chunk.head]] = HEADER_WORDS - 1  # seen to be whole when it was found
    keep, malformed = _sort_out(event, found, segment_of, segment[chunk.head], lut)
    if not keep.all():
        rows = np.flatnonzero(keep)
        at, event, first = at[rows], event[rows], first[rows]
        segment_of, launch = segment_of[rows], launch[rows]
    times = _times(words, _Marks(at, event, launch, first), span_clock, lut)
    # A silence before the closing is no matter where every record's time is told whole.
    off = np.where(times.told, times.end > span_clock, (times.end - span_clock) & ARG_MASK != 0)
    uncertain = (span_clock >= 0) & off
    return Records(words, at, event, launch, segment_of, times.t, times.dur, uncertain, malformed)


def _dense(chunk: Chunk) -> tuple[U4, I8]:
    """All words in use, one after the other, and where those of each segment begin."""
    used = in_use(chunk.lines)
    before = np.zeros(len(used) + 1, np.int64)
    np.cumsum(words_of(used), out=before[1:])
    return chunk.lines[used], before[chunk.segment_first]


def _sort_out(
    event: Rows, found: I8, segment_of: I4, heads: I8, lut: Lookup
) -> tuple[Mask, Malformed]:
    """Which records are whole and in their place, and the words of the others by reason."""
    expected = lut.args.astype(np.int64).take(event)
    keep = found == expected
    unknown = wrong = cut = orphan = misplaced = 0
    bad = np.flatnonzero(~keep)
    if len(bad):
        size = found[bad] + 1
        stray = event[bad] >= _FIRST_ARG_CODE
        nameless = ~stray & (expected[bad] == UNKNOWN)
        at_end = np.append(segment_of[1:] != segment_of[:-1], True)[bad]
        severed = ~stray & ~nameless & at_end & (found[bad] < expected[bad])
        orphan, unknown, cut = (int(size[m].sum()) for m in (stray, nameless, severed))
        wrong = int(size.sum()) - orphan - unknown - cut
    core = np.flatnonzero(keep & (event <= CLOSING))
    opens = np.zeros(len(event) + 1, bool)
    opens[heads] = True
    odd = core[(event[core] == HEADER) & ~opens[core]]
    keep[odd] = False
    misplaced += len(odd) * HEADER_WORDS
    closings = core[event[core] == CLOSING]
    early = closings[segment_of[np.minimum(closings + 1, len(event) - 1)] == segment_of[closings]]
    early = early[early < len(event) - 1]
    for place in early.tolist():  # damaged data only
        end = int(np.searchsorted(segment_of, segment_of[place], side="right"))
        rest = np.arange(place + 1, end)
        misplaced += int((found[rest] + 1)[keep[rest]].sum())
        keep[rest] = False
    return keep, Malformed(unknown, wrong, cut, misplaced, orphan)


@dataclass(frozen=True, slots=True)
class _Times:
    """Per record its begin and duration; per launch [L] the time of its closing, or -1.

    ``told`` [L]: an epoch follows every record, so that no silence is too long.
    """

    t: I8
    dur: I8
    end: I8
    told: Mask


@dataclass(frozen=True, slots=True)
class _Marks:
    """Record words that are whole, headers and closings too: where, what, of which launch."""

    at: Rows
    event: Rows
    launch: Rows
    word: U4


def _times(words: U4, marks: _Marks, span_clock: I8, lut: Lookup) -> _Times:
    """When each record was, in cycles since launch start."""
    at, event, launch = marks.at, marks.event, marks.launch
    launches = len(span_clock)
    low = (marks.word & np.uint32(TIME_MASK)).view(np.int32)
    dur = np.zeros(len(at), np.int64)
    waits = lut.blocks.take(event)
    blocked = np.flatnonzero(waits)
    told_by = words.take(at.take(blocked) + 1) & np.uint32(ARG_MASK)
    dur[blocked] = told_by.astype(np.int64)
    core = np.flatnonzero(event <= HANG)
    code = event[core]
    hangs = core[code == HANG]
    dur[hangs] = words[at[hangs] + 3] & np.uint32(ARG_MASK)
    low[hangs] = (low[hangs] - dur[hangs]) & TIME_MASK  # its time is the end of the wait so far
    low[core[code == HEADER]] = 0
    epochs = core[code == EPOCH]
    told = np.zeros(launches, bool)
    if not len(epochs):
        t = _running(low, dur, waits, launch)
    else:
        timed = np.ones(len(at), bool)
        timed[epochs] = False
        rows = np.flatnonzero(timed)
        t = np.zeros(len(at), np.int64)
        t[rows] = _running(low[rows], dur[rows], waits[rows], launch[rows])
        before = np.searchsorted(rows, epochs) - 1
        owner = rows[np.maximum(before, 0)]
        ends = at[owner] + lut.args[event[owner]] + 1
        follows = (before >= 0) & (launch[owner] == launch[epochs]) & (ends == at[epochs])
        before, owner, epochs = before[follows], owner[follows], epochs[follows]
        high = (marks.word[epochs] & np.uint32(TIME_MASK)).astype(np.int64)
        late = waits[owner]
        told[launch[owner[~late & (event[owner] != HANG)]]] = True
        last = span_clock[launch[owner]]
        turns = _turns(high, t[owner] + dur[owner], last, launch[owner], late, told)
        t[rows] += _spread_turns(turns, before, launch[rows]) << TIME_BITS
    end = np.full(launches, -1, np.int64)
    closings = core[code == CLOSING]
    end[launch[closings]] = t[closings]
    return _Times(t, dur, end, told)


def _running(low: I4, dur: I8, wait: Mask, launch: Rows) -> I8:
    """Sum the differences, from 0 at the first record (the header) of each launch."""
    if not len(low):
        return np.zeros(0, np.int64)
    apart = low[1:] - low[:-1]
    apart -= dur[:-1].astype(np.int32)  # modulo 2**23 is all that counts
    back = wait[1:] * np.int32(_LATE - _BACK)
    back += np.int32(_BACK)
    apart += back
    apart &= TIME_MASK
    apart -= back
    step = np.empty(len(low), np.int64)
    step[1:] = apart
    step[1:] += dur[:-1]
    first = np.flatnonzero(launch[1:] != launch[:-1]) + 1
    first = np.concatenate([[0], first])
    after = first[first + 1 < len(low)] + 1
    step[after] = low[after]  # nothing is before the start of a launch
    step[first] = 0
    step[first[1:]] = -np.add.reduceat(step, first)[:-1]  # back to 0
    return np.cumsum(step)


def _turns(high: I8, end: I8, last: I8, launch: Rows, late: Mask, told: Mask) -> I8:
    """By how many turns of the time field each record before an epoch is off.

    An epoch is the high part of the time at which that record was written: of its end, or
    where ``late`` (a wait) perhaps of a time after it. Records are written in order, so an
    end is never after what was written later nor after ``last``, the closing; where nothing
    exact follows, an epoch one turn ahead of a time just before the turn is no error.
    """
    exact = high << TIME_BITS | (end & TIME_MASK)
    launch_bits = launch << _LAUNCH_SHIFT
    bound = np.where(late, high << TIME_BITS | TIME_MASK, exact)
    bound = np.where(last >= high << TIME_BITS, np.minimum(bound, last), bound) + launch_bits
    bound = np.minimum.accumulate(bound[::-1])[::-1] - launch_bits
    turns = high - (end >> TIME_BITS)
    turns -= np.where(late, np.maximum(exact - bound + TIME_MASK, 0) >> TIME_BITS, 0)
    near = late & ~told[launch] & ((end & TIME_MASK) > _CARRY)
    for i in np.flatnonzero(near).tolist():
        earlier = turns[i - 1] if i and launch[i] == launch[i - 1] else 0
        turns[i] -= turns[i] == earlier + 1
    return turns


def _spread_turns(turns: I8, row: Rows, launch: Rows) -> I8:
    """A correction holds from its record to that of the next, or to the launch's end."""
    owner = launch[row]
    change = np.zeros(len(launch) + 1, np.int64)
    earlier = np.zeros(len(turns), np.int64)
    earlier[1:] = np.where(owner[1:] == owner[:-1], turns[:-1], 0)
    np.add.at(change, row, turns - earlier)
    final = np.append(owner[1:] != owner[:-1], True) if len(owner) else np.zeros(0, bool)
    np.add.at(change, np.searchsorted(launch, owner[final], side="right"), -turns[final])
    return np.cumsum(change[:-1])
