"""The status line, and who may be drawn on."""

from __future__ import annotations

import io

import pytest

from megatrace.collect.status import Status, StatusLine
from megatrace.collect.talk import Talk


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


STATUS = Status(12.4, 8, 8, 3_104_221, 0, 48_000_000, 4)


def test_it_says_time_ranks_records_loss_size_and_sampling() -> None:
    assert STATUS.text() == (
        "12.4 s · 8/8 ranks · 3,104,221 records · 0 lines lost · 48 MB · 1 step in 4"
    )


def test_a_file_gets_whole_lines_ten_seconds_apart() -> None:
    stream = io.StringIO()
    line = StatusLine(Talk(stream, {}), shared=False)
    assert not line.due(9.9)
    assert line.due(10.0)
    line.show(Status(10.0, 1, 1, 0, 0, 0, 1))
    assert not line.due(19.9)
    assert stream.getvalue().startswith("megatrace: 10.0 s")
    assert stream.getvalue().endswith("\n")
    assert "\x1b" not in stream.getvalue()
    assert "\r" not in stream.getvalue()


def test_a_terminal_of_its_own_is_rewritten_at_most_four_times_a_second() -> None:
    stream = Terminal()
    line = StatusLine(Talk(stream, {}), shared=False)
    assert line.due(0.0)
    line.show(Status(1.0, 1, 1, 0, 0, 0, 1))
    assert not line.due(1.2)
    assert line.due(1.25)
    assert "\n" not in stream.getvalue()


def test_a_terminal_shared_with_the_child_is_not_rewritten() -> None:
    stream = Terminal()
    line = StatusLine(Talk(stream, {}), shared=True)
    assert not line.due(1.0)
    line.show(Status(10.0, 1, 1, 0, 0, 0, 1))
    assert "\r" not in stream.getvalue()


def test_talk_takes_the_status_line_away_first() -> None:
    stream = Terminal()
    talk = Talk(stream, {})
    talk.rewrite("working")
    talk.say("done")
    assert stream.getvalue().endswith("\r\x1b[Kmegatrace: done\n")


@pytest.mark.parametrize(
    ("stream", "env", "colour"),
    [
        (io.StringIO(), {}, False),
        (Terminal(), {}, True),
        (Terminal(), {"NO_COLOR": "1"}, False),
        (Terminal(), {"TERM": "dumb"}, False),
        (io.StringIO(), {"CLICOLOR_FORCE": "1"}, True),
        (io.StringIO(), {"CLICOLOR_FORCE": "0"}, False),
        (Terminal(), {"CLICOLOR_FORCE": "1", "NO_COLOR": "1"}, False),
    ],
)
def test_colour_follows_the_variables_then_the_terminal(
    stream: io.StringIO, env: dict[str, str], colour: bool
) -> None:
    assert Talk(stream, env).colour is colour


def test_a_stream_that_is_gone_is_ignored() -> None:
    stream = io.StringIO()
    stream.close()
    Talk(stream, {}).say("nobody hears")
