"""Lines before they are records: which words are in use, and in which order lines stand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from megatrace.analysis import lines as lines_
from megatrace.analysis.lines import Heads, in_use, look, payload, ring_order, words_of
from megatrace.analysis.rank import CaptureLines
from megatrace.capture.reader import open_capture

H200 = Path(__file__).parents[1] / "muse" / "h200_blocks.mtr"


def _h200() -> NDArray[np.uint32]:
    with open_capture(H200) as capture:
        return capture.gather(slice(None))


def _looked(capacity: int = 0) -> Heads:
    with open_capture(H200) as capture:
        return look(CaptureLines.of(capture, 0), capacity)


def test_the_words_in_use_are_those_of_the_payload() -> None:
    lines = _h200()
    lines[::7, 16:] = 0  # a first half alone
    lines[::11, 20] = 0  # a hole
    dense = payload(lines)
    used = in_use(lines)
    assert words_of(used).tolist() == np.count_nonzero(dense, axis=1).tolist()
    assert lines[used].tolist() == dense[dense != 0].tolist()


def test_lines_of_a_few_are_looked_at_as_all_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    at_once = _looked()
    monkeypatch.setattr(lines_, "CHUNK_LINES", 100)
    in_parts = _looked()
    for name in ("sound", "words", "head", "fields"):
        assert getattr(in_parts, name).tolist() == getattr(at_once, name).tolist()
    assert at_once.head.any()


def test_runs_of_lines_are_put_in_the_order_of_their_rings() -> None:
    ring = np.array([2, 2, 0, 0, 1, 0, 2, 70_000], np.uint32)
    number = np.array([1, 2, 1, 2, 1, 3, 3, 1], np.uint32)
    order, rings, numbers = ring_order(ring, number, np.arange(8))
    assert order.tolist() == [2, 3, 5, 4, 0, 1, 6, 7]
    assert rings.tolist() == ring[order].tolist()
    assert numbers.tolist() == number[order].tolist()


def test_a_line_that_the_file_has_late_goes_to_its_place() -> None:
    ring = np.array([5, 5, 5, 4], np.uint32)
    number = np.array([1, 3, 2, 1], np.uint32)
    order, _, numbers = ring_order(ring, number, np.arange(4))
    assert order.tolist() == [3, 0, 2, 1]
    assert numbers.tolist() == [1, 1, 2, 3]


def test_lines_left_out_are_not_in_the_order() -> None:
    ring = np.array([1, 0, 1, 0], np.uint32)
    number = np.array([1, 1, 2, 2], np.uint32)
    assert ring_order(ring, number, np.array([0, 3]))[0].tolist() == [3, 0]
    assert ring_order(ring, number, np.zeros(0, np.intp))[0].tolist() == []
