"""``megatrace steer`` on recordings that run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from megatrace.capture.reader import open_capture
from tests.collect.helpers import FAKE_RANK, megatrace, recording, sessions_left, wait_until
from tests.collect.test_viewers import Session, session


def test_a_script_changes_what_is_recorded_and_reads_it_back(tmp_path: Path) -> None:
    with session(tmp_path / "run.mtr") as live:
        done = megatrace("steer", "--level", "counters", "--every", "6", "--sms", "0-3,7")
        assert (done.returncode, done.stdout) == (0, ""), done.stderr
        assert done.stderr == "megatrace: level counters, every 6, sms 0-3,7\n"
        assert live.read().note["asked"]["level"] == "counters"  # type: ignore[index]
        rows = dict(line.split() for line in megatrace("steer").stdout.splitlines())
        assert rows == {"WHAT": "NOW", "level": "counters", "every": "6"} | {
            "counters": "32",
            "steps": "all",
            "sms": "0-3,7",
        }
        body = json.loads(megatrace("steer", live.path.name, "--steps", "5:+3", "--json").stdout)
        assert body["schema"] == "megatrace.steer"
        assert body["session"] == live.path.name
        assert body["burst"] == {}


def test_a_burst_is_waited_for_and_its_path_printed(tmp_path: Path) -> None:
    out = tmp_path / "slow.mtr"
    with session(tmp_path / "run.mtr", "--every", "50"):
        done = megatrace("steer", "--burst", "5", "-o", out)
        assert (done.returncode, done.stdout) == (0, f"{out}\n"), done.stderr
        with open_capture(out) as capture:
            assert capture.complete
        out.unlink()
        again = megatrace("steer", "--burst", "2", "-o", out, "--json")
        assert json.loads(again.stdout)["burst"]["state"] == "done"
        assert out.exists()


def test_a_burst_that_the_end_of_the_recording_cuts_is_told_all_the_same(tmp_path: Path) -> None:
    out = tmp_path / "slow.mtr"
    rank = (*FAKE_RANK, "--steps", "80", "--step-us", "100000", "--obey", "--wait-control")
    with recording(tmp_path / "run.mtr", *rank):
        Session()
        done = megatrace("steer", "--burst", "1000", "-o", out)
    assert (done.returncode, done.stdout) == (0, f"{out}\n"), done.stderr
    with open_capture(out) as capture:
        assert capture.complete


def test_before_a_process_has_attached_it_says_so(tmp_path: Path) -> None:
    with recording(tmp_path / "run.mtr", "sleep", "60") as process:
        wait_until(lambda: sessions_left(), "the session is there")
        done = megatrace("steer", "--level", "off")
        process.terminate()
    assert done.returncode != 0
    assert "has attached yet" in done.stderr


@pytest.mark.parametrize(
    ("words", "code", "why"),
    [
        (("--every", "0"), 2, "not a number of steps"),
        (("--counters", "0"), 2, "not a number of steps"),
        (("--level", "loud"), 2, "'loud' is not one of"),
        (("--burst", "2", "-o", "here.txt"), 2, "here.txt is not named *.mtr"),
        (("-o", "here.mtr"), 2, "-o is for a burst"),
    ],
)
def test_what_cannot_be_is_refused_with_the_reason(
    words: tuple[str, ...], code: int, why: str, tmp_path: Path
) -> None:
    with session(tmp_path / "run.mtr"):
        done = megatrace("steer", *words)
        assert done.returncode == code
        assert why in done.stderr
        assert done.stdout == ""


def test_without_a_recording_there_is_nothing_to_steer() -> None:
    done = megatrace("steer", "--level", "off")
    assert done.returncode != 0
    assert "no recording runs on this host" in done.stderr
