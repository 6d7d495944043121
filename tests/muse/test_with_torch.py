"""Runs each file of ``with_torch`` in SGLang's environment, which has torch.

Where torch is at hand these files are collected like any other, and this one is not.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.sglang_env.place import ENVIRONMENT, sglang_python

ROOT = Path(__file__).resolve().parents[2]
FILES = [
    pytest.param(path.name, marks=[pytest.mark.gpu] * path.name.endswith("_gpu.py"))
    for path in sorted((Path(__file__).parent / "with_torch").glob("test_*.py"))
]
CHATTER = ("-q", "--no-header", "-p", "no:cacheprovider", "--color=no")


@pytest.fixture(scope="session")
def python() -> Path:
    return sglang_python()


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_needs_torch(name: str, python: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [
            python,
            "-m",
            "pytest",
            *CHATTER,
            f"--basetemp={tmp_path}/t",
            f"tests/muse/with_torch/{name}",
        ],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ENVIRONMENT / "site"), str(ROOT)])},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        pytest.fail(f"{done.stdout}\n{done.stderr}", pytrace=False)
