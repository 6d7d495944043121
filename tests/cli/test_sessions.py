"""``megatrace sessions``: live, orphaned and dead ones."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

from tests.collect.helpers import (
    FAKE_RANK,
    child_pid,
    megatrace,
    recording,
    sessions_left,
    wait_until,
)


def listed() -> list[dict[str, object]]:
    found: list[dict[str, object]] = json.loads(megatrace("sessions", "--json").stdout)["sessions"]
    return found


def test_none_at_all_is_said_and_is_no_error() -> None:
    done = megatrace("sessions")
    assert done.returncode == 0
    assert done.stdout == ""
    assert "no sessions" in done.stderr


def test_a_live_session_is_listed_with_its_command_and_never_pruned(tmp_path: Path) -> None:
    with recording(tmp_path / "run.mtr", "sleep", "30"):
        wait_until(lambda: listed(), "the session is there")
        (session,) = listed()
        assert session["live"] is True
        assert session["recorded"] is True
        assert session["command"] == ["sleep", "30"]
        assert json.loads(megatrace("sessions", "--prune", "--json").stdout)["removed"] == []
        assert "live" in megatrace("sessions").stdout


def test_a_session_whose_program_outlives_its_recorder_is_kept_until_that_ends(
    tmp_path: Path,
) -> None:
    command = (*FAKE_RANK, "--steps", "1", "--linger-s", "60")
    with recording(tmp_path / "run.mtr", *command) as process:
        wait_until(lambda: listed() and listed()[0]["rings"] == ["rank0"], "the ring is there")
        rank = child_pid(process)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert "orphan" in megatrace("sessions", "--prune").stdout
        assert len(sessions_left()) == 1
        os.kill(rank, signal.SIGKILL)
        wait_until(lambda: not listed()[0]["live"], "the rank has ended")
        text = megatrace("sessions")
        assert "dead" in text.stdout
        assert "recover" in text.stderr
        name = sessions_left()
        assert json.loads(megatrace("sessions", "--prune", "--json").stdout)["removed"] == name
    assert sessions_left() == []
