"""``megatrace info``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from megatrace.capture.writer import CaptureWriter
from tests.build import MS, Build, Launch, stall
from tests.collect.helpers import FAKE_RANK, megatrace, record
from tests.export.trace_processor import OpenTrace


def info(path: Path) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(megatrace("info", path, "--json").stdout)
    return body


def test_it_says_ranks_loss_command_and_exit(recorded: Path) -> None:
    body = info(recorded)
    assert body["lines"] == 40 * 16 * 4
    assert body["lines_lost"] == 0
    assert body["child_status"] == 0
    assert body["command"][:2] == list(FAKE_RANK)
    (rank,) = body["ranks"]
    assert rank["table"] == "fake"
    assert (rank["rank"], rank["device"], rank["lines"]) == (0, "cpu", 40 * 16 * 4)


def test_lost_lines_are_told_by_rank(tmp_path: Path) -> None:
    output = tmp_path / "run.mtr"
    record(output, *FAKE_RANK, "--steps", "2000", "--step-us", "0", "--lines", "8", "--rank", "2")
    body = info(output)
    (rank,) = body["ranks"]
    assert rank["lines_lost"] == body["lines_lost"]
    assert rank["lines"] + rank["lines_lost"] == 2000 * 16 * 4


def test_the_loss_of_a_truncated_capture_is_unknown(cut: Path) -> None:
    assert info(cut)["lines_lost"] is None
    assert "lines lost         unknown" in megatrace("info", cut).stdout


def test_what_a_recovery_without_rings_lost_is_unknown(cut: Path) -> None:
    whole = cut.with_name("out.mtr")
    megatrace("recover", cut, "-o", whole)
    assert info(whole)["lines_lost"] is None
    # The cut may fall between the lines of a launch, which is then known to be cut.
    said = megatrace("report", whole).stdout
    assert "loss: unknown" in said or "loss: at least" in said


def test_what_attached_and_what_did_not_is_in_the_text(recorded: Path) -> None:
    text = megatrace("info", recorded).stdout
    assert "scheduler of rank 0: attached to Scheduler.run_batch" in text
    assert "not attached to ModelRunner.forward: AttributeError: gone" in text


def test_the_recording_options_are_in_the_text(recorded: Path, tmp_path: Path) -> None:
    text = megatrace("info", recorded).stdout
    for line in (
        "every  auto: ",
        "counters  1 step in 32",
        "level  timeline",
        "steps  all",
        "sms    all",
    ):
        name, value = line.split(maxsplit=1)
        assert f"  {name.ljust(19)}{value}".rstrip() in text
    asked = ("--every", "4", "--level", "counters", "--steps", "3:9", "--burst", "2")
    record(tmp_path / "run.mtr", "true", options=asked)
    body = info(tmp_path / "run.mtr")
    assert body["recorded"] == {
        "every": "1 step in 4",
        "counters": "1 step in 32",
        "level": "counters",
        "steps": "3 to 8",
        "burst": "2 steps first",
        "sms": "all",
    }


def some_sms(path: Path) -> Path:
    """A capture of ``--sms 0-1`` of a grid of four blocks, one an SM."""
    build = Build(blocks=4, warps=1)
    for block in (0, 1):
        build.add(block, Launch(1, MS, MS + 5000, [stall("full", 100, 50)]))
    for sample in range(4):
        build.sample_clock(sample * MS)
    writer = CaptureWriter(path)
    writer.write_meta("capture", command=["demo"], options={"sms": [0, 1], "every_n": "auto"})
    build.write_to(writer)
    writer.finish()
    return path


def test_every_step_is_said_to_be_as_far_as_the_rings_had_room(recorded: Path) -> None:
    """Of a short run only the first steps are: nobody knows yet how many lines a step takes."""
    assert info(recorded)["recorded"]["every"] == "auto: every step, as far as the rings had room"


def test_a_part_of_the_sms_is_told_with_the_number_of_all(tmp_path: Path) -> None:
    path = some_sms(tmp_path / "run.mtr")
    words = "2 of 4 SMs recorded (--sms 0-1)"
    assert words in megatrace("info", path).stdout
    done = megatrace("export", path, "-o", tmp_path / "run.pftrace")
    assert done.returncode == 0, done.stderr
    assert words in done.stderr
    assert words in megatrace("export", path, "-o", tmp_path / "run.csv").stderr
    assert "note: 2 of 4 SMs recorded" in megatrace("view", "--once", path).stdout
    opened = OpenTrace(tmp_path / "run.pftrace")
    rows = opened.rows(
        "select track.name as place, slice.name as words from slice "
        "join track on track_id = track.id where track.name = 'recorded'"
    )
    assert rows == [("recorded", words)]


def test_options_that_make_no_sense_are_left_out(tmp_path: Path) -> None:
    writer = CaptureWriter(tmp_path / "run.mtr")
    writer.write_meta("capture", options={"sms": 7, "steps": ["a", {}], "level": "x", "burst": []})
    writer.finish(every_n=3)
    assert info(tmp_path / "run.mtr")["recorded"] == {"sms": "all"}
