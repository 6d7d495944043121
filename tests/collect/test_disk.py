"""A disk that fills up, or is not there to write to."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from megatrace.capture.reader import open_capture
from tests.collect.helpers import FAKE_RANK, megatrace, record, sessions_left
from tests.collect.test_processes import fake, in_turn, rings_left


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MB."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system takes root")
    folder = tmp_path / "small"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("this container may not mount a file system")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk_ends_the_writing_and_not_the_program(small_disk: Path) -> None:
    output = small_disk / "run.mtr"
    command = (*FAKE_RANK, "--steps", "800", "--exit", "6")
    done = record(output, *command, options=("--json",))
    assert done.returncode == 6
    body = json.loads(done.stdout)
    assert body["complete"] is False
    assert body["path"] == f"{output}.part"
    assert body["lines_dropped"] > 0
    with open_capture(body["path"]) as capture:
        kept = len(capture.line_index())
        assert capture.problems[0].startswith("the file ends early")
    assert kept > 0
    assert kept + body["lines_dropped"] + body["lines_lost"] == body["lines"] + body["lines_lost"]
    assert not output.exists()
    assert "the disk is full" in done.stderr
    *_, written, after = done.stderr.splitlines()
    assert written.startswith(f"megatrace: incomplete: {output}.part")
    assert "lines not written" in written
    assert after == f"megatrace: next: megatrace recover {output}.part"
    assert sessions_left() == []


def test_a_ring_gives_its_memory_back_after_the_disk_filled_too(
    small_disk: Path, tmp_path: Path
) -> None:
    seen = tmp_path / "seen"
    program = in_turn(fake("a", 800), rings_left(seen))
    done = record(small_disk / "run.mtr", *program, options=("--json",))
    body = json.loads(done.stdout)
    assert seen.read_text() == "0"
    with open_capture(body["path"]) as capture:
        assert body["lines_dropped"] > 0
        assert len(capture.line_index()) + body["lines_dropped"] == body["lines"]


def test_a_runtime_directory_too_small_for_a_session_is_one_clear_line(
    small_disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (small_disk / "filler").open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))
    monkeypatch.setenv("MEGATRACE_RUNTIME_DIR", str(small_disk / "runtime"))
    done = record(tmp_path / "run.mtr", "true")
    assert done.returncode == 125
    assert done.stderr.count("megatrace: error: ") == 1
    assert "No space left on device" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_runtime_directory_that_cannot_be_made_is_one_clear_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MEGATRACE_RUNTIME_DIR", "/proc/no/such/place")
    done = record(tmp_path / "run.mtr", "true")
    assert done.returncode == 125
    assert "MEGATRACE_RUNTIME_DIR" in done.stderr
    assert list(tmp_path.glob("*.mtr*")) == []
    assert megatrace("sessions").returncode == 0
