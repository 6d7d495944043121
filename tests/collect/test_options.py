"""What ``record`` is asked to do."""

from __future__ import annotations

import pytest

from megatrace.collect.options import (
    RecordOptions,
    default_name,
    parse_counters,
    parse_every,
    parse_sms,
    parse_steps,
)
from megatrace.errors import UsageError
from megatrace.ring.control import ALL_SMS


@pytest.mark.parametrize(("text", "every_n"), [("auto", 0), ("1", 1), ("64", 64)])
def test_every_takes_a_number_or_auto(text: str, every_n: int) -> None:
    assert parse_every(text) == every_n


@pytest.mark.parametrize("text", ["0", "-1", "x", "", "1.5"])
def test_every_refuses_what_is_no_number_of_steps(text: str) -> None:
    with pytest.raises(UsageError):
        parse_every(text)


@pytest.mark.parametrize(("text", "n"), [("1", 1), ("32", 32)])
def test_counters_take_a_number_of_steps(text: str, n: int) -> None:
    assert parse_counters(text) == n


@pytest.mark.parametrize("text", ["auto", "0", "-1", "", "1.5", str(1 << 32)])
def test_counters_refuse_what_is_no_number_of_steps(text: str) -> None:
    with pytest.raises(UsageError):
        parse_counters(text)


@pytest.mark.parametrize(
    ("text", "window"), [("200:264", (200, 264)), ("200:+64", (200, 264)), ("0:1", (0, 1))]
)
def test_steps_take_a_range_or_a_count(text: str, window: tuple[int, int]) -> None:
    assert parse_steps(text) == window


@pytest.mark.parametrize("text", ["5", "5:5", "6:5", "a:b", "5:", ":5", "5:+0"])
def test_steps_refuse_an_empty_or_open_range(text: str) -> None:
    with pytest.raises(UsageError):
        parse_steps(text)


def test_sms_take_numbers_and_ranges() -> None:
    assert parse_sms("0-3,7") == {0, 1, 2, 3, 7}


@pytest.mark.parametrize("text", ["", "3-1", "256", "x", "1,,2"])
def test_sms_refuse_what_is_no_sm(text: str) -> None:
    with pytest.raises(UsageError):
        parse_sms(text)


def test_the_mask_has_a_bit_for_each_sm() -> None:
    assert RecordOptions(("x",)).sm_mask == ALL_SMS
    assert RecordOptions(("x",), sms=frozenset({0, 33, 255})).sm_mask == 1 | 1 << 33 | 1 << 255


def test_the_default_name_has_program_time_and_pid() -> None:
    assert default_name("sglang.launch_server", 7, 0) == (
        "megatrace-sglang.launch_server-19700101T000000Z-7.mtr"
    )


def test_the_default_name_keeps_out_what_a_file_name_must_not_have() -> None:
    assert "/" not in default_name("../a b/c", 1, 0)
    assert default_name("...", 1, 0).startswith("megatrace-program-")
