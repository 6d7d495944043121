"""A small capture of a fake rank, made once."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.collect.helpers import FAKE_RANK, MEGATRACE, environment


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A complete capture: 40 steps of one rank; do not change it."""
    folder = tmp_path_factory.mktemp("recorded")
    output = folder / "run.mtr"
    env = environment(MEGATRACE_RUNTIME_DIR=str(folder / "runtime"))
    command = [*MEGATRACE, "record", "-o", str(output), "--", *FAKE_RANK, "--steps", "40", "--fact"]
    subprocess.run(command, env=env, check=True, capture_output=True)
    return output


@pytest.fixture
def cut(recorded: Path, tmp_path: Path) -> Path:
    """The same, cut short in its last third."""
    path = tmp_path / "cut.mtr"
    path.write_bytes(recorded.read_bytes()[: recorded.stat().st_size * 2 // 3])
    return path


@pytest.fixture
def plain_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """No colour variables at all."""
    for name in ("NO_COLOR", "CLICOLOR_FORCE"):
        monkeypatch.delenv(name, raising=False)
    assert "NO_COLOR" not in os.environ
