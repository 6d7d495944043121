"""The README's own kernel is recorded as its page says, from the table to the capture.

And the page of the example that it sends its reader to names what is there.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from megatrace.analysis import Trace, decode
from megatrace.capture.reader import open_capture
from megatrace.schema.emit import table_header
from tests.collect.helpers import ROOT, environment, record
from tests.tools import readme

BLOCKS, TILES, STEPS = 3, 4, 5
# What is the reader's own: memory, a stream, how often.
GIVEN = f"""
import ctypes
import numpy as np

class Work(ctypes.Structure):
    _fields_ = [("weights", ctypes.c_void_p), ("sums", ctypes.c_void_p), ("tiles", ctypes.c_uint32)]

blocks, steps, stream = {BLOCKS}, {STEPS}, 0
weights = np.arange({BLOCKS * TILES} * 64, dtype=np.float32).reshape(-1, {TILES}, 64) % 7
sums = np.zeros((blocks, 64), np.float32)
work = Work(weights.ctypes.data, sums.ctypes.data, {TILES})
"""
CHECKED = """
assert (sums == steps * weights.sum(1)).all()
print("right")
"""


def written(folder: Path, program: str) -> Path:
    readme.write(folder)
    path = folder / "run.py"
    path.write_text(GIVEN + program + CHECKED)
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("readme")
    written(folder, readme.program())
    return folder


@pytest.fixture(scope="module")
def trace(folder: Path) -> Trace:
    done = record(
        folder / "run.mtr",
        sys.executable,
        "run.py",
        options=("--every", "1"),
        cwd=folder,
        env=environment(MEGATRACE_TARGET="host"),
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "right\n"
    return decode(open_capture(folder / "run.mtr", strict=True))


def test_every_launch_of_every_warp_is_recorded(trace: Trace) -> None:
    launches = trace.launches
    assert len(launches) == STEPS * BLOCKS * 2
    assert launches.complete.all()
    assert set(launches.kernel) == {"gemv"}
    assert sorted(set(launches.step)) == list(range(1, STEPS + 1))


def test_every_tile_and_hand_off_is_there(trace: Trace) -> None:
    counts = trace.records.event.value_counts()
    assert counts["tile"] == STEPS * BLOCKS * 2 * TILES
    assert counts["partial"] == STEPS * BLOCKS * 2


def test_outside_of_a_recording_the_same_program_runs_plain(folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, "run.py"],
        cwd=folder,
        env=environment(MEGATRACE_TARGET="host"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "right\n"), done.stderr


def test_an_agent_that_was_told_of_other_blocks_is_refused(tmp_path: Path) -> None:
    told = readme.program().replace("blocks=blocks", f"blocks={BLOCKS - 1}")
    assert told != readme.program()
    run = written(tmp_path, told)
    out = tmp_path / "run.mtr"
    env = environment(MEGATRACE_TARGET="host")
    done = record(out, sys.executable, str(run), cwd=tmp_path, env=env)
    assert done.returncode == 1
    assert "3 blocks of 2 warps has 6 warps, the agent was told of 2 blocks of 2:" in done.stderr


def test_the_header_is_written_by_the_command_on_the_page(tmp_path: Path) -> None:
    readme.write(tmp_path)
    (command,) = (
        line.split()
        for line in (ROOT / "README.md").read_text().splitlines()
        if line.startswith("    python -m megatrace.schema.emit")
    )
    subprocess.run([sys.executable, *command[1:]], cwd=tmp_path, env=environment(), check=True)
    assert (tmp_path / "gemv_events.cuh").read_text() == table_header(readme.table())


def test_calls_on_the_page_of_the_example_are_in_its_files() -> None:
    folder = ROOT / "examples" / "01_trace_a_kernel"
    files = [folder / name for name in ("kernel.cu", "host.cuh", "run.py")]
    launch = ROOT / "megatrace" / "include" / "megatrace" / "launch.cuh"
    sources = "\n".join(path.read_text() for path in (*files, launch))
    quoted = re.findall(r"`([^`\n]+)`", (folder / "README.md").read_text())
    calls = [words.split("...")[0].removesuffix("()") for words in quoted if "(" in words]
    assert len(calls) > 10
    assert [call for call in calls if call not in sources] == []
