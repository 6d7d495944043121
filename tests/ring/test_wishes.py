from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from megatrace.errors import SessionError
from megatrace.ring.wishes import send_wish, take_wishes


def test_wishes_are_taken_once_and_in_the_order_they_were_sent(tmp_path: Path) -> None:
    sent = [send_wish(tmp_path, {"level": level}) for level in ("off", "counters", "timeline")]
    taken = take_wishes(tmp_path)
    assert [wish.id for wish in taken] == sent
    assert [wish.asks["level"] for wish in taken] == ["off", "counters", "timeline"]
    assert take_wishes(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


def test_a_wish_is_for_its_user_alone(tmp_path: Path) -> None:
    send_wish(tmp_path, {"burst": "4"})
    (path,) = tmp_path.iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize(
    "content",
    [b"", b"not JSON", b"[]", b"3", b'{"rm": "-rf"}', b"[" * 9000, b'{"level": "off"' * 999],
)
def test_what_is_no_wish_asks_for_nothing_and_goes_away(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "1.wish").write_bytes(content)
    (wish,) = take_wishes(tmp_path)
    assert wish.asks == {}
    assert list(tmp_path.iterdir()) == []


def test_a_link_or_a_pipe_is_no_wish(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text('{"level": "off"}')
    (tmp_path / "1.wish").symlink_to(secret)
    os.mkfifo(tmp_path / "2.wish")
    assert [wish.asks for wish in take_wishes(tmp_path)] == [{}, {}]
    assert [path.name for path in tmp_path.iterdir()] == ["secret"]


def test_a_session_that_is_gone_cannot_be_asked(tmp_path: Path) -> None:
    with pytest.raises(SessionError, match="cannot be asked") as caught:
        send_wish(tmp_path / "gone", {"burst": "4"})
    assert caught.value.hint
