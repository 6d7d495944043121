"""Real processes for the tests: Python of this checkout that says when it is ready."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@contextmanager
def python(code: str, *args: object) -> Iterator[subprocess.Popen[str]]:
    """Run ``code`` until it prints ``ready``; killed at the end."""
    with ready([sys.executable, "-c", textwrap.dedent(code), *map(str, args)]) as process:
        yield process


def send_go(process: subprocess.Popen[str]) -> None:
    """Let a process that waits for a line go on."""
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()


@contextmanager
def ready(command: list[str]) -> Iterator[subprocess.Popen[str]]:
    """Run ``command`` until it prints ``ready``; killed at the end."""
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()
