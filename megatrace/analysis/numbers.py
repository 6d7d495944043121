"""Columns ``rank`` and ``process`` of a frame, and the number and the text that both are.

See :mod:`megatrace.schema.processes`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from megatrace.analysis.lines import I8
from megatrace.schema.processes import PROCESSES_APART, label

BOTH = ["rank", "process"]


def rank_columns(number: int, rows: int) -> dict[str, NDArray[np.uint16]]:
    """``rank`` and ``process`` of ``rows`` rows that are all of ``number``."""
    process, rank = divmod(number, PROCESSES_APART)
    return {
        "rank": np.full(rows, rank, np.uint16),
        "process": np.full(rows, process + 1, np.uint16),
    }


def numbers_of(frame: pd.DataFrame) -> I8:
    """[n] the number of each row: what clocks, tables and devices of a trace are keyed by."""
    process = frame["process"].to_numpy().astype(np.int64)
    numbers: I8 = PROCESSES_APART * (process - 1) + frame["rank"].to_numpy().astype(np.int64)
    return numbers


def with_labels(frame: pd.DataFrame) -> pd.DataFrame:
    """``frame`` for people: ``rank`` is ``0#2``, and there is no ``process``."""
    if "process" not in frame:
        return frame
    told: dict[str, Any] = {
        name: [_label(*of) for of in zip(frame[name], frame["process"], strict=True)]
        for name in ("rank", "from_rank")
        if name in frame
    }
    return frame.assign(**told).drop(columns="process")


def _label(rank: int, process: int) -> str:
    return label(int(rank), int(process)) if rank >= 0 else str(rank)
