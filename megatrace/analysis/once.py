"""A capture read once, for its windows and for the report that they add up to."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import numpy as np

from megatrace.analysis.bystep import steps_of
from megatrace.analysis.plan import Piece
from megatrace.analysis.rank import Rank
from megatrace.analysis.report import Report
from megatrace.analysis.summary import Summing
from megatrace.analysis.trace import Trace, load, segments_of, trace_of
from megatrace.analysis.windows import SMALL_LINES, Progress
from megatrace.analysis.words import Records
from megatrace.capture.reader import Capture
from megatrace.schema.layout import RECORDS_PER_LINE


class ReadOnce:
    """Its lines are scanned when it is made, and decoded while :meth:`windows` runs.

    Takes the memory of :func:`megatrace.analysis.summarise` and of one window.
    """

    def __init__(
        self,
        capture: Capture,
        *,
        layers: Collection[int] | None = None,
        small_lines: int = SMALL_LINES,
    ) -> None:
        """Find the launches; of up to ``small_lines`` lines there is one window.

        ``layers`` is for the report. Raises as :func:`megatrace.analysis.summarise`.
        """
        self._capture = capture
        self._loaded = load(capture)
        self._sums = Summing(capture, self._loaded.ranks, layers)
        self._parts = {part.rank.rank: part for part in self._sums.parts}
        self._small = len(capture.line_index()) <= small_lines

    def windows(self, progress: Progress | None = None) -> Iterator[Trace]:
        """As :func:`megatrace.analysis.windows.windows`, lean; run it once, and to its end.

        ``progress`` is told ``(done, total)`` after each.
        """
        for part in self._sums.parts:
            if part.rank.placed is None:  # it is in no trace
                part.run()
        if self._small:
            yield self._whole(launches=True)
            return
        none = True
        words, total = 0, len(self._capture.line_index()) * RECORDS_PER_LINE
        for loaded, chosen, step in steps_of(self._loaded):
            none = False
            host = loaded.host[loaded.host["step"] == step].reset_index(drop=True)
            trace = trace_of(loaded, chosen, host, lean=True, watch=self._add)
            yield trace
            words += int(trace.launches["words"].sum())
            if progress is not None:
                progress(min(words, total), total)
        if none:
            yield self.hosts()

    def hosts(self) -> Trace:
        """What the hosts say of every step, and no launch."""
        return self._whole(launches=False)

    def report(self) -> Report:
        """The report of what :meth:`windows` went through.

        Its prefetches are by window: what one issues for the next has no use.
        """
        return self._sums.report()

    def _whole(self, *, launches: bool) -> Trace:
        ranks = self._loaded.ranks
        every = [np.full(len(r.scan.launches), launches and r.placed is not None) for r in ranks]
        chosen = [segments_of(rank, wanted) for rank, wanted in zip(ranks, every, strict=True)]
        return trace_of(self._loaded, chosen, self._loaded.host, lean=True, watch=self._add)

    def _add(self, rank: Rank, records: Records, piece: Piece) -> None:
        self._parts[rank.rank].add(records, piece)
