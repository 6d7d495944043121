"""A capture of the host build, made once by the real recorder."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.collect.helpers import MEGATRACE, environment
from tests.tui.helpers import ROOT


@pytest.fixture(scope="session")
def host_capture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example kernel on the CPU, every step of it; do not change it."""
    folder = tmp_path_factory.mktemp("host")
    output = folder / "host.mtr"
    example = [sys.executable, str(ROOT / "examples/01_trace_a_kernel/run.py"), "--target", "host"]
    subprocess.run(
        [*MEGATRACE, "record", "-o", str(output), "--every", "1", "--", *example, "--steps", "4"],
        env=environment(MEGATRACE_RUNTIME_DIR=str(folder / "runtime")),
        check=True,
        capture_output=True,
    )
    return output


@pytest.fixture(autouse=True)
def colours(monkeypatch: pytest.MonkeyPatch) -> None:
    """Screens are drawn in colour unless a test takes it away."""
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.delenv("COLORFGBG", raising=False)
