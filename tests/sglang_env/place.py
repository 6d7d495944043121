"""Where the environment of ``make_venv.py`` is kept between runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ENVIRONMENT = Path(__file__).resolve().parent
PLACE = "MEGATRACE_SGLANG_VENV"
"""Names another place than the user's cache."""

_OFFLINE = ("Temporary failure in name resolution", "NewConnectionError", "Max retries exceeded")


def sglang_python() -> Path:
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
