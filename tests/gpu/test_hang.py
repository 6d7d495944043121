"""A kernel that waits for ever, seen from outside."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from megatrace.analysis import summarise
from megatrace.capture.reader import open_capture
from megatrace.jit import HOST, default_target
from megatrace.schema.layout import ARG_BIT, ARG_MASK, TIME_BITS

SCRIPT = Path(__file__).parents[1] / "kernels" / "hang.py"
TARGETS = [HOST, pytest.param("gpu", marks=pytest.mark.gpu)]
HANG = 4


def hang_records(capture: Path) -> list[tuple[int, int, int]]:
    """(ring, event, slot) of every hang in the lines of a capture."""
    file = open_capture(capture)
    index = file.line_index()
    found = []
    for row, line in enumerate(file.gather(np.arange(len(index)))):
        for at in np.flatnonzero(line >> TIME_BITS == HANG).tolist():
            event, slot = (int(word & ARG_MASK) for word in line[at + 1 : at + 3])
            found.append((int(index.ring[row]), event, slot))
    return found


def events_of_ring(capture: Path, ring: int) -> set[int]:
    """Ids of the records in one warp's lines."""
    file = open_capture(capture)
    index = file.line_index()
    lines = file.gather(np.flatnonzero(index.ring == ring))
    words = lines[:, np.arange(32) % 16 != 0]
    return set((words[words < ARG_BIT] >> TIME_BITS).tolist())


@pytest.mark.parametrize("every", ["1", "1000"])
@pytest.mark.parametrize("target", TARGETS)
def test_a_wait_that_never_ends_is_in_the_capture_on_any_step(
    target: str, every: str, tmp_path: Path
) -> None:
    target = default_target() if target == "gpu" else target
    out = tmp_path / "hang.mtr"
    command = [sys.executable, "-m", "megatrace", "record", "--every", every, "-o", str(out), "--"]
    done = subprocess.run(
        [*command, sys.executable, str(SCRIPT), target],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "MEGATRACE_HOST_STUCK_MS": "100"},
    )
    assert done.returncode == 3, done.stderr
    assert hang_records(out) == [(3, 18, 7)]
    assert 16 in events_of_ring(out, 3), "what the warp had staged before it hung"
    (hang,) = summarise(open_capture(out)).hangs
    assert (hang.role, hang.event, hang.slot, hang.block, hang.warp) == ("waiter", "never", 7, 1, 1)
    if target == HOST:
        row = next(line for line in done.stderr.splitlines() if "spin 'never' slot 7" in line)
        assert row.split()[:2] == ["1", "1"], "block 1, warp 1"
