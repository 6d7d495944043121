"""What of a warp's words is missing: lines exactly, words exactly once a count survives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from megatrace.schema.layout import ARG_MASK, RECORDS_PER_LINE

if TYPE_CHECKING:
    from megatrace.analysis.launches import Segments
    from megatrace.analysis.lines import I8


@dataclass(frozen=True, slots=True)
class RingLoss:
    """Arrays of length R, one place a ring.

    ``lines_missing`` counts holes before the last captured line; what a recorder lost
    after that only the capture's own loss rows know. ``words_lost`` is exact: the running
    count of the last header or closing less the words seen by then. Words lost after
    that are unknown, at most ``words_unknown_max``.
    """

    lines_seen: I8
    lines_missing: I8
    lines_torn: I8
    lines_repeated: I8
    words_seen: I8
    words_lost: I8
    words_unknown_max: I8
    words_orphaned: I8
    """Of the words seen: those that no surviving header places in time."""
    tail_words_max: I8
    """What a warp that never closed its last launch may not have flushed: a line's words."""


@dataclass(frozen=True, slots=True)
class LossRow:
    """What is missing of one rank.

    Lines are exact. ``words_lost`` is exact; of further words only ``words_unknown_max``
    is known, that no more are missing. A record is one word and one for each argument.
    ``orphaned`` words survive but their launch header does not; ``malformed`` words make
    no record, ``malformed_by`` says why. ``launches_cut`` have a header and no closing;
    where none follows, the kernel may have been killed and up to a line's words of each
    warp never left it: ``tail_words_at_most``. A launch cut in its first line leaves nothing.
    """

    rank: int
    process: int
    lines_seen: int
    lines_lost: int
    lines_torn: int
    words_seen: int
    words_lost: int
    words_unknown_max: int
    orphaned: int
    malformed: int
    malformed_by: dict[str, int]
    launches_cut: int
    launches_time_uncertain: int
    launches_lost: int = 0
    """Launches of warps without a header, known by the numbers of those that have one."""
    tail_words_at_most: int = 0
    never_closed: tuple[str, ...] = ()
    """Roles none of whose launches has a closing, though others follow on the same warps: no
    kernel was killed in them, so they do not call ``t.end()``, and no time of theirs is known."""


@dataclass(frozen=True, slots=True)
class LossTable:
    """The loss of all ranks.

    Of a capture that is not ``complete`` the recorder's own count is missing: what is
    lost is at least what the rows say.
    """

    rows: tuple[LossRow, ...]
    complete: bool = True
    host_records_lost: int = 0
    lines_known: bool = False
    """Of an incomplete capture: its lines lost are all counted, as ``recover`` does."""

    @property
    def lines_lost(self) -> int:
        """Lines lost, over all ranks."""
        return sum(row.lines_lost for row in self.rows)

    @property
    def launches_cut(self) -> int:
        """Launches of warps without a closing, over all ranks."""
        return sum(row.launches_cut for row in self.rows)

    @property
    def tail_words_at_most(self) -> int:
        """Words that killed kernels may not have flushed, over all ranks."""
        return sum(row.tail_words_at_most for row in self.rows)

    @property
    def any(self) -> bool:
        """Whether anything at all is missing or unreadable, the tails of cut launches too."""
        return self._beyond_tails or any(row.launches_cut for row in self.rows)

    @property
    def never_closed(self) -> tuple[str, ...]:
        """Roles that never close a launch, of any rank."""
        return tuple(sorted({role for row in self.rows for role in row.never_closed}))

    @property
    def _beyond_tails(self) -> bool:
        return bool(self.host_records_lost) or any(
            row.lines_lost or row.words_lost or row.orphaned or row.malformed or row.launches_lost
            for row in self.rows
        )

    def sentence(self) -> str:
        """One line for titles: what is missing, and how well that is known."""
        if not self.any:
            if self.complete:
                return "nothing lost"
            return "0 lines lost, else unknown" if self.lines_known else "unknown"
        cut = ""
        if self.launches_cut:
            plural = "" if self.launches_cut == 1 else "es"
            cut = f"{self.launches_cut:,} warp launch{plural} cut"
        unclosed = ""
        if self.never_closed:
            unclosed = f"; role {', '.join(self.never_closed)} never closes: without t.end()?"
        if not self._beyond_tails:
            known = "nothing lost but" if self.complete else "at least"
            of_each = f"(up to {RECORDS_PER_LINE} words each)"
            return f"{known} the unknown tail of {cut} {of_each}{unclosed}"
        parts = self._losses()
        if cut:
            tail = self.tail_words_at_most
            parts.append(cut + (f" (unknown tail of up to {tail:,} words)" if tail else ""))
        return ("" if self.complete else "at least ") + ", ".join(parts) + unclosed

    def _losses(self) -> list[str]:
        seen = sum(row.lines_seen for row in self.rows)
        lost = self.lines_lost
        words = sum(row.words_lost for row in self.rows)
        unknown = sum(row.words_unknown_max for row in self.rows)
        parts = []
        if self.rows:
            parts = [f"{lost:,} of {lost + seen:,} lines lost", f"{words:,} words lost"]
        if unknown:
            parts[1] += f" and up to {unknown:,} more"
        if orphaned := sum(row.orphaned for row in self.rows):
            parts.append(f"{orphaned:,} words without a launch")
        if malformed := sum(row.malformed for row in self.rows):
            parts.append(f"{malformed:,} malformed")
        if launches := sum(row.launches_lost for row in self.rows):
            parts.append(f"{launches:,} launches lost")
        if self.host_records_lost:
            parts.append(f"{self.host_records_lost:,} host records lost")
        return parts


def account(
    *,
    rings: int,
    seen: I8,
    torn: I8,
    repeated: I8,
    segments: Segments,
    seg_words: I8,
    words_before: I8,
    words_after: I8,
    joined: bool = False,
) -> RingLoss:
    """Balance words written against words seen.

    ``words_before`` [S] is the count a segment's header carries, ``words_after`` [S] the
    count of the closing at its end; -1 where there is none. ``joined``: a ring's first
    header says what was written before the capture began.
    """
    ring = segments.ring
    total = np.bincount(ring, seg_words, rings).astype(np.int64)
    missing = np.bincount(ring, segments.gap_lines, rings).astype(np.int64)
    orphaned = np.bincount(ring, np.where(segments.launch < 0, seg_words, 0), rings)
    lost = np.zeros(rings, np.int64)
    unknown = RECORDS_PER_LINE * missing
    anchored = np.flatnonzero((words_before >= 0) | (words_after >= 0))
    if len(anchored):
        final = np.full(rings, -1)
        final[ring[anchored]] = anchored  # the last one wins
        has = np.flatnonzero(final >= 0)
        at = final[has]
        by_close = words_after[at] >= 0
        running = np.cumsum(seg_words)
        gone = np.cumsum(segments.gap_lines)
        start = np.searchsorted(ring, has)
        until = np.where(by_close, running[at], running[at] - seg_words[at])
        until -= running[start] - seg_words[start]
        written = np.where(by_close, words_after[at], words_before[at])
        if joined:
            written = (written - np.maximum(words_before[start], 0)) & ARG_MASK
        lost[has] = (written - until) & ARG_MASK
        lost[has[written < until]] = 0  # a damaged count
        after = gone[at] - gone[start] + segments.gap_lines[start]
        unknown[has] = RECORDS_PER_LINE * (missing[has] - after)
    closed = np.ones(rings, bool)
    closed[ring] = words_after >= 0  # the last segment of a ring wins
    return RingLoss(
        seen, missing, torn, repeated, total, lost, unknown, orphaned.astype(np.int64),
        np.where(closed, 0, RECORDS_PER_LINE),
    )  # fmt: skip
