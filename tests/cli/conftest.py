"""A small capture of a fake rank, made once."""

from __future__ import annotations

import os
import shlex
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


@pytest.fixture(scope="session")
def restarted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ranks 0 and 1 side by side for 6 steps, and both again for 4 and 3; do not change it."""
    folder = tmp_path_factory.mktemp("restarted")
    output = folder / "run.mtr"
    # One of two may start seconds after the other has ended, which would make two runs of them.
    ranks = [(0, 6), (1, 6), (0, 4), (1, 3)]
    first, *more = (
        shlex.join(
            [*FAKE_RANK, "--fact", "--name", f"r{at}", "--rank", str(rank), "--steps", str(n),
             "--wait-control", "--meet", str(folder / f"run{at // 2}")]
        )
        for at, (rank, n) in enumerate(ranks)
    )  # fmt: skip
    both = f"{first} & {more[0]} & wait; {more[1]} & {more[2]} & wait"
    env = environment(MEGATRACE_RUNTIME_DIR=str(folder / "runtime"))
    command = [*MEGATRACE, "record", "-o", str(output), "--", "sh", "-c", both]
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
