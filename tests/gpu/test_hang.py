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
from megatrace.jit import HOST
from megatrace.schema.layout import ARG_BIT, ARG_MASK, SLOT_UNKNOWN, TIME_BITS
from tests.gpu.targets import TARGETS, chip

SCRIPT = Path(__file__).parents[1] / "kernels" / "hang.py"
# In the host build records are never calls.
BODIES = [
    (HOST, "bodies"),
    pytest.param("gpu", "bodies", marks=pytest.mark.gpu),
    pytest.param("gpu", "calls", marks=pytest.mark.gpu),
]
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


def hung(
    target: str, form: str, out: Path, *options: str, step: int = 1, slot: int | None = 7
) -> None:
    """Record the kernel until it is given up: the capture and, on the host, stderr say why."""
    command = [sys.executable, "-m", "megatrace", "record", *options, "-o", str(out), "--"]
    target_arch = chip(target)
    done = subprocess.run(
        [*command, sys.executable, str(SCRIPT), target_arch, form, str(step)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "MEGATRACE_HOST_STUCK_MS": "100"},
    )
    assert done.returncode == 3, done.stderr
    (hang,) = summarise(open_capture(out)).hangs
    assert (hang.role, hang.event, hang.block, hang.warp) == ("waiter", "never", 1, 1)
    assert hang.slot == slot
    assert hang_records(out) == [(3, 18, SLOT_UNKNOWN if slot is None else slot)]
    if target == HOST:
        row = next(line for line in done.stderr.splitlines() if "spin 'never' slot 7" in line)
        assert row.split()[:2] == ["1", "1"], "block 1, warp 1"


@pytest.mark.parametrize("every", ["1", "1000"])
@pytest.mark.parametrize("target", TARGETS)
def test_a_wait_that_never_ends_is_in_the_capture_on_any_step(
    target: str, every: str, tmp_path: Path
) -> None:
    out = tmp_path / "hang.mtr"
    hung(target, "one body", out, "--every", every)
    assert 16 in events_of_ring(out, 3), "what the warp had staged before it hung"


@pytest.mark.parametrize(("target", "form"), BODIES)
def test_one_in_a_kernel_of_bodies_is_too(target: str, form: str, tmp_path: Path) -> None:
    out = tmp_path / "hang.mtr"
    hung(target, form, out, "--every", "1")
    assert 16 in events_of_ring(out, 3)


@pytest.mark.parametrize("options", [("--every", "1000"), ("--level", "counters")])
@pytest.mark.parametrize(("target", "form"), BODIES)
def test_a_warp_that_only_counts_says_whom_it_waits_for_before_it_traps(
    target: str, form: str, options: tuple[str, str], tmp_path: Path
) -> None:
    out = tmp_path / "hang.mtr"
    hung(target, form, out, *options)
    assert 16 not in events_of_ring(out, 3), "it kept no lines until then"


@pytest.mark.parametrize(("target", "form"), BODIES)
def test_a_warp_of_a_step_that_rests_says_what_it_waits_for_but_not_whom(
    target: str, form: str, tmp_path: Path
) -> None:
    out = tmp_path / "hang.mtr"
    # The host build, where code costs nothing, knows.
    hung(target, form, out, "--every", "1000", step=2, slot=7 if target == HOST else None)
    assert 16 not in events_of_ring(out, 3), "it kept no lines until then"
