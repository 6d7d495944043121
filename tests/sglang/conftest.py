"""A real SGLang without a GPU: its environment, its checkpoints, sessions to record in."""

from __future__ import annotations

import subprocess
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from megatrace.ring.session import Session
from tests.sglang.server import Environment
from tests.sglang_env.place import ENVIRONMENT, sglang_python

ROOT = Path(__file__).resolve().parents[2]
PLUGINS = "sglang.srt.plugins"


def declare(folder: Path, name: str, entry_points: dict[str, str]) -> None:
    """Make an installed distribution of ``name``, code elsewhere on the path."""
    info = folder / f"{name}-0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0\n")
    lines = [f"{key} = {value}" for key, value in entry_points.items()]
    (info / "entry_points.txt").write_text("\n".join([f"[{PLUGINS}]", *lines]))


def make_models(python: Path, folder: Path, *words: str) -> None:
    """Tiny random checkpoints whose routers choose far from any rounding.

    SGLang's CPU class rounds more often than the kernel, and a random router would turn a
    last bit into another expert.
    """
    maker = [python, ENVIRONMENT / "make_models.py", folder, "--router", "decided"]
    subprocess.run([*maker, *words], check=True)


@pytest.fixture(scope="session")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """SGLang's Python, the checkout's own entry points, and tiny random checkpoints."""
    python, folder = sglang_python(), tmp_path_factory.mktemp("sglang")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declare(folder, "megatrace", project["entry-points"][PLUGINS])
    declare(folder, "megatrace_cpu_shim", {"megatrace_cpu_shim": "megatrace_cpu_shim:register"})
    models = folder / "models"
    make_models(python, models)
    path = (folder, ENVIRONMENT / "site", ROOT)
    return Environment(python, path, models / "target", models / "draft")


@pytest.fixture(scope="session")
def nvfp4(environment: Environment, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """The environment with a model whose experts are NVFP4, but for the first and last layer's."""
    models = tmp_path_factory.mktemp("nvfp4")
    make_models(environment.python, models, "--experts", "nvfp4")
    return replace(environment, target=models / "target", draft=models / "draft")


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
