"""The monitor in a real terminal, driven by keys: tmux is one that a program can read."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.collect.helpers import FAKE_RANK, child_pid, environment, recording
from tests.tui.helpers import H200

pytestmark = pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")

LIMIT_S = 40
MEGATRACE = f"{shlex.quote(sys.executable)} -m megatrace"


class Terminal:
    """A tmux server of its own; a window a viewer."""

    def __init__(self, socket: Path) -> None:
        self._base = ["tmux", "-S", str(socket), "-f", "/dev/null"]
        self._env = {**environment(), "TERM": "xterm-256color"}
        self._env.pop("TMUX", None)

    def tmux(self, *words: str) -> str:
        done = subprocess.run(
            [*self._base, *words], env=self._env, capture_output=True, text=True, check=True
        )
        return done.stdout

    def open(self, name: str, command: str, size: tuple[int, int] = (120, 36)) -> None:
        """Run ``command`` in a session ``name``; what it returned stands there at its end."""
        x, y = map(str, size)
        script = f"{command}; echo it returned $?; exec sleep 600"
        self.tmux("new-session", "-d", "-s", name, "-x", x, "-y", y, "/bin/sh", "-c", script)

    def screen(self, name: str) -> str:
        return self.tmux("capture-pane", "-p", "-t", name)

    def press(self, name: str, *keys: str) -> None:
        self.tmux("send-keys", "-t", name, *keys)

    def shows(self, name: str, *words: str) -> str:
        """Wait until all ``words`` stand there; the screen."""
        return self.until(name, lambda screen: all(word in screen for word in words), str(words))

    def until(self, name: str, holds: Callable[[str], bool], what: str) -> str:
        deadline = time.monotonic() + LIMIT_S
        while not holds(screen := self.screen(name)):
            assert time.monotonic() < deadline, f"{name} never shows {what}:\n{screen}"
            time.sleep(0.1)
        return screen


@pytest.fixture
def terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    monkeypatch.delenv("NO_COLOR", raising=False)
    terminal = Terminal(tmp_path / "tmux")
    try:
        yield terminal
    finally:
        subprocess.run([*terminal._base, "kill-server"], capture_output=True, check=False)


def test_two_viewers_survive_the_servers_death_and_a_new_server(
    terminal: Terminal, tmp_path: Path
) -> None:
    rank = (*FAKE_RANK, "--steps", "100000", "--step-us", "3000", "--obey", "--wait-control")
    terminal.open("one", f"{MEGATRACE} live")
    terminal.shows("one", "waiting for a recording")
    with recording(tmp_path / "a.mtr", *rank, options=("--every", "5")) as recorder:
        server = child_pid(recorder)
        terminal.shows("one", "● live", "33 %", "nothing lost")
        terminal.open("two", f"{MEGATRACE} live", (80, 24))
        terminal.shows("two", "● live", "33 %")
        terminal.press("one", "Enter")
        terminal.shows("one", "b records a burst")
        terminal.press("one", "Escape")
        terminal.tmux("resize-window", "-t", "one", "-x", "80", "-y", "24")
        screen = terminal.shows("one", "● live", "1 layers")
        assert all(len(line) <= 80 for line in screen.splitlines())
        os.kill(server, signal.SIGKILL)
        recorder.wait(30)
        terminal.shows("one", "◌ ended", "33 %")
    terminal.shows("two", "◌ ended")
    terminal.press("two", "q")
    terminal.shows("two", "it returned 0")
    with recording(tmp_path / "b.mtr", *rank, options=("--every", "5")) as recorder:
        terminal.shows("one", "● live", "33 %")
        os.killpg(recorder.pid, signal.SIGKILL)
        terminal.shows("one", "◌ ended")
    terminal.press("one", "2", "3", "question_mark", "Escape", "q")
    screen = terminal.shows("one", "it returned 0")
    assert "Traceback" not in screen


def test_a_capture_is_read_with_the_keys_of_a_terminal(terminal: Terminal) -> None:
    terminal.open("view", f"{MEGATRACE} view {shlex.quote(str(H200))}")
    terminal.shows("view", "22/48 +26?", "nothing lost")
    terminal.press("view", "Down", "Enter")
    terminal.shows("view", "layer  1  stream")
    terminal.press("view", "Enter")
    terminal.shows("view", "loader, warp 0 of each SM", "in the launch")
    terminal.press("view", "Right", "+", "n")
    terminal.tmux("resize-window", "-t", "view", "-x", "80", "-y", "24")
    terminal.shows("view", "empty space")
    terminal.press("view", "q")
    assert "Traceback" not in terminal.shows("view", "it returned 0")


def test_no_colour_means_no_colour(terminal: Terminal) -> None:
    terminal.open("plain", f"NO_COLOR=1 {MEGATRACE} view {shlex.quote(str(H200))}")
    terminal.shows("plain", "####", "= space")
    coloured = terminal.tmux("capture-pane", "-p", "-e", "-t", "plain")
    codes = {c for part in coloured.split("\x1b[")[1:] for c in part.split("m")[0].split(";")}
    triples = [p.split("m")[0] for p in coloured.split("\x1b[") if p.startswith(("38;2", "48;2"))]
    assert all(len(set(t.split(";")[2:5])) == 1 for t in triples), codes  # greys at most


def test_a_file_that_is_no_capture_is_an_error_once_the_screen_is_left(
    terminal: Terminal, tmp_path: Path
) -> None:
    path = tmp_path / "some.mtr"
    path.write_text("no capture")
    terminal.open("bad", f"{MEGATRACE} view {shlex.quote(str(path))}")
    terminal.shows("bad", "✗ failed", "not a megatrace capture")
    terminal.press("bad", "q")
    terminal.shows("bad", "megatrace: error:", "it returned 1")
