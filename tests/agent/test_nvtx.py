"""Host spans as NVTX ranges: no package, no tool, and a real tool."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from megatrace.agent.nvtx import NvtxBridge
from tests.agent.tool import build_tool, tool_variables

ROOT = Path(__file__).resolve().parents[2]
RANGES = """
from megatrace.agent.nvtx import NvtxBridge
bridge = NvtxBridge.load()
for step in (1, 2):
    bridge.push("step", step)
    bridge.push("verify", step)
    bridge.pop()
    bridge.pop()
print(bridge.state)
"""


def test_without_the_package_a_range_is_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nvtx", None)
    bridge = NvtxBridge.load()
    bridge.push("step", 1)
    bridge.pop()
    assert (bridge.active, bridge.state) == (False, "no nvtx package")


def test_without_a_tool_a_range_is_nothing() -> None:
    pytest.importorskip("nvtx")
    bridge = NvtxBridge.load()
    bridge.push("step", 1)
    bridge.pop()
    assert (bridge.active, bridge.state) == (False, "no tool attached")


def test_a_tool_sees_every_range_in_the_domain(tmp_path: Path) -> None:
    pytest.importorskip("nvtx")
    seen = tmp_path / "seen"
    tool = tool_variables(build_tool(tmp_path), seen)
    done = subprocess.run(
        [sys.executable, "-c", RANGES],
        env={**os.environ, "PYTHONPATH": str(ROOT), **tool},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "on"
    one_step = "push megatrace step {0}\npush megatrace verify {0}\npop megatrace\npop megatrace\n"
    assert seen.read_text() == one_step.format(1) + one_step.format(2)


def test_a_package_that_fails_later_switches_the_bridge_off() -> None:
    class Broken:
        def get_event_attributes(self, **_attributes: object) -> object:
            raise OSError("the tool is gone")

    bridge = NvtxBridge(Broken(), "on")
    bridge.push("step", 1)
    assert not bridge.active
    assert bridge.state == "nvtx failed: OSError: the tool is gone"
