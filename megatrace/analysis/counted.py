"""What the records of a launch say of it as a whole, for a time when they are no longer there."""

from __future__ import annotations

import numpy as np

from megatrace.analysis.lines import I8, Mask
from megatrace.analysis.plan import Piece
from megatrace.analysis.rank import Rank
from megatrace.analysis.words import Records
from megatrace.schema import Kind
from megatrace.schema.traffic import DISTINCT_EXPERTS


class Counted:
    """Of each launch of a warp [L] of one rank, piece by piece.

    Attributes:
        experts: the most that it counted; -1: none.
        in_doubt: its times are uncertain.
    """

    def __init__(self, rank: Rank) -> None:
        """Nothing is known yet of any launch of ``rank``."""
        self.experts: I8 = np.full(len(rank.scan.launches), -1, np.int64)
        self.in_doubt: Mask = np.zeros(len(rank.scan.launches), np.bool_)
        self._unchecked = rank.scan.launches.unchecked
        self._counts = [
            event.id
            for event in rank.lut.events.values()
            if event.name == DISTINCT_EXPERTS and event.kind is Kind.COUNTER
        ]

    def add(self, records: Records, piece: Piece) -> Mask:
        """Keep what ``records`` of a piece say; which of its launches are in doubt."""
        uncertain = records.uncertain | self._unchecked[piece.launches]
        self.in_doubt[piece.launches] = uncertain
        for event in self._counts:
            rows = np.flatnonzero(records.event == event)
            launch = piece.launches[records.launch[rows]]
            np.maximum.at(self.experts, launch, records.arg(rows, 0).astype(np.int64))
        return uncertain
