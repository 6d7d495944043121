"""A wheel is complete: it works away from the checkout, with nothing of it in sight."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.house.tree import ROOT

CAPTURE = ROOT / "examples" / "01_trace_a_kernel" / "h200.mtr"


@dataclass(frozen=True, slots=True)
class Installed:
    """A wheel, and an environment that holds it and not the checkout."""

    wheel: Path
    env: Path

    def run(self, *command: str, ok: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a program of the environment, in a folder that is not the checkout."""
        program = self.env / "bin" / command[0]
        clean = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
        done = subprocess.run(
            [program, *command[1:]], cwd=self.env, env=clean, capture_output=True, text=True
        )
        assert (done.returncode == 0) == ok, done.stderr
        return done


def call(*command: str | Path) -> None:
    done = subprocess.run([*command], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    folder = tmp_path_factory.mktemp("wheel")
    call(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder)
    (wheel,) = folder.glob("megatrace-*.whl")
    env = folder / "env"
    venv.create(env, with_pip=False, symlinks=True)
    python = env / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
    call(*pip, "--no-deps", "--no-index", "--disable-pip-version-check", wheel)
    # What megatrace needs comes from the environment of the tests, so that no index is
    # asked. A line of a .pth file adds a folder but not that folder's own .pth files:
    # the editable checkout stays out.
    (site,) = (env / "lib").glob("python3*/site-packages")
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return Installed(wheel, env)


def test_the_program_of_a_wheel_runs_from_the_wheel(installed: Installed) -> None:
    code = "import megatrace; print(megatrace.__file__)"
    where = installed.run("python", "-c", code).stdout.strip()
    assert Path(where).is_relative_to(installed.env)
    assert installed.run("megatrace", "--version").stdout.startswith("megatrace ")


def test_a_wheel_ships_its_headers(installed: Installed) -> None:
    folder = Path(installed.run("megatrace", "include-dir").stdout.strip())
    assert folder.is_relative_to(installed.env)
    shipped = {path.name for path in (folder / "megatrace").iterdir()}
    assert shipped == {path.name for path in (ROOT / "megatrace/include/megatrace").iterdir()}


@pytest.mark.parametrize("name", ["kernels", "viewers"])
def test_a_wheel_ships_the_folders_that_are_not_python(installed: Installed, name: str) -> None:
    code = f"from megatrace.paths import asset_dir; print(asset_dir() / {name!r})"
    folder = Path(installed.run("python", "-c", code).stdout.strip())
    assert folder.is_relative_to(installed.env)
    files = {p.relative_to(ROOT / name) for p in (ROOT / name).rglob("*") if p.is_file()}
    assert {p.relative_to(folder) for p in folder.rglob("*") if p.is_file()} >= files


def test_a_wheel_reads_a_capture(installed: Installed) -> None:
    assert "megatrace" in installed.run("megatrace", "info", str(CAPTURE), "--json").stdout


def test_a_wheel_announces_itself_to_sglang(installed: Installed) -> None:
    code = (
        "from importlib.metadata import entry_points as e;"
        "print(*(p.load().__name__ for p in e(group='sglang.srt.plugins', name='megatrace')))"
    )
    assert installed.run("python", "-c", code).stdout.split() == ["register"]


def test_a_wheel_holds_nothing_of_the_tests(installed: Installed) -> None:
    tops = {name.partition("/")[0] for name in zipfile.ZipFile(installed.wheel).namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"megatrace"}


def test_an_editable_checkout_finds_its_folders_where_they_lie() -> None:
    from megatrace.paths import asset_dir

    assert asset_dir() == ROOT
