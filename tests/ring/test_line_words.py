from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from megatrace.schema.layout import (
    ARG_BIT,
    ARG_MASK,
    HALF_WORDS,
    LINE_WORDS,
    MAX_EVENT,
    RECORDS_PER_LINE,
    TIME_BITS,
    TIME_MASK,
    arg_word,
    record_word,
)


@given(st.integers(0, MAX_EVENT), st.integers(0, 2**64))
def test_a_record_says_its_event_and_the_low_bits_of_its_time(event: int, time: int) -> None:
    word = record_word(event, time)
    assert 0 <= word < ARG_BIT
    assert (word >> TIME_BITS, word & TIME_MASK) == (event, time % 2**23)


@given(st.integers(0, 2**64))
def test_an_argument_is_never_taken_for_a_record(value: int) -> None:
    word = arg_word(value)
    assert ARG_BIT <= word < 2**32
    assert word & ARG_MASK == value % 2**31


@given(st.lists(st.integers(1, 2**32 - 1), min_size=RECORDS_PER_LINE, max_size=RECORDS_PER_LINE))
def test_a_line_holds_thirty_words_beside_its_two_numbers(words: list[int]) -> None:
    places = [place for place in range(LINE_WORDS) if place % HALF_WORDS]
    line = np.zeros(LINE_WORDS, np.uint32)
    line[places] = words
    line[[0, HALF_WORDS]] = 7
    assert np.delete(line, [0, HALF_WORDS]).tolist() == words
