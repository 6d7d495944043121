from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from megatrace.capture.writer import CaptureWriter
from megatrace.schema.events import EventTable
from megatrace.schema.layout import COUNTERS, HOST_RECORD

TABLE = EventTable("none", ())


def lines_of(rank: int, ring: int, numbers: range) -> np.ndarray:
    """Lines whose every word says where it is from."""
    lines = np.full((len(numbers), 32), rank << 24 | ring << 16, np.uint32)
    lines += np.array(numbers, np.uint32)[:, None]
    lines[:, 0] = lines[:, 16] = numbers
    return lines


def write_small(writer: CaptureWriter) -> None:
    """Two ranks, a few lines, counters and host records."""
    writer.write_meta("capture", command=["serve"], started=1.5)
    for rank in (0, 1):
        writer.write_meta(
            "ring",
            rank,
            name=f"rank{rank}",
            blocks=2,
            warps=2,
            lines=8,
            layers=1,
            roles=["load", "math"],
            table=TABLE.to_json(),
        )
    for rank, ring, numbers in ((0, 3, range(1, 5)), (1, 0, range(1, 3)), (0, 3, range(5, 6))):
        lines = lines_of(rank, ring, numbers)
        writer.write_lines(rank, np.full(len(lines), ring, np.uint32), lines, 1000 + ring)
        writer.flush()
    sums = np.zeros(2, COUNTERS)
    sums["seq"] = sums["cycles"][:, 0] = [5, 6]
    writer.write_counters(1, np.array([2, 3], np.uint32), sums, 2000)
    records = np.zeros(2, HOST_RECORD)
    records["number"], records["step"] = [1, 2], [70, 71]
    writer.write_host(0, records)
    writer.write_meta("loss", 0, name="rank0", lost=7, rings={"3": 5, "1": 2})


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """The smallest complete capture with lines: two of them."""
    writer = CaptureWriter(tmp_path / "tiny.mtr")
    writer.write_lines(1, np.full(2, 3, np.uint32), lines_of(1, 3, range(1, 3)), 1000)
    return writer.finish()


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A small, complete capture."""
    writer = CaptureWriter(tmp_path / "small.mtr")
    write_small(writer)
    return writer.finish(note="all")
