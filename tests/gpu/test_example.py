"""The example kernel under the recorder: the same test on the GPU and in the host build."""

from __future__ import annotations

import ctypes
import os
import runpy
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from megatrace.analysis import decode
from megatrace.capture.reader import open_capture
from megatrace.jit import HOST
from megatrace.ring.control import Control, write_control
from megatrace.ring.drain import CounterReader, LineReader
from megatrace.ring.file import RingFile
from megatrace.ring.session import Session
from megatrace.schema.layout import (
    LEVEL_COUNTERS,
    LEVEL_OFF,
    LEVEL_TIMELINE,
    TIME_BITS,
)
from tests.gpu.targets import TARGETS, chip

FOLDER = Path(__file__).parents[2] / "examples" / "01_trace_a_kernel"


@pytest.mark.parametrize("target", TARGETS)
def test_every_launch_of_every_warp_is_in_the_capture(target: str, tmp_path: Path) -> None:
    out = tmp_path / "run.mtr"
    run = [sys.executable, str(FOLDER / "run.py"), "--target", chip(target)]
    record = [sys.executable, "-m", "megatrace", "record", "--every", "1", "-o", str(out), "--"]
    subprocess.run(
        [*record, *run, "--steps", "4", "--launches", "3"],
        check=True,
        capture_output=True,
    )
    capture = open_capture(out, strict=True)
    trace = decode(capture)
    rings = capture.rings[0].blocks * capture.rings[0].warps
    launches = trace.launches
    assert len(launches) == 4 * 3 * rings
    assert launches.complete.all()
    assert set(launches.step) == {1, 2, 3, 4}
    assert set(launches.layer) == {0, 1, 2}
    blocks = capture.rings[0].blocks
    published = trace.records[trace.records.event == "partial"]
    assert sorted(set(published.slot)) == list(range(blocks))
    assert len(published) == 4 * 3 * blocks


class Running:
    """The example in this process, replayed step by step under a session of this test."""

    def __init__(self, target: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.session = session = Session.create(name)
        monkeypatch.setenv("MEGATRACE_SESSION", str(session.path))
        monkeypatch.syspath_prepend(str(FOLDER))
        self.run = runpy.run_path(str(FOLDER / "run.py"))
        shape = self.run["CPU" if target == HOST else "GPU"]
        from megatrace.agent.kernel import KernelAgent, RingSize
        from megatrace.jit import Kernel, build, load

        table = self.run["STREAM"]
        kernel = Kernel(
            FOLDER / "kernel.cu", (table,), {"MEGATRACE_TILE_BYTES": str(shape.tile_bytes)}
        )
        library = load(build(kernel, target), table)
        library.megatrace_last_error.restype = ctypes.c_char_p
        self.blocks = self.run["sm_count"](library)
        self.agent = KernelAgent.start(
            table,
            blocks=self.blocks,
            roles=self.run["ROLES"],
            kernels=("stream",),
            device="cpu" if target == HOST else "cuda",
            size=RingSize(lines=128, layers=3),
        )
        config = self.run["Config"](self.blocks, shape.tiles, 3, 1, 2, 0)
        self.chain = self.run["Stream"](library, config, self.agent.params)
        self.ring = RingFile.attach(session.ring_paths()[0], writable_control=True)
        self.lines = LineReader(self.ring)
        self.sums = CounterReader(self.ring)

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *exc: object) -> None:
        self.chain.close()
        self.ring.close()
        self.agent.close()
        self.session.close(remove=True)

    def step(self, control: Control) -> np.ndarray:
        """One replay under ``control``: the lines it wrote, u4 ``(n, 32)``."""
        write_control(self.ring, control)
        self.agent.begin_step(self.chain.stream)
        self.chain.replay()
        self.chain.synchronize()
        return self.lines.drain(max_lines=1 << 20).lines

    def stalls(self) -> int:
        """Stalls counted so far."""
        time.sleep(0.6)  # the agent brings them home four times a second
        return int(self.sums.snapshot()["count"].sum())


@pytest.mark.parametrize("target", TARGETS)
def test_what_is_recorded_changes_while_the_same_graph_replays(
    target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Running(chip(target), "control", monkeypatch) as running:
        headers = headers_of(running.step(Control(level=LEVEL_TIMELINE, every_n=1)))
        assert len(headers) == running.blocks * 12 * 3
        assert len(running.step(Control(level=LEVEL_OFF))) == 0
        before = running.stalls()
        assert len(running.step(Control(level=LEVEL_COUNTERS))) == 0
        assert running.stalls() > before
        some = headers_of(running.step(Control(level=LEVEL_TIMELINE, every_n=1, sm_mask=0b101)))
        assert set(some & 0x1FF) == {0, 2}
        assert len(some) == 2 * 12 * 3
        assert len(running.step(Control(level=LEVEL_TIMELINE, every_n=1000))) == 0
        assert running.chain.worst_error() < 1e-5


@pytest.mark.parametrize("target", TARGETS)
def test_blocks_have_stalled_as_long_as_layers(
    target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Running(chip(target), "sums", monkeypatch) as running:
        running.step(Control(level=LEVEL_COUNTERS))
        assert running.stalls() > 0
        layers = running.sums.snapshot()["cycles"].astype(np.uint64)
        by_warp = layers.sum(axis=0).reshape(-1, 12, 4)
        blocks = running.sums.block_cycles().T.reshape(running.blocks, 12, 4)
        # Each of the two is added by a lane of its own, from clocks it read itself.
        np.testing.assert_allclose(blocks.sum(axis=0), by_warp.sum(axis=0), rtol=1e-3)
        assert blocks.any(axis=(1, 2)).all()


@pytest.mark.parametrize("target", TARGETS)
def test_a_step_that_rests_keeps_nothing(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with Running(chip(target), "rest", monkeypatch) as running:
        running.step(Control(level=LEVEL_COUNTERS, counters_every=3))
        counted = running.stalls()
        assert counted > 0
        for _ in range(2):
            lines = running.step(Control(level=LEVEL_COUNTERS, counters_every=3))
            assert len(lines) == 0
        assert running.stalls() == counted
        running.step(Control(level=LEVEL_COUNTERS, counters_every=3))
        assert running.stalls() > counted


def headers_of(lines: np.ndarray) -> np.ndarray:
    """The header words among ``lines``: each begins a line."""
    words = lines[:, 1]
    return words[words >> TIME_BITS == 1]


@pytest.mark.gpu
@pytest.mark.parametrize("tool", ["memcheck", "synccheck"])
def test_the_traced_kernel_is_clean_under_compute_sanitizer(tool: str, tmp_path: Path) -> None:
    run = [sys.executable, str(FOLDER / "run.py"), "--steps", "2", "--launches", "2", "--all"]
    record = [sys.executable, "-m", "megatrace", "record", "-o", str(tmp_path / "run.mtr"), "--"]
    sanitizer = ["compute-sanitizer", "--tool", tool, "--error-exitcode", "9"]
    done = subprocess.run(
        [*record, *sanitizer, *run],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "ERROR SUMMARY: 0 errors" in done.stdout, done.stdout[-2000:]


def test_the_parameter_block_is_the_size_the_agent_thinks() -> None:
    from megatrace.agent.memory import TRACE_PARAMS_BYTES, TraceParams

    assert ctypes.sizeof(TraceParams) == TRACE_PARAMS_BYTES
