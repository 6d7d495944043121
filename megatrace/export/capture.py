"""Of a capture, only what is going to be shown."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import pandas as pd

from megatrace.analysis import Trace, decode
from megatrace.analysis.frames import launch_frame
from megatrace.analysis.numbers import numbers_of
from megatrace.analysis.rank import load_rank
from megatrace.analysis.summary import ranks_of
from megatrace.capture.reader import Capture
from megatrace.export.select import Steps, chosen_steps, one_process, steps_left_out
from megatrace.schema import EventTable


def decode_shown(
    capture: Capture, *, ranks: Collection[int] | None = None, steps: Steps = "one"
) -> tuple[Trace, tuple[str, ...]]:
    """Decode the steps that an export would choose, and say what is left out.

    The same as decoding everything and leaving the choice to the export, without the
    time and memory for records that nobody will see. Give the phrases to
    :func:`megatrace.export.export_perfetto` with ``steps="all"``.

    Raises UsageError for steps the capture does not have, and what
    :func:`megatrace.analysis.decode` raises.
    """
    if steps == "all":
        return decode(capture, ranks=ranks), ()
    parts = _launches(capture, ranks)
    if not parts:
        return decode(capture, ranks=ranks), ()
    launches = pd.concat(parts, ignore_index=True)
    phrases: list[str] = []
    if steps == "one":
        mine, phrases = one_process(numbers_of(launches))
        launches = launches[mine]
        ranks = np.unique(numbers_of(launches)).tolist()
    chosen = chosen_steps(launches, steps)
    left_out = (*phrases, *steps_left_out(launches, chosen))
    return decode(capture, ranks=ranks, steps=chosen), left_out


def steps_recorded(capture: Capture, ranks: Collection[int] | None = None) -> list[int]:
    """Ids of the steps with a timeline, sorted. Raises what decoding raises."""
    return sorted({step for part in _launches(capture, ranks) for step in part["step"].tolist()})


def _launches(capture: Capture, ranks: Collection[int] | None) -> list[pd.DataFrame]:
    """The launches of each rank that can be placed in time, without their records."""
    tables = capture.tables
    parts = []
    for number in ranks_of(capture):
        if ranks is not None and number not in ranks:
            continue
        rank = load_rank(capture, number, tables.get(number, EventTable("unknown", ())))
        if rank.placed is not None:
            rows = np.arange(len(rank.scan.launches))
            parts.append(launch_frame(rank, rows, rank.placed, np.zeros(len(rows), np.bool_)))
    return parts
