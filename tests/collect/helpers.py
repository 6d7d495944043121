"""What the tests of the recorder share: the program, the fake rank, its environment."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FAKE_RANK = (sys.executable, str(ROOT / "tests/collect/fake_rank.py"))
MEGATRACE = (sys.executable, "-m", "megatrace")
LIMIT_S = 60


def environment(**more: str) -> dict[str, str]:
    """The test's own environment, with the checkout importable."""
    return {**os.environ, "PYTHONPATH": str(ROOT), **more}


def megatrace(*words: object, **kwargs: object) -> subprocess.CompletedProcess[str]:
    """Run ``megatrace words`` to its end."""
    env = kwargs.pop("env", None) or environment()
    return subprocess.run(  # type: ignore[call-overload,no-any-return]
        [*MEGATRACE, *map(str, words)],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
        env=env,
        **kwargs,
    )


def record(output: Path, *command: str, options: tuple[str, ...] = (), **kwargs: object):  # type: ignore[no-untyped-def]
    """``megatrace record -o output options -- command`` to its end."""
    return megatrace("record", "-o", output, *options, "--", *command, **kwargs)


@contextmanager
def recording(
    output: Path, *command: str, options: tuple[str, ...] = (), **kwargs: object
) -> Iterator[subprocess.Popen[str]]:
    """A recording in progress, in a process group of its own; killed whole at the end."""
    process = subprocess.Popen(  # type: ignore[call-overload]
        [*MEGATRACE, "record", "-o", str(output), *options, "--", *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
        start_new_session=True,
        **kwargs,
    )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()
        process.stderr.close()


def child_pid(process: subprocess.Popen[str]) -> int:
    """The child's pid, from the first line the recorder says."""
    assert process.stderr is not None
    return int(process.stderr.readline().split("(pid ")[1].split(")")[0])


def said(process: subprocess.Popen[str]) -> str:
    """What the recorder has said since."""
    assert process.stderr is not None
    return process.stderr.read()


def said_so_far(process: subprocess.Popen[str]) -> Iterator[str]:
    """The recorder's lines, one by one as it says them; ends with it."""
    assert process.stderr is not None
    return iter(process.stderr.readline, "")


def printed(process: subprocess.Popen[str]) -> str:
    """What it printed on stdout."""
    assert process.stdout is not None
    return process.stdout.read()


def wait_until(condition: Callable[[], object], what: str) -> None:
    """Poll until ``condition`` holds; fail loudly after LIMIT_S."""
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"it never came to pass that {what}")
        time.sleep(0.01)


def sessions_left() -> list[str]:
    """Names in the test's runtime directory."""
    root = Path(os.environ["MEGATRACE_RUNTIME_DIR"])
    return sorted(p.name for p in root.iterdir()) if root.exists() else []
