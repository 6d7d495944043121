"""From the lines of some launches to records, without a loop over records.

A record's time is a running sum of differences modulo 2**23, each from the END of the
record before: a stall may outlast the time field, its duration has 31 bits. A difference
may be negative, for a wait that was written down late. Two things set the sum right: the
start of a launch, and an epoch record.
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
    TICK,
    U4,
    Mask,
    Rows,
    payload,
)
from megatrace.analysis.tables import UNKNOWN, Lookup
from megatrace.schema.layout import ARG_MASK, HEADER_WORDS, TIME_BITS, TIME_MASK

_BACK = 3 << (TIME_BITS - 3)
"""How far a record may begin before the end of the one written before it. A wait that is
written down late goes back by its duration; from 2**21 on an epoch follows and corrects."""
_CARRY = TIME_MASK - (1 << 20)
"""Where the low bits of a time are above this, an epoch just after it may be one on."""
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
    at: I4
    event: Rows
    launch: I4
    segment: I4
    t: I8
    dur: I8
    uncertain: Mask
    """[L] The closing's clock disagrees with the sum of the differences."""
    malformed: Malformed

    def arg(self, rows: Rows, index: int) -> U4:
        """Argument ``index`` of the records at ``rows``, 31 bits."""
        return self.words[self.at[rows] + (1 + index)] & np.uint32(ARG_MASK)


def decode_chunk(chunk: Chunk, lut: Lookup, span_clock: I8) -> Records:
    """Decode; never raises, whatever the words are.

    ``span_clock`` [L]: cycles from header to closing (31 bits), -1 where there is none;
    checked against the closing's own time.
    """
    dense = payload(chunk.lines)
    used = np.count_nonzero(dense, axis=1)
    words_before = np.zeros(len(used) + 1, np.int64)
    np.cumsum(used, out=words_before[1:])
    flat = dense.ravel()
    words = flat[flat != 0]
    starts = words_before[chunk.segment_first]

    is_record = words.view(np.int32) >= 0
    orphans = starts[(starts < len(words)) & ~chunk.head]
    is_record[orphans] = True  # an argument here belongs to no record that is left
    at = np.flatnonzero(is_record).astype(np.int32)
    found = np.diff(at, append=np.int32(len(words))) - np.int32(1)
    event = (words[at] >> np.uint32(TIME_BITS)).astype(np.intp)
    segment = np.searchsorted(at, starts).astype(np.int64)
    segment_of = _spread(segment, len(at))

    found[segment[chunk.head]] = HEADER_WORDS - 1  # seen to be whole when it was found
    keep, malformed = _sort_out(event, found, segment_of, segment[chunk.head], lut)
    if not keep.all():
        at, event, segment_of = at[keep], event[keep], segment_of[keep]
    launch = chunk.segment_launch.astype(np.int32)[segment_of]
    t, dur, end_time = _times(words, at, event, launch, chunk.launches, lut)
    uncertain = (span_clock >= 0) & (((end_time - span_clock) & ARG_MASK) != 0)
    user = event > TICK
    user |= event == HANG
    rows = np.flatnonzero(user)
    return Records(
        words, at[rows], event[rows], launch[rows], segment_of[rows].astype(np.int32),
        t[rows], dur[rows], uncertain, malformed,
    )  # fmt: skip


def _spread(first: I8, count: int) -> I8:
    """For each of ``count`` places, the last of ``first`` (sorted) at or before it."""
    lengths = np.diff(first, append=count)
    return np.repeat(np.arange(len(first)), lengths)


def _sort_out(
    event: Rows, found: I4, segment_of: I8, heads: I8, lut: Lookup
) -> tuple[Mask, Malformed]:
    """Which records are whole and in their place, and the words of the others by reason."""
    expected = lut.args[event]
    keep = found == expected
    unknown = wrong = cut = orphan = misplaced = 0
    bad = np.flatnonzero(~keep)
    if len(bad):
        size = found[bad].astype(np.int64) + 1
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


def _times(
    words: U4, at: I4, event: Rows, launch: I4, launches: int, lut: Lookup
) -> tuple[I8, I8, I8]:
    """Begin (cycles since launch start) and duration of each record; [L] time of the closing."""
    low = (words[at] & np.uint32(TIME_MASK)).astype(np.int32)
    dur = np.zeros(len(at), np.int64)
    blocked = np.flatnonzero(lut.blocks[event])
    dur[blocked] = words[at[blocked] + 1] & np.uint32(ARG_MASK)
    core = np.flatnonzero(event <= TICK)
    code = event[core]
    hangs = core[code == HANG]
    dur[hangs] = words[at[hangs] + 3] & np.uint32(ARG_MASK)
    low[hangs] = (low[hangs] - dur[hangs]) & TIME_MASK  # its time is the end of the wait so far
    low[core[code == HEADER]] = 0
    epochs = core[code == EPOCH]
    timeless = core[(code == EPOCH) | (code == TICK)]
    if len(timeless):
        t = _with_epochs(low, dur, launch, words[at[epochs]] & TIME_MASK, epochs, timeless)
    else:
        t = _running(low, dur, launch)
    end_time = np.full(launches, -1, np.int64)
    closings = core[code == CLOSING]
    end_time[launch[closings]] = t[closings]
    return t, dur, end_time


def _running(low: I4, dur: I8, launch: I4) -> I8:
    """Sum the differences, from 0 at the first record (the header) of each launch."""
    if not len(low):
        return np.zeros(0, np.int64)
    step = np.empty(len(low), np.int64)
    step[0] = 0
    apart = low[1:] - low[:-1]
    apart -= dur[:-1].astype(np.int32)  # modulo 2**23 is all that counts
    apart += _BACK
    apart &= TIME_MASK
    apart -= _BACK
    np.add(apart, dur[:-1], out=step[1:])
    first = np.flatnonzero(launch[1:] != launch[:-1]) + 1
    first = np.concatenate([[0], first])
    after = first[first + 1 < len(low)] + 1
    step[after] = low[after]  # nothing is before the start of a launch
    step[first] = 0
    t = np.cumsum(step)
    t -= np.repeat(t[first], np.diff(first, append=len(low)))
    return t


def _with_epochs(low: I4, dur: I8, launch: I4, high: U4, epochs: Rows, timeless: Rows) -> I8:
    """The same where epochs say the high part at the end of the record before them."""
    timed = np.ones(len(low), bool)
    timed[timeless] = False
    rows = np.flatnonzero(timed)
    t = np.zeros(len(low), np.int64)
    t[rows] = _running(low[rows], dur[rows], launch[rows])
    before = np.searchsorted(rows, epochs) - 1
    has = (before >= 0) & (launch[rows[before]] == launch[epochs])
    before, high = before[has], high[has]
    owner = launch[rows[before]]
    end = t[rows[before]] + dur[rows[before]]
    turns = high.astype(np.int64) - (end >> TIME_BITS)
    for i in np.flatnonzero((end & TIME_MASK) > _CARRY).tolist():
        earlier = turns[i - 1] if i and owner[i] == owner[i - 1] else 0
        turns[i] -= turns[i] == earlier + 1
    # A correction starts at the record before its epoch, ends at the next or the launch's end.
    change = np.zeros(len(rows) + 1, np.int64)
    again = np.zeros(len(turns), np.int64)
    again[1:] = np.where(owner[1:] == owner[:-1], turns[:-1], 0)
    np.add.at(change, before, turns - again)
    final = np.append(owner[1:] != owner[:-1], True) if len(owner) else np.zeros(0, bool)
    np.add.at(change, np.searchsorted(launch[rows], owner[final], side="right"), -turns[final])
    t[rows] += np.cumsum(change[:-1]) << TIME_BITS
    return t
