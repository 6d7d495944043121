"""Several ranks at once, and rings that are somebody else's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from megatrace.capture.reader import open_capture
from tests.collect.helpers import FAKE_RANK, MEGATRACE, environment, record

NOBODY = 65534

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="to be another user takes root")


def server(ranks: int, *options: str) -> tuple[str, ...]:
    """A program that runs ``ranks`` fake ranks and waits for all."""
    rank = " ".join((*FAKE_RANK, *options, "--rank", "$rank"))
    return ("/bin/sh", "-c", f"for rank in $(seq 0 {ranks - 1}); do {rank} & done; wait")


def test_eight_ranks_come_out_whole_and_apart(tmp_path: Path) -> None:
    output = tmp_path / "run.mtr"
    done = record(
        output,
        *server(8, "--steps", "100", "--step-us", "3000", "--blocks", "2", "--lines", "512"),
        options=("--json", "--every", "1"),
    )
    body = json.loads(done.stdout)
    assert done.returncode == 0
    assert (body["ranks"], body["lines_lost"]) == (8, 0)
    with open_capture(output) as capture:
        index = capture.line_index()
        assert sorted(capture.rings) == list(range(8))
        for rank in range(8):
            mine = index.rank == rank
            assert mine.sum() == 100 * 4 * 8
            for ring in range(8):
                numbers = index.number[mine & (index.ring == ring)]
                assert sorted(numbers.tolist()) == list(range(1, 401))


def test_a_rank_faster_than_the_recorder_loses_nothing_and_keeps_the_file_small(
    tmp_path: Path,
) -> None:
    output = tmp_path / "run.mtr"
    busy = ("--blocks", "64", "--stalls", "120", "--lines", "64", "--step-us", "0")
    command = (*FAKE_RANK, "--obey", "--wait-control", "--steps", "6000", *busy)
    done = record(output, *command, options=("--json",))
    body = json.loads(done.stdout)
    assert body["lines_lost"] == 0
    assert 0 < body["records"] / body["elapsed_s"] < 50e6


@needs_root
def test_a_ring_of_another_user_is_refused_and_said(tmp_path: Path) -> None:
    program = f"""
import os, pathlib, sys, time
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
from tests.collect.fake_rank import make_ring
session = pathlib.Path(os.environ["MEGATRACE_SESSION"])
path = make_ring(session, 0, blocks=1, lines=64, layers=1).path
foreign = session / "foreign.ring"
foreign.write_bytes(path.read_bytes())
foreign.chmod(0o600)
os.chown(foreign, {NOBODY}, {NOBODY})
"""
    done = record(tmp_path / "run.mtr", sys.executable, "-c", program)
    assert done.returncode == 0
    assert f"belongs to user {NOBODY}" in done.stderr
    assert "foreign.ring" in done.stderr


@needs_root
def test_the_sessions_of_another_user_are_refused_in_one_line(tmp_path: Path) -> None:
    root = tmp_path / "theirs"
    root.mkdir(mode=0o700)
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_mode & 0o001 == 0:
            folder.chmod(folder.stat().st_mode | 0o011)
    os.chown(root, NOBODY, NOBODY)
    done = subprocess.run(
        [*MEGATRACE, "sessions"],
        env=environment(MEGATRACE_RUNTIME_DIR=str(root)),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert f"belongs to user {NOBODY}" in done.stderr
    assert len(done.stderr.splitlines()) == 2
