"""Moves lines out of a live ring: what is new, intact and not yet taken, and no more.

The writer never waits, so every line is checked: both of its numbers are right before
it is copied and still right after. A half is one store of 64 bytes, so a number that
stands for the whole copy vouches for its words. Numbers only grow, so a place that
changed is lost for good and is counted. By construction, for every ring,

    lines handed on + lines lost + lines still awaited = lines numbered so far

The check, the copy and the second check each cover a whole window of lines, thousands
of instructions apart, so that no processor reorders the loads of one line.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from megatrace.ring.file import RingFile
from megatrace.ring.records import CounterReader, HostReader
from megatrace.schema.events import CORE
from megatrace.schema.layout import ARG_BIT, CLOSING_WORDS, HALF_WORDS, LINE_WORDS, TIME_BITS

__all__ = ["CounterReader", "Drained", "HostReader", "LineReader", "LineStats"]

MAX_LINES = 1 << 16
FIRST_WINDOW = 8
CHUNK_LINES = 1 << 12
"""Lines a turn of the loop: source and copy together stay in a second-level cache."""
PATIENCE_NS = 10_000_000
"""How long a missing line or half may stay behind its successors before it is given up."""
MAX_HOLES = 1 << 14

_CLOSING = next(event.id for event in CORE if event.name == "closing")

Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]
Words = NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class Drained:
    """Lines handed on: ``ring`` u4 ``(n,)`` and ``lines`` u4 ``(n, 32)``, the caller's own.

    Lines of one ring come in the order of their numbers, late ones apart. The second
    half of a half line is zero.
    """

    ring: Words
    lines: Words

    def __len__(self) -> int:
        """Number of lines."""
        return int(self.ring.size)


@dataclass(frozen=True, slots=True)
class LineStats:
    """Exact counts, in lines.

    Attributes:
        read: handed on.
        lost: overwritten before they could be handed on, or never arrived.
        torn: of the lost, those that changed while they were looked at.
        late: of the read, those that came after a later line of their ring.
    """

    read: int = 0
    lost: int = 0
    torn: int = 0
    late: int = 0


class LineReader:
    """Drains one ring file; all state is the reader's, so any number may read one file.

    Attributes:
        read_per_ring: i8 ``(rings,)``, lines handed on.
        lost_per_ring: i8 ``(rings,)``, lines lost.
    """

    def __init__(self, ring: RingFile, *, first: int = 1, patience_ns: int = PATIENCE_NS) -> None:
        """Begin at line number ``first`` of every ring; what is gone by then is lost."""
        self._patience_ns = patience_ns
        rings, self._capacity = ring.rings, int(ring.header["lines"])
        self._lines = ring.lines.reshape(-1, LINE_WORDS)
        self._words = ring.lines.reshape(-1)
        self._rings = np.arange(rings, dtype=np.int64)
        self._next = np.full(rings, first, np.int64)
        self._stuck_since_ns = np.zeros(rings, np.int64)
        self._stuck_at = np.full(rings, -1, np.int64)
        self._half_allowed = np.full(rings, -1, np.int64)
        self._resynced_at = np.full(rings, -(1 << 62), np.int64)
        self._hole_ring = np.zeros(0, np.int64)
        self._hole_number = np.zeros(0, np.int64)
        self.read_per_ring = np.zeros(rings, np.int64)
        self.lost_per_ring = np.zeros(rings, np.int64)
        self._torn = 0
        self._late = 0
        self._turn = 0

    @property
    def stats(self) -> LineStats:
        """Totals over all rings."""
        read, lost = int(self.read_per_ring.sum()), int(self.lost_per_ring.sum())
        return LineStats(read, lost, self._torn, self._late)

    def drain(self, max_lines: int = MAX_LINES, *, final: bool = False) -> Drained:
        """Take up to ``max_lines`` new lines; call again until none come.

        ``final`` says that the writer has stopped: nothing is waited for any more, and
        a line that is missing before a later one is lost.
        """
        out = _Output(max(1, max_lines))
        if self._words.size:
            self._take_late(out, final=final)
            self._take_all(self._ready(final=final), out)
            while final and out.room and self._skip_gaps():
                self._take_all(self._ready(final=final), out)
        return out.result()

    def release(self) -> None:
        """Look at the ring no more, so that it can be unmapped; the counts stay."""
        self._words = np.zeros(0, np.uint32)
        self._lines = self._words.reshape(0, LINE_WORDS)

    def _take_all(self, ready: Ints, out: _Output) -> None:
        """Empty the rings of ``ready``, with windows that widen for those that are far behind."""
        self._turn = (self._turn + 1) % max(1, ready.size)
        ready = np.roll(ready, -self._turn)  # no ring is always served last
        window = min(FIRST_WINDOW, self._capacity)
        while ready.size and out.room:
            full = []
            at = 0
            while at < ready.size and out.room:
                width = min(window, out.room)
                group = ready[at : at + max(1, min(CHUNK_LINES, out.room) // width)]
                full.append(group[self._take(group, width, out) == width])
                at += group.size
            ready = np.concatenate(full)
            window = min(window * 4, self._capacity, CHUNK_LINES)

    def _take(self, group: Ints, window: int, out: _Output) -> Ints:
        """Hand on the unbroken run, at most ``window`` lines, at the head of each ring."""
        numbers = self._next[group, None] + np.arange(window)
        places = self._places(group[:, None], numbers)
        want = numbers.astype(np.uint32)
        begun = self._number_at(places) == want
        whole = begun & (self._number_at(places, HALF_WORDS) == want)
        good = whole
        if not np.array_equal(begun, whole):
            allowed = numbers == self._half_allowed[group, None]
            good = whole | self._halves(places, want, begun & ~whole, allowed)
        counts = np.where(good.all(axis=1), window, good.argmin(axis=1))
        run = np.arange(window) < counts[:, None]
        rows = np.repeat(group, counts)
        kept = self._copy(rows, places[run], want[run], ~whole[run], out)
        self._next[group] += counts
        self.read_per_ring[group] += counts
        if not kept.all():
            gone = np.bincount(rows[~kept], minlength=self._next.size)
            self.read_per_ring -= gone
            self._lose(self._rings, gone, torn=int(gone.sum()))
        return counts

    def _copy(self, rings: Ints, places: Ints, want: Words, half: Flags, out: _Output) -> Flags:
        """Copy lines that have passed the first check; True where they pass the second."""
        block = out.block(places.size)
        self._lines.take(places, axis=0, out=block, mode="clip")
        kept: Flags = self._number_at(places) == want
        if half.any():
            block[half, HALF_WORDS:] = 0
            kept &= half | (self._number_at(places, HALF_WORDS) == want)
        else:
            kept &= self._number_at(places, HALF_WORDS) == want
        out.keep(rings, kept)
        return kept

    def _places(self, rings: Ints | np.int64, numbers: Ints) -> Ints:
        return rings * self._capacity + ((numbers - 1) & (self._capacity - 1))

    def _number_at(self, places: Ints, word: int = 0) -> Words:
        return self._words.take(places * LINE_WORDS + word, mode="clip")

    def _halves(self, places: Ints, want: Words, candidates: Flags, allowed: Flags) -> Flags:
        """Which of ``candidates`` are lines whose first half is all there ever will be."""
        halves = np.zeros_like(candidates)
        at = np.nonzero(candidates)
        first = places[at][:, None] * LINE_WORDS + np.arange(HALF_WORDS - CLOSING_WORDS, HALF_WORDS)
        last = self._words.take(first, mode="clip")
        complete = last[:, -1] == 0  # words fill a line in order: none follow
        complete |= (last[:, 0] >> TIME_BITS == _CLOSING) & (last[:, 1:] >= ARG_BIT).all(axis=1)
        older = _ahead(self._number_at(places[at], HALF_WORDS), want[at]) < 0
        halves[at] = complete | (allowed[at] & older)
        return halves

    def _ready(self, *, final: bool) -> Ints:
        """Rings whose next line can be tried, once losses and gaps are settled."""
        rings = self._rings
        self._pass_overwritten()
        places, want = self._places(rings, self._next), self._next.astype(np.uint32)
        begun = self._number_at(places) == want
        part = begun & (self._number_at(places, HALF_WORDS) != want)
        if part.any():
            part &= ~self._halves(places, want, part, np.zeros_like(part))
        if final:
            self._half_allowed = self._next.copy()
            return rings
        follower = self._number_at(self._places(rings, self._next + 1)) == want + np.uint32(1)
        stuck = part | (~begun & follower)
        if stuck.any() or self._stuck_since_ns.any():
            tired = self._out_of_patience(stuck)
            self._half_allowed[tired & part] = self._next[tired & part]
            self._leave_hole(rings[tired & ~begun])
            begun |= tired
        ready: Ints = rings[begun]
        return ready

    def _pass_overwritten(self) -> None:
        """Step over lines that a later lap has overwritten, wholly or by half."""
        places, want = self._places(self._rings, self._next), self._next.astype(np.uint32)
        lead = self._lead(places, want)
        if (lead > 0).any():
            over = self._rings[lead > 0]
            self._skip_overwritten(over, lead[over])
        half_gone = (lead == 0) & (self._number_at(places, HALF_WORDS) != want)
        if half_gone.any():
            half_gone &= self._lead(places, want, HALF_WORDS) > 0
            half_gone &= ~self._halves(places, want, half_gone, np.zeros_like(half_gone))
            self._next[half_gone] += 1
            self._lose(self._rings[half_gone], np.int64(1), torn=int(half_gone.sum()))

    def _lead(self, places: Ints, want: Words, word: int = 0) -> Ints:
        """How many lines the number at ``places`` is ahead of ``want``; < 0: older, or damaged."""
        found = self._number_at(places, word)
        ahead = _ahead(found, want)
        other_place = (ahead & (self._capacity - 1)) != 0
        never = (found == 0) & (want <= self._capacity)  # later it is the line after 2**32 - 1
        ahead[(ahead > 0) & (other_place | never)] = -1
        return ahead

    def _out_of_patience(self, stuck: Flags) -> Flags:
        now = time.monotonic_ns()
        fresh = stuck & ((self._stuck_since_ns == 0) | (self._stuck_at != self._next))
        self._stuck_since_ns[~stuck] = 0
        self._stuck_since_ns[fresh] = now
        self._stuck_at[fresh] = self._next[fresh]
        return stuck & (now - self._stuck_since_ns >= self._patience_ns)

    def _skip_overwritten(self, rings: Ints, ahead: Ints) -> None:
        """Go to the oldest line that survives in rings whose writer has lapped this reader."""
        number = self._next[rings]
        step = self._capacity // 2
        past = np.zeros(rings.size, np.int64)
        while step:  # the newest line is where one lap of numbers ends and an older begins
            probe = number + past + step
            same_lap = self._number_at(self._places(rings, probe)) == (probe + ahead).astype("u4")
            past[same_lap] += step
            step //= 2
        target = number + ahead + past - self._capacity + 1
        # Lapped again so soon, the writer is faster: start out of its reach.
        hurried = target - self._resynced_at[rings] < 2 * self._capacity
        target[hurried] += self._capacity // 4
        self._lose(rings, target - number)
        self._next[rings] = self._resynced_at[rings] = target

    def _skip_gaps(self) -> bool:
        """Nothing more comes: pass what is missing before lines that are there; True if any was."""
        heads = self._places(self._rings, self._next)
        missing = self._number_at(heads) != self._next.astype(np.uint32)
        passed = False
        step = np.arange(self._capacity)
        for ring in self._rings[missing]:
            numbers = self._next[ring] + step
            ahead = (
                _ahead(self._number_at(self._places(ring, numbers)), numbers.astype("u4")) + step
            )
            # In a sound ring no place is further ahead; damage must not send us round the clock.
            later = ahead[
                (ahead > 0) & (ahead < 2 * self._capacity) & (ahead % self._capacity == step)
            ]
            if later.size:
                self._next[ring] += later.min()
                self.lost_per_ring[ring] += later.min()
                passed = True
        return passed

    def _leave_hole(self, rings: Ints) -> None:
        """Pass a line that has not come, and look for it again at each drain."""
        room = max(0, MAX_HOLES - self._hole_ring.size)
        self._lose(rings[room:], np.int64(1))
        self._hole_ring = np.concatenate((self._hole_ring, rings[:room]))
        self._hole_number = np.concatenate((self._hole_number, self._next[rings[:room]]))
        self._next[rings] += 1

    def _take_late(self, out: _Output, *, final: bool) -> None:
        if not self._hole_ring.size:
            return
        rings, numbers = self._hole_ring[: out.room], self._hole_number[: out.room]
        places, want = self._places(rings, numbers), numbers.astype(np.uint32)
        ahead = self._lead(places, want)
        whole = (ahead == 0) & (self._number_at(places, HALF_WORDS) == want)
        half = (ahead == 0) & ~whole
        half = self._halves(places, want, half, np.full(half.shape, final))
        here = whole | half
        kept = self._copy(rings[here], places[here], want[here], half[here], out)
        np.add.at(self.read_per_ring, rings[here][kept], 1)
        self._late += int(kept.sum())
        self._lose(rings[here][~kept], np.int64(1), torn=int((~kept).sum()))
        gone = ~here & ((ahead > 0) | final)
        self._lose(rings[gone], np.int64(1))
        still = ~here & ~gone
        self._hole_ring = np.concatenate((rings[still], self._hole_ring[rings.size :]))
        self._hole_number = np.concatenate((numbers[still], self._hole_number[rings.size :]))

    def _lose(self, rings: Ints, lines: Ints | np.int64, *, torn: int = 0) -> None:
        np.add.at(self.lost_per_ring, rings, lines)
        self._torn += torn


def _ahead(found: Words, want: Words) -> Ints:
    """``found - want`` as running numbers: across the wrap of 32 bits, with its sign."""
    ahead: Ints = (found - want).view(np.int32).astype(np.int64)
    return ahead


class _Output:
    """Room for a drain's lines; ``block`` hands out the next rows, ``keep`` those that hold."""

    def __init__(self, room: int) -> None:
        self.room = room
        self._ring = np.empty(room, np.uint32)
        self._lines = np.empty((room, LINE_WORDS), np.uint32)
        self._used = 0

    def block(self, rows: int) -> Words:
        return self._lines[self._used : self._used + rows]

    def keep(self, rings: Ints, kept: Flags) -> None:
        begin, rows = self._used, int(np.count_nonzero(kept))
        if rows != kept.size:
            self._lines[begin : begin + rows] = self._lines[begin : begin + kept.size][kept]
            rings = rings[kept]
        self._ring[begin : begin + rows] = rings
        self._used += rows
        self.room -= rows

    def result(self) -> Drained:
        ring, lines = self._ring[: self._used], self._lines[: self._used]
        if self._used < len(self._lines) // 2:  # do not pin the whole room for a few lines
            ring, lines = ring.copy(), lines.copy()
        return Drained(ring, lines)
