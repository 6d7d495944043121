"""A ring that is not pinned: its lines stay on the device, and are copied out."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from megatrace.analysis import decode, summarise
from megatrace.capture.reader import Capture, open_capture
from megatrace.jit import HOST
from tests.gpu.targets import TARGETS, chip

EXAMPLE = Path(__file__).parents[2] / "examples" / "01_trace_a_kernel" / "run.py"
HANG = Path(__file__).parents[1] / "kernels" / "hang.py"


def recorded(out: Path, target: str, *command: str) -> subprocess.CompletedProcess[str]:
    """Record ``command`` with ``TARGET`` in it as the chip."""
    arch = chip(target)
    record = [sys.executable, "-m", "megatrace", "record", "--every", "1", "-o", str(out), "--"]
    return subprocess.run(
        [*record, sys.executable, *(arch if word == "TARGET" else word for word in command)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "MEGATRACE_UNPINNED": "1"},
    )


def unpinned(capture: Capture) -> object:
    (why,) = (
        row.fields["value"]["why"]
        for row in capture.facts("fact")
        if row.fields["name"] == "unpinned_ring"
    )
    return why


@pytest.mark.parametrize("target", TARGETS)
def test_every_launch_comes_home_all_the_same(target: str, tmp_path: Path) -> None:
    out = tmp_path / "run.mtr"
    run = [str(EXAMPLE), "--target", "TARGET", "--steps", "4", "--launches", "3"]
    done = recorded(out, target, *run)
    assert done.returncode == 0, done.stderr
    assert "the ring is not pinned (MEGATRACE_UNPINNED is set): its lines stay" in done.stderr
    capture = open_capture(out, strict=True)
    assert unpinned(capture) == "MEGATRACE_UNPINNED is set"
    launches = decode(capture).launches
    assert len(launches) == 4 * 3 * capture.rings[0].blocks * capture.rings[0].warps
    assert launches.complete.all()


def test_of_a_process_that_ends_without_closing_nobody_says_that_nothing_is_lost(
    tmp_path: Path,
) -> None:
    out = tmp_path / "hang.mtr"
    done = recorded(out, HOST, str(HANG), "TARGET", "one body")
    assert done.returncode == 3, done.stderr
    capture = open_capture(out)
    assert not capture.complete
    (problem,) = capture.problems
    assert "its ring was not pinned and it did not end in order" in problem


# The host build's verdict ends the program at once.
@pytest.mark.gpu
def test_a_hang_comes_home_before_the_kernel_is_given_up(tmp_path: Path) -> None:
    out = tmp_path / "hang.mtr"
    done = recorded(out, "gpu", str(HANG), "TARGET", "bodies")
    assert done.returncode == 3, done.stderr
    (hang,) = summarise(open_capture(out)).hangs
    assert (hang.role, hang.event, hang.slot, hang.block, hang.warp) == ("waiter", "never", 7, 1, 1)
