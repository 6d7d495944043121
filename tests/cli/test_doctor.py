"""``megatrace doctor``: a row each, a fix for what is not right."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from megatrace.cli import checks
from tests.collect.helpers import environment, megatrace

ROWS = (
    "python",
    "/dev/shm",
    "runtime dir",
    "memlock limit",
    "driver",
    "nvcc",
    "host compiler",
    "build cache",
    "sglang",
    "sglang plugin",
)


def test_every_precondition_has_a_row_and_every_trouble_a_fix() -> None:
    done = megatrace("doctor", "--json")
    found = json.loads(done.stdout)["checks"]
    assert tuple(check["name"] for check in found) == ROWS
    for check in found:
        assert check["state"] in ("ok", "warn", "fail")
        assert bool(check["fix"]) == (check["state"] != "ok"), check


def test_a_runtime_directory_open_to_others_fails_with_its_fix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "open"
    root.mkdir(mode=0o755)
    monkeypatch.setenv("MEGATRACE_RUNTIME_DIR", str(root))
    done = megatrace("doctor")
    assert done.returncode == 1
    assert f"chmod 700 {root}" in done.stdout


def test_a_small_shared_memory_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "SHM_WANTED_BYTES", 1 << 60)
    (check,) = [c for c in checks.run_checks() if c.name == "/dev/shm"]
    assert check.state == "warn"
    assert "--shm-size" in check.fix


@pytest.mark.parametrize(
    ("name", "below"),
    [("MEGATRACE_CACHE", ""), ("XDG_CACHE_HOME", "megatrace"), ("HOME", ".cache/megatrace")],
)
def test_the_build_cache_is_where_builds_put_it(tmp_path: Path, name: str, below: str) -> None:
    def row(place: Path) -> dict[str, str]:
        env = environment(**{name: str(place)})
        for other in {"MEGATRACE_CACHE", "XDG_CACHE_HOME"} - {name}:
            env.pop(other, None)
        found = json.loads(megatrace("doctor", "--json", env=env).stdout)["checks"]
        return next(check for check in found if check["name"] == "build cache")

    good = row(tmp_path / "fresh")
    assert (good["state"], good["found"]) == ("ok", str(tmp_path / "fresh" / below))
    assert not (tmp_path / "fresh").exists()
    (tmp_path / "file").write_text("in the way")
    bad = row(tmp_path / "file")
    assert bad["state"] == "warn"
    assert str(tmp_path / "file") in bad["found"]
    assert "set MEGATRACE_CACHE" in bad["fix"]


def test_missing_tools_are_warnings(tmp_path: Path) -> None:
    env = environment(PATH=str(tmp_path), CUDA_HOME=str(tmp_path))
    env.pop("CXX", None)
    found = json.loads(megatrace("doctor", "--json", env=env).stdout)["checks"]
    states = {check["name"]: check["state"] for check in found}
    assert (states["nvcc"], states["host compiler"]) == ("warn", "warn")
