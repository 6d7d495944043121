"""The course's pages as programs: what they tell the reader to type, and what they say comes out.

Of a page (``examples/NN_name/README.md``) these fenced blocks count:

- ``console``: lines after ``$ `` are commands, the others what they print. Each must stand in the
  output, in this order; the line ``...`` stands for any lines, ``…`` in a line for any text.
  A command that ends in `` &`` runs beside the next ones and is interrupted at the end.
- ``console varies``: the same of what is never twice the same. Numbers are not compared, and bars.
- ``python``, then ``text``: a program, and what it prints, in the same way.
- ``sh``, ``yaml``: needs a GPU or a server. Its calls of megatrace are only read, not run.

Spaces are compared as one: columns may grow.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
COURSE = ROOT / "examples"
PAGES = (
    "01_trace_a_kernel",
    "03_read_a_trace",
    "04_late_prefetch",
    "05_compare_in_ci",
    "06_watch_live",
)
LIMIT_S = 120
_FENCE = re.compile(r"^```([\w ]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_VARIES = re.compile(r"\d|\.\.|…|^[#=%@.]+$|^[kMG]B$")
_FIGURE = re.compile(r"(?<![\w.,-])(\d[\d,]*(?:\.\d+)?) ?(?:us|ns|ms|kB|MB|GB|%|times)(?!\w)")


@dataclass(frozen=True)
class Command:
    """One thing to run, and the lines that it prints."""

    text: str
    expected: tuple[str, ...]
    python: bool = False
    varies: bool = False

    @property
    def beside(self) -> bool:
        return self.text.endswith(" &")


@dataclass(frozen=True)
class Page:
    """One README of the course."""

    path: Path
    text: str

    @classmethod
    def of(cls, name: str) -> Page:
        path = COURSE / name / "README.md"
        return cls(path, path.read_text())

    @property
    def blocks(self) -> list[tuple[str, str]]:
        """Language and text of each fenced block."""
        return [(m[1], m[2]) for m in _FENCE.finditer(self.text)]

    @property
    def prose(self) -> str:
        """What is not in a fenced block."""
        return _FENCE.sub("", self.text)

    @property
    def commands(self) -> list[Command]:
        """What the reader runs, in order."""
        found: list[Command] = []
        blocks = self.blocks
        for i, (language, text) in enumerate(blocks):
            if language in ("console", "console varies"):
                found += _console(text, varies=language != "console")
            elif language == "python":
                after = blocks[i + 1] if i + 1 < len(blocks) else ("", "")
                lines = after[1].splitlines() if after[0] == "text" else ()
                found.append(Command(text, tuple(lines), python=True))
        return found

    @property
    def elsewhere(self) -> list[list[str]]:
        """Calls of megatrace that need a GPU or a server, as words after ``megatrace``."""
        calls = []
        for language, text in self.blocks:
            if language in ("sh", "yaml"):
                joined = text.replace("\\\n", " ")
                calls += re.findall(r"^\s*(?:- run: )?megatrace (.*)$", joined, re.MULTILINE)
        return [shlex.split(call, comments=True) for call in calls]

    @property
    def figures(self) -> list[str]:
        """Numbers with a unit that the prose quotes."""
        return _FIGURE.findall(self.prose)


def _console(text: str, *, varies: bool) -> list[Command]:
    found: list[Command] = []
    for line in text.replace("\\\n", " ").splitlines():
        if line.startswith("$ "):
            found.append(Command(line.removeprefix("$ "), (), varies=varies))
        else:
            last = found.pop()
            found.append(replace(last, expected=(*last.expected, line)))
    return found


class Shell:
    """Runs a page's commands one after the other, in a folder that looks like the checkout."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.beside: list[subprocess.Popen[bytes]] = []
        for name in ("examples", "tests"):
            (folder / name).symlink_to(ROOT / name)
        (folder / "build").mkdir()  # `make demo` makes it
        paths = (str(Path(sys.executable).parent), os.environ["PATH"])
        self.environment = {
            **os.environ,
            "PATH": os.pathsep.join(paths),
            "PYTHONPATH": str(ROOT),
            "COLUMNS": "100",
            "PYTHONUNBUFFERED": "1",  # stdout and stderr in the order of a terminal
        }

    def run(self, command: Command) -> str:
        """What it prints, stdout and stderr; raises CalledProcessError where it fails."""
        if command.beside:
            self._begin(command.text.removesuffix(" &"))
            return ""
        words = [sys.executable, "-c", command.text]
        if not command.python:
            words = ["bash", "-eu", "-c", command.text]
        done = subprocess.run(
            words,
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        assert done.returncode == 0, f"{command.text}: exit code {done.returncode}\n{done.stdout}"
        return done.stdout

    def _begin(self, text: str) -> None:
        """Start it, and wait until a recording has a ring: the reader is no faster."""
        self.beside.append(
            subprocess.Popen(
                ["bash", "-c", f"exec {text}"],
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        )
        deadline = time.monotonic() + LIMIT_S
        while not self._recording():
            assert time.monotonic() < deadline, f"{text}: no session"
            assert self.beside[-1].poll() is None, f"{text}: has ended"
            time.sleep(0.2)

    def _recording(self) -> bool:
        listed = self.run(Command("megatrace sessions --json", ()))
        return any(session["rings"] for session in json.loads(listed)["sessions"])

    def close(self) -> None:
        """End what still runs."""
        for process in self.beside:
            process.send_signal(signal.SIGINT)
        for process in self.beside:
            process.wait(LIMIT_S)


def missing(command: Command, output: str) -> str | None:
    """The first line that the page shows and the command does not print, if there is one."""
    printed = iter(_plain(line) for line in output.splitlines())
    for line in command.expected:
        wanted = _plain(line)
        if wanted in ("", "..."):
            continue
        words = [word for word in wanted.split() if not _VARIES.search(word)]
        pieces = ["", *words, ""] if command.varies else wanted.split("…")
        pattern = re.compile(".*".join(map(re.escape, pieces)))
        if not any(pattern.fullmatch(got) for got in printed):
            return line
    return None


def _plain(line: str) -> str:
    return " ".join(line.split())
