"""A real SGLang without a GPU: its environment, its checkpoints, sessions to record in."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from megatrace.ring.session import Session
from tests.sglang.server import Environment

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = ROOT / "tests" / "sglang_env"
PLUGINS = "sglang.srt.plugins"
PLACE = "MEGATRACE_SGLANG_VENV"
"""Where the environment is kept between runs; by default in the user's cache."""

_OFFLINE = ("Temporary failure in name resolution", "NewConnectionError", "Max retries exceeded")


def _venv() -> Path:
    """The environment's Python, made first where it is missing; skips without a network."""
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    place = os.environ.get(PLACE) or f"{cache}/megatrace/sglang-venv"
    made = subprocess.run(
        [sys.executable, ENVIRONMENT / "make_venv.py", place],
        capture_output=True,
        text=True,
        check=False,
    )
    if made.returncode and any(word in made.stderr for word in _OFFLINE):
        pytest.skip(f"no SGLang in {place}, and no network to install it")
    assert made.returncode == 0, made.stderr[-4000:]
    return Path(made.stdout.strip())


def _declare(folder: Path, name: str, entry_points: dict[str, str]) -> None:
    """Make an installed distribution of ``name``, code elsewhere on the path."""
    info = folder / f"{name}-0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0\n")
    lines = [f"{key} = {value}" for key, value in entry_points.items()]
    (info / "entry_points.txt").write_text("\n".join([f"[{PLUGINS}]", *lines]))


@pytest.fixture(scope="session")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """SGLang's Python, the checkout's own entry point, and tiny random checkpoints."""
    python, folder = _venv(), tmp_path_factory.mktemp("sglang")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    megatrace = {k: v for k, v in project["entry-points"][PLUGINS].items() if k == "megatrace"}
    _declare(folder, "megatrace", megatrace)
    _declare(folder, "megatrace_cpu_shim", {"megatrace_cpu_shim": "megatrace_cpu_shim:register"})
    models = folder / "models"
    subprocess.run([python, ENVIRONMENT / "make_models.py", models], check=True)
    path = (folder, ENVIRONMENT / "site", ROOT)
    return Environment(python, path, models / "target", models / "draft")


@pytest.fixture(scope="session")
def new_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Session]]:
    """Makes sessions that live as long as the test run."""
    sessions: list[Session] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MEGATRACE_RUNTIME_DIR", str(tmp_path_factory.mktemp("runtime") / "root"))

        def make(name: str) -> Session:
            sessions.append(Session.create(name))
            return sessions[-1]

        yield make
    for session in sessions:
        session.close(remove=True)
