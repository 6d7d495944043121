"""``megatrace --help`` answers at once: it imports nothing heavy."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("numpy", "pandas", "perfetto", "pyarrow", "rich", "sglang", "textual", "torch")

PROGRAM = """
import sys
from megatrace.cli.main import run
try:
    code = run(sys.argv[1:])
finally:
    print(*sorted(m for m in sys.modules if "." not in m), file=sys.stderr)
sys.exit(code)
"""


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["include-dir"]])
def test_a_plain_question_imports_nothing_heavy(arguments: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout
    loaded = set(done.stderr.split())
    assert not loaded & set(HEAVY)


def test_importing_the_package_imports_nothing_heavy() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import megatrace, sys; print(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert not set(done.stdout.split()) & set(HEAVY)
