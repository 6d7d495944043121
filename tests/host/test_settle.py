"""A warp that settles before its last wait loses nothing, whatever comes after."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from megatrace.analysis.launches import Scan, scan
from megatrace.analysis.lines import ArrayLines
from megatrace.jit import HOST, Kernel, build, load
from megatrace.schema import Cause, Event, EventTable, Kind
from megatrace.schema.layout import (
    CLOSING_WORDS,
    COUNT_BITS,
    HEADER_WORDS,
    LEVEL_COUNTERS,
    LEVEL_OFF,
    LEVEL_TIMELINE,
    LINE_WORDS,
)

TABLE = EventTable(
    "settle",
    (
        Event(16, "work", Kind.SPAN, "Around the last wait."),
        Event(18, "full", Kind.STALL, "Not there.", cause=Cause.DATA),
        Event(19, "mark", Kind.INSTANT, "Something."),
    ),
)
SOURCE = Path(__file__).parents[1] / "kernels" / "settle.cu"
RING_LINES = 4096
Plan = tuple[int, int, int, int]
PLANS: list[Plan] = [*product((0, 1, 2, 5, 6, 11, 12), range(5), (0, 1), (0, 1, 6, 14))]
"""Instants before, how it settles, does the last wait block, instants after."""


@dataclass(frozen=True, slots=True)
class Left:
    """What the launches left behind."""

    lines: np.ndarray
    cursor: np.ndarray
    sums: np.ndarray

    def scan(self) -> Scan:
        written = self.lines[self.lines[:, 0] != 0]
        return scan(ArrayLines(np.zeros(len(written), np.uint32), written), capacity=RING_LINES)


@pytest.fixture(scope="module")
def library() -> ctypes.CDLL:
    library = load(build(Kernel(SOURCE, (TABLE,)), HOST), TABLE)
    library.megatrace_last_error.restype = ctypes.c_char_p
    return library


def run(library: ctypes.CDLL, plans: list[Plan], level: int, counters: int = 0) -> Left:
    left = Left(
        np.zeros((RING_LINES, LINE_WORDS), np.uint32),
        np.zeros(4, np.uint32),
        np.zeros(4, np.uint64),
    )
    rows = np.array(plans, np.uint32)
    out = [ctypes.c_void_p(a.ctypes.data) for a in (left.lines, left.cursor, left.sums)]
    failed = library.settle_run(counters, level, ctypes.c_void_p(rows.ctypes.data), len(rows), *out)
    assert failed == 0, library.megatrace_last_error().decode()
    return left


def words_of(plan: Plan) -> int:
    """Of one launch; in the host build each record is followed by the high part of its time."""
    before, _, blocks, after = plan
    return HEADER_WORDS + 3 * (1 + blocks) + 2 * (before + 2 + after) + CLOSING_WORDS


def test_every_launch_is_whole_and_no_word_is_lost(library: ctypes.CDLL) -> None:
    left = run(library, PLANS, LEVEL_TIMELINE)
    found = left.scan()
    assert found.launches.complete.all()
    assert found.launches.words.tolist() == [words_of(plan) for plan in PLANS]
    assert found.loss.words_lost.tolist() == [0]
    assert found.loss.lines_missing.tolist() == [0]
    total = sum(map(words_of, PLANS))
    assert left.cursor.tolist() == [len(found.where), total, len(PLANS), 0]
    assert not left.sums.any(), "a launch with a timeline says its stalls there"


def test_to_settle_costs_no_line(library: ctypes.CDLL) -> None:
    for before in range(14):
        never, settled = (run(library, [(before, s, 1, 0)], LEVEL_TIMELINE) for s in (0, 2))
        assert settled.cursor.tolist() == never.cursor.tolist()


@pytest.mark.parametrize("counters", [0, 1], ids=["timeline build", "counters build"])
def test_the_sums_hold_every_stall_once(library: ctypes.CDLL, counters: int) -> None:
    left = run(library, PLANS, LEVEL_COUNTERS, counters)
    count, cycles = int(left.sums[0]) & ((1 << COUNT_BITS) - 1), int(left.sums[0]) >> COUNT_BITS
    assert count == sum(1 + blocks for _, _, blocks, _ in PLANS)
    assert cycles > 0
    assert not left.sums[1:].any()
    assert not left.lines.any()
    assert not left.cursor.any(), "only launches with a timeline are numbered"


@pytest.mark.parametrize("counters", [0, 1], ids=["timeline build", "counters build"])
def test_switched_off_nothing_is_written(library: ctypes.CDLL, counters: int) -> None:
    left = run(library, PLANS, LEVEL_OFF, counters)
    assert [part.any() for part in (left.lines, left.cursor, left.sums)] == [False] * 3


def test_to_settle_after_the_end_is_said(library: ctypes.CDLL) -> None:
    assert library.settle_late() == 1
    assert "settle() of a tracer that has ended" in library.megatrace_last_error().decode()
