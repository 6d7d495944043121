"""Recording where the shared memory is too small for the rings: a real one, real processes."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from megatrace.capture.reader import open_capture
from megatrace.collect.salvage import salvage
from megatrace.errors import CaptureError, RingError
from megatrace.ring.aggregate import AggregatePage
from megatrace.ring.control import read_ack
from megatrace.ring.file import RingFile
from tests.collect.helpers import FAKE_RANK, megatrace, record, recording, said, wait_until
from tests.collect.test_processes import at_once, fake, in_turn, lines_by_rank
from tests.ring.mounts import small_tmpfs

LARGE = ("--lines", "1024")
"""A ring of two megabytes."""


@pytest.fixture(autouse=True)
def shm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A shared memory of one megabyte that holds the sessions."""
    with small_tmpfs(tmp_path / "shm", 1 << 20) as folder:
        monkeypatch.setenv("MEGATRACE_RUNTIME_DIR", str(folder / "rt"))
        yield folder


def memfds_of(pid: int) -> set[str]:
    """Names of the memfds that a process has open."""
    names: set[str] = set()
    with suppress(OSError):
        targets = [os.readlink(fd) for fd in Path(f"/proc/{pid}/fd").iterdir()]
        names = {name for name in targets if name.startswith("/memfd:megatrace")}
    return names


def test_rings_too_large_for_shared_memory_are_recorded_and_said(shm: Path, tmp_path: Path) -> None:
    output = tmp_path / "run.mtr"
    common = ("--steps", "20", "--wait-control", *LARGE)
    ranks = [(*FAKE_RANK, "--rank", str(rank), *common) for rank in range(4)]
    done = record(output, *at_once(*ranks), options=("--json",))
    body = json.loads(done.stdout)
    assert (body["ranks"], body["lines_lost"], body["refused"]) == (4, 0, {})
    assert sorted(body["memfds"]) == [f"rank{n}" for n in range(4)]
    assert f"note: 4 rings were in a memfd, not a file: {shm} has " in done.stderr
    with open_capture(output) as capture:
        assert capture.complete
        assert len(set(lines_by_rank(capture).values())) == 1
        assert "the ring needs" in capture.rings[3].fields["memfd"]


def test_nothing_is_said_of_memfds_where_rings_fit(tmp_path: Path) -> None:
    done = record(tmp_path / "run.mtr", *FAKE_RANK, "--lines", "64")
    assert "in a memfd" not in done.stderr


def test_the_memory_of_an_ended_ring_is_given_back(tmp_path: Path) -> None:
    with recording(
        tmp_path / "run.mtr",
        *in_turn(fake("a", 5, *LARGE), fake("b", 5, *LARGE, "--linger-s", "60")),
    ) as process:
        wait_until(
            lambda: memfds_of(process.pid) == {"/memfd:megatrace b (deleted)"},
            "the recorder holds the second ring alone",
        )
        process.send_signal(signal.SIGINT)
        assert "1 rank in 2 processes" in said(process)


def test_live_and_sessions_see_a_recording_in_memfds(shm: Path, tmp_path: Path) -> None:
    command = fake("a", 20, *LARGE, "--linger-s", "60")
    with recording(tmp_path / "run.mtr", *command) as process:
        wait_until(lambda: list(shm.glob("rt/*/*.page")), "there is a page")
        (session,) = (shm / "rt").iterdir()
        wait_until(
            lambda: AggregatePage.attach(session).read().ranks["step"][0] == 20, "it is live"
        )
        assert "1, 1 in a memfd" in megatrace("sessions").stdout
        (listed,) = json.loads(megatrace("sessions", "--json").stdout)["sessions"]
        assert listed["memfds"] == ["a"]
        assert "1 rank" in megatrace("live", "--once").stdout
        process.send_signal(signal.SIGINT)
        process.wait()


def test_a_traced_process_that_is_killed_loses_nothing(tmp_path: Path) -> None:
    output = tmp_path / "run.mtr"
    done = record(output, *fake("a", 500, *LARGE, "--step-us", "100", "--die-at", "300"))
    assert done.returncode == 137
    with open_capture(output) as capture:
        assert capture.complete
        lines = lines_by_rank(capture)["0"]
        assert capture.loss == {}
        assert lines % 300 == 0


def ring_with_60_steps(shm: Path) -> tuple[Path, int, int]:
    """Once the program has made its steps: the ring's path, its maker's pid, lines in it."""
    wait_until(lambda: list(shm.glob("rt/*/a.ring")), "there is a ring")
    (path,) = shm.glob("rt/*/a.ring")

    def step() -> int:
        with suppress(RingError), RingFile.attach(path) as ring:
            return read_ack(ring).step
        return 0

    wait_until(lambda: step() == 60, "it has made its steps")
    with RingFile.attach(path) as ring:
        lines = np.count_nonzero(ring.lines[:, :, 0])
        return path, int(ring.header["pid"]), int(lines)


def lines_in(part: Path) -> int:
    with suppress(CaptureError), open_capture(part) as capture:
        return len(capture.line_index())
    return 0


def test_after_a_kill_of_the_recorder_the_ring_is_there_while_its_program_runs(
    shm: Path, tmp_path: Path
) -> None:
    output = tmp_path / "run.mtr"
    with recording(output, *fake("a", 60, *LARGE, "--linger-s", "60")) as process:
        _, owner, lines = ring_with_60_steps(shm)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        found = salvage(Path(f"{output}.part"))
        os.kill(owner, signal.SIGKILL)
    assert (found.lines_lost, found.rings_gone, found.program_runs) == (0, (), True)
    assert found.lines == lines


def test_after_a_kill_of_both_what_only_the_memfd_had_is_gone_and_said(
    shm: Path, tmp_path: Path
) -> None:
    output = tmp_path / "run.mtr"
    with recording(output, *fake("a", 60, *LARGE, "--linger-s", "60")) as process:
        _, owner, lines = ring_with_60_steps(shm)
        part = Path(f"{output}.part")
        wait_until(lambda: lines_in(part) == lines, "the file has them all")
        os.kill(process.pid, signal.SIGKILL)
        os.kill(owner, signal.SIGKILL)
        process.wait()
    wait_until(lambda: memfds_of(owner) == set(), "the program is gone")
    done = megatrace("recover", part)
    assert done.returncode == 0
    assert "a was in a memfd that went with its last process" in done.stderr
    assert "unknown how many lines lost" in done.stderr
    with open_capture(output) as capture:
        assert not capture.complete
        assert len(capture.line_index()) == lines


def test_a_real_kernel_is_recorded_through_a_memfd(tmp_path: Path) -> None:
    example = Path(__file__).resolve().parents[2] / "examples/01_trace_a_kernel/run.py"
    output = tmp_path / "run.mtr"
    command = (sys.executable, str(example), "--target", "host", "--steps", "2")
    done = record(output, *command)
    assert "note: 1 ring was in a memfd" in done.stderr
    assert " 0 lines lost" in done.stderr
    with open_capture(output) as capture:
        assert capture.complete
        assert lines_by_rank(capture)["0"] > 100
