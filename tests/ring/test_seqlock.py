from __future__ import annotations

from typing import Any

import pytest

from megatrace.errors import RingError
from megatrace.ring.seqlock import read_consistent


def test_what_changed_while_it_was_copied_is_copied_again() -> None:
    page: dict[str, Any] = {"seq": 2, "value": "old"}

    def copy() -> str:
        value = page["value"]
        if page["seq"] == 2:
            page.update(seq=4, value="new")
        return str(value)

    assert read_consistent(lambda: int(page["seq"]), copy, timeout_s=1, what="it") == "new"


def test_what_is_being_written_is_waited_for() -> None:
    numbers = iter([1, 1, 2, 2, 2])
    assert (
        read_consistent(lambda: next(numbers), lambda: next(numbers), timeout_s=1, what="it") == 2
    )


def test_a_write_that_never_ends_is_an_error() -> None:
    with pytest.raises(RingError, match="it stays half written"):
        read_consistent(lambda: 7, lambda: None, timeout_s=0, what="it")
