"""A writer of lines as the device writes them: whole halves, each with its number."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from megatrace.ring.file import RingFile
from megatrace.schema.events import CORE
from megatrace.schema.layout import CLOSING_WORDS, HALF_WORDS, LINE_WORDS, arg_word, record_word

CLOSING = next(event.id for event in CORE if event.name == "closing")


def payload(ring: int, number: int) -> NDArray[np.uint32]:
    """32 words that say of which line they are, in every place."""
    words = [arg_word((ring * 7_919 + number * 64 + place) * 2_654_435_761) for place in range(32)]
    line = np.array(words, np.uint32)
    line[0] = line[HALF_WORDS] = number & 0xFFFFFFFF
    return line


def half_payload(ring: int, number: int, words: int = 15) -> NDArray[np.uint32]:
    """A line of ``words`` <= 15 words, the last of them a closing, if there is room."""
    line = payload(ring, number)
    line[HALF_WORDS:] = 0
    line[1 + words : HALF_WORDS] = 0
    if words >= CLOSING_WORDS:
        line[words - CLOSING_WORDS + 1] = record_word(CLOSING, 0)
    return line


class LineWriter:
    """Writes numbered lines into the rings of a file this process owns."""

    def __init__(self, ring: RingFile, first: int = 1) -> None:
        self.file = ring
        self.next = [first] * ring.rings
        self.capacity = ring.lines.shape[1]

    def place(self, ring: int, number: int) -> NDArray[np.uint32]:
        """The words of the place of line ``number``."""
        place: NDArray[np.uint32] = self.file.lines[ring, (number - 1) % self.capacity]
        return place

    def store(self, ring: int, number: int, line: NDArray[np.uint32], half: int) -> None:
        """Store one half, 0 or 1, as one warp store does: at once, its number with it."""
        part = slice(half * HALF_WORDS, (half + 1) * HALF_WORDS)
        self.place(ring, number)[part] = line[part]

    def write(self, ring: int, count: int = 1) -> list[int]:
        """Write whole lines, as many as ``count``; returns their numbers."""
        numbers = [self.next[ring] + i for i in range(count)]
        for number in numbers:
            line = payload(ring, number)
            self.store(ring, number, line, 0)
            self.store(ring, number, line, 1)
        self.next[ring] += count
        return numbers

    def write_half(self, ring: int, words: int = 15) -> int:
        """Write a line of a first half only; returns its number."""
        number = self.next[ring]
        self.store(ring, number, half_payload(ring, number, words), 0)
        self.next[ring] += 1
        return number

    def fill_lap_before(self) -> None:
        """Give every place the number it had a lap ago."""
        for ring in range(self.file.rings):
            for number in range(self.next[ring] - self.capacity, self.next[ring]):
                line = payload(ring, number)
                self.place(ring, number)[:] = line


def assert_intact(ring: int, line: NDArray[np.uint32], *, cut: bool = False) -> None:
    """Every word is of the line its number names; with ``cut`` the second half may be missing."""
    assert line.shape == (LINE_WORDS,)
    number = int(line[0])
    expected = payload(ring, number)
    words = int((line[1:HALF_WORDS] != 0).sum())
    if cut and not line[HALF_WORDS:].any():
        expected[HALF_WORDS:] = 0
    known = (expected, half_payload(ring, number, words))
    assert any(np.array_equal(line, one) for one in known), (ring, line.tolist())
