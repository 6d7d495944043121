"""What every test gets: a plain environment, and a reason where it cannot run."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Two cores shared with a compiler make any deadline a coin toss. A developer searches
# anew in every run; in CI the same commit always gets the same answer.
settings.register_profile(
    "megatrace",
    deadline=None,
    derandomize="CI" in os.environ,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("megatrace")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs a GPU, aloud, where there is none."""
    if any(Path("/dev").glob("nvidia[0-9]*")):
        return
    no_gpu = pytest.mark.skip(reason="no NVIDIA GPU on this machine")
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(no_gpu)


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No session of the developer is seen or touched; output is 80 columns, no colour."""
    for name in ("MEGATRACE_SESSION", "CLICOLOR_FORCE", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MEGATRACE_RUNTIME_DIR", str(tmp_path / "runtime"))
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
