"""Signals: who gets them, and that the file is whole afterwards."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from megatrace.analysis import summarise
from megatrace.capture.reader import open_capture
from megatrace.errors import CaptureError
from tests.collect.helpers import (
    FAKE_RANK,
    LIMIT_S,
    MEGATRACE,
    child_pid,
    environment,
    printed,
    recording,
    said_so_far,
    sessions_left,
    wait_until,
)


@pytest.fixture
def logger(tmp_path: Path) -> Path:
    """Notes each signal in a file and ends with 7, unless told to stay; a tree has a child."""
    path = tmp_path / "logger.py"
    path.write_text(
        """
import signal, subprocess, sys, time
log, manner = sys.argv[1], sys.argv[2]
def note(text):
    with open(log, "a") as file:
        file.write(text + chr(10))
def handle(number, frame):
    note(signal.Signals(number).name)
    if manner != "stay":
        sys.exit(7)
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, handle)
if manner == "tree":
    below = subprocess.Popen([sys.executable, __file__, log + ".below", "stay"])
note("ready")
deadline = time.monotonic() + 50
while time.monotonic() < deadline:
    time.sleep(0.02)
"""
    )
    return path


def lines(path: Path) -> list[str]:
    return path.read_text().split() if path.exists() else []


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGHUP"])
def test_a_signal_to_the_recorder_reaches_the_childs_own_process_once(
    tmp_path: Path, logger: Path, name: str
) -> None:
    log, output = tmp_path / "log", tmp_path / "run.mtr"
    with recording(output, sys.executable, str(logger), str(log), "tree") as process:
        below = Path(f"{log}.below")
        wait_until(lambda: lines(log) and lines(below), "both processes are up")
        process.send_signal(signal.Signals[name])
        assert process.wait(LIMIT_S) == 7
        time.sleep(0.2)
        assert lines(log) == ["ready", name]
        assert lines(below) == ["ready"]
    with open_capture(output) as capture:
        assert capture.complete
    assert sessions_left() == []


def test_a_child_that_stays_gets_its_file_finished_and_is_waited_for(
    tmp_path: Path, logger: Path
) -> None:
    log, output = tmp_path / "log", tmp_path / "run.mtr"
    with recording(output, sys.executable, str(logger), str(log), "stay") as process:
        wait_until(lambda: lines(log), "the child is up")
        begin = time.monotonic()
        process.send_signal(signal.SIGTERM)
        wait_until(output.exists, "the file is finished")
        assert time.monotonic() - begin < 9
        pid = child_pid(process)
        assert any("waiting for logger" in line for line in said_so_far(process))
        assert process.poll() is None
        os.kill(pid, signal.SIGKILL)
        assert process.wait(LIMIT_S) == 137


def test_a_second_signal_abandons_the_drain_and_still_finishes_the_file(
    tmp_path: Path, logger: Path
) -> None:
    log, output = tmp_path / "log", tmp_path / "run.mtr"
    with recording(output, sys.executable, str(logger), str(log), "stay") as process:
        wait_until(lambda: lines(log), "the child is up")
        process.send_signal(signal.SIGTERM)
        wait_until(lambda: len(lines(log)) == 2, "the first signal has come")
        begin = time.monotonic()
        process.send_signal(signal.SIGTERM)
        wait_until(output.exists, "the file is finished")
        assert time.monotonic() - begin < 3
        wait_until(lambda: len(lines(log)) == 3, "the second signal was passed on, too")
    with open_capture(output) as capture:
        assert capture.end is not None
        assert capture.end.fields["abandoned"] is True


def test_control_c_reaches_the_child_from_the_terminal_and_once(
    tmp_path: Path, logger: Path
) -> None:
    log, output = tmp_path / "log", tmp_path / "run.mtr"
    command = [*MEGATRACE, "record", "-o", str(output), "--", sys.executable, str(logger)]
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(command[0], [*command, str(log), "once"], environment())
    try:
        wait_until(lambda: lines(log), "the child is up")
        os.write(terminal, b"\x03")
        status = drained_exit(pid, terminal)
    finally:
        os.close(terminal)
    assert os.waitstatus_to_exitcode(status) == 7
    assert lines(log) == ["ready", "SIGINT"]
    with open_capture(output) as capture:
        assert capture.complete


def drained_exit(pid: int, terminal: int) -> int:
    """Read the terminal until the process behind it has ended; its wait status."""
    deadline = time.monotonic() + LIMIT_S
    os.set_blocking(terminal, False)
    while time.monotonic() < deadline:
        with suppress(OSError):
            os.read(terminal, 65536)
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return status
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
    raise AssertionError("the recorder never ended")


def test_a_recorder_in_the_background_of_a_script_ignores_the_terminals_interrupt(
    tmp_path: Path,
) -> None:
    output = tmp_path / "run.mtr"
    script = f'trap "" INT; exec {" ".join(MEGATRACE)} record -o {output} -- sleep 1'
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve("/bin/sh", ["sh", "-c", script], environment())
    try:
        wait_until(lambda: output.with_name("run.mtr.part").exists(), "it records")
        os.write(terminal, b"\x03")
        status = drained_exit(pid, terminal)
    finally:
        os.close(terminal)
    assert os.waitstatus_to_exitcode(status) == 0


def test_a_checkpoint_puts_everything_so_far_into_the_file(tmp_path: Path) -> None:
    output = tmp_path / "run.mtr"
    part = tmp_path / "run.mtr.part"
    command = (*FAKE_RANK, "--steps", "20", "--step-us", "0", "--linger-s", "30")
    with recording(output, *command) as process:
        wait_until(lambda: part.exists() and part.stat().st_size > 4000, "rings are attached")
        process.send_signal(signal.SIGUSR1)
        wait_until(lambda: kept_lines(part) == 20 * 16 * 4, "the lines are in the file")
        assert process.poll() is None


def kept_lines(path: Path) -> int:
    with suppress(CaptureError), open_capture(path) as capture:
        return len(capture.line_index())
    return 0


def test_a_rank_that_is_killed_keeps_all_it_had_written(tmp_path: Path) -> None:
    output = tmp_path / "run.mtr"
    with recording(
        output, *FAKE_RANK, "--steps", "100", "--die-at", "60", options=("--json",)
    ) as process:
        assert process.wait(LIMIT_S) == 137
        body = json.loads(printed(process))
    assert body["child_status"] == -9
    assert (body["lines"], body["lines_lost"]) == (60 * 16 * 4, 0)


def test_a_rank_that_outlives_the_child_is_followed_to_its_end(tmp_path: Path) -> None:
    output = tmp_path / "run.mtr"
    script = f"{' '.join(FAKE_RANK)} --steps 300 --step-us 3000 & sleep 0.7; exit 5"
    with recording(output, "/bin/sh", "-c", script, options=("--json",)) as process:
        assert process.wait(LIMIT_S) == 5
        body = json.loads(printed(process))
    assert (body["lines"], body["lines_lost"]) == (300 * 16 * 4, 0)


def test_a_killed_recorder_leaves_its_part_and_its_rings_and_both_are_recovered(
    tmp_path: Path,
) -> None:
    output, part = tmp_path / "run.mtr", tmp_path / "run.mtr.part"
    command = (*FAKE_RANK, "--steps", "40", "--step-us", "50000", "--linger-s", "0.2", "--fact")
    with recording(output, *command) as process:
        wait_until(lambda: part.exists() and kept_lines(part) > 0, "lines are in the file")
        rank = child_pid(process)
        process.send_signal(signal.SIGKILL)
        process.wait()
        wait_until(lambda: not running(rank), "the rank has written all it had")
        assert len(sessions_left()) == 1
        in_file = kept_lines(part)
        done = subprocess.run(
            [*MEGATRACE, "recover", str(part), "--json"],
            capture_output=True,
            text=True,
            env=environment(),
            check=False,
        )
    assert done.returncode == 0, done.stderr
    body = json.loads(done.stdout)
    assert in_file < 40 * 16 * 4
    assert body["ring_lines"] == 40 * 16 * 4 - in_file
    assert body["lines_lost"] == 0
    with open_capture(output) as capture:
        assert capture.recovered
        assert not capture.complete
        assert capture.problems == []
        index = capture.line_index()
        keys = set(zip(index.ring.tolist(), index.number.tolist(), strict=True))
        assert len(keys) == len(index) == 40 * 16 * 4
        assert sum(capture.loss.values()) == 0
        host = capture.host().records
        assert (host["event"] == 3).sum() == 40
        facts = [row.fields["name"] for row in capture.facts("fact")]
        assert facts.count("attach") == 1
        report = summarise(capture)
        assert (report.lines_lost, report.loss_sentence()) == (0, "0 lines lost, else unknown")


def running(pid: int) -> bool:
    """Whether ``pid`` runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_recovery_refuses_a_recording_in_progress(tmp_path: Path) -> None:
    part = tmp_path / "run.mtr.part"
    with recording(tmp_path / "run.mtr", "sleep", "30"):
        wait_until(part.exists, "it records")
        done = subprocess.run(
            [*MEGATRACE, "recover", str(part)],
            capture_output=True,
            text=True,
            env=environment(),
            check=False,
        )
    assert done.returncode == 1
    assert "is still being written" in done.stderr


@pytest.mark.parametrize("shared", [True, False])
def test_a_terminal_is_rewritten_only_where_the_child_does_not_write_to_it(
    tmp_path: Path, shared: bool
) -> None:
    terminal, theirs = pty.openpty()
    command = [*MEGATRACE, "record", "-o", str(tmp_path / "run.mtr"), "--", "sleep", "0.6"]
    with subprocess.Popen(
        command,
        stdout=theirs if shared else subprocess.DEVNULL,
        stderr=theirs,
        env=environment(),
        start_new_session=True,
    ) as process:
        os.close(theirs)
        text = b""
        with suppress(OSError):
            while more := os.read(terminal, 65536):
                text += more
        assert process.wait(LIMIT_S) == 0
    os.close(terminal)
    assert (b"\r\x1b[K" in text) is not shared
    assert b"no rank yet" not in text if shared else b"no rank yet" in text
    assert text.rstrip().endswith(b"next: megatrace doctor")
