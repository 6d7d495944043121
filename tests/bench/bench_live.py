"""What the monitor costs: first paint, and a viewer's share of a core at 4 Hz with 8 ranks.

    python -m tests.bench.bench_live [--ranks 8] [--seconds 10] [--size 120x40 150x40 200x50]

This program is the recorder: it publishes a page of 8 ranks x 62 layers x 3 roles, and of 132
SMs, every 0.25 s, and no figure on it stays as it was. The viewer is ``megatrace live`` in a
terminal of its own (a pty); from 150 columns on the map stands beside the layers. It needs a
machine that does nothing else: where others use its cores, its caches are cold.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import pty
import select
import statistics
import struct
import subprocess
import sys
import tempfile
import termios
import time
from pathlib import Path

import numpy as np

from megatrace.ring.aggregate import RANK_ROW, AggregatePage
from megatrace.ring.session import Session
from megatrace.ring.sums import Sums

ROOT = Path(__file__).resolve().parents[2]
LAYERS, ROLES, SMS = 62, ("tensor", "math", "loader"), 132
EVERY_S = 0.25


class Server:
    """A session whose sums grow as those of a megakernel do: 171 steps a second."""

    def __init__(self, folder: Path, ranks: int) -> None:
        os.environ["MEGATRACE_RUNTIME_DIR"] = str(folder)
        self.session = Session.create("bench", command=["server"])
        self.page = AggregatePage.create(
            self.session.path, ranks=ranks, layers=LAYERS, roles=ROLES, blocks=SMS
        )
        self.rows = np.zeros(ranks, RANK_ROW)
        self.rows["rank"] = np.arange(ranks)
        self.rows["alive"] = self.rows["device"] = 1
        self.rows["every_n"], self.rows["ns_per_cycle"] = 8, 0.5
        self.sums = Sums.zeros(self.page.shape)
        self.random = np.random.default_rng(1)
        self.due = time.monotonic()

    def turn(self) -> None:
        """Publish, if it is time."""
        if time.monotonic() < self.due:
            return
        self.due += EVERY_S
        self.rows["step"] += round(171 * EVERY_S)
        # Every figure moves by some percent, as those of a server do.
        self._grow(self.sums.seen_launches, 132 * 4, 0)
        self._grow(self.sums.seen_busy, 132 * 4 * 190_000)
        for table in (self.sums.seen_cycles, self.sums.cycles):
            self._grow(table, 132 * 4 * 25_000)
        self._grow(self.sums.sm_busy[:, :SMS], 4 * 62 * 190_000)
        self._grow(self.sums.sm_cycles[:, :SMS], 4 * 62 * 25_000)
        self.sums.prefetch[..., 0] += 100
        self.sums.prefetch[..., 1] += self.random.integers(
            5, 15, self.sums.prefetch.shape[:2], np.uint64
        )
        asked = {"level": "timeline", "every": "auto", "steps": "all", "sms": "all"}
        self.page.publish(ranks=self.rows, sums=self.sums, note={"asked": asked})

    def _grow(self, table: np.ndarray, mean: int, noise: float = 0.05) -> None:  # type: ignore[type-arg]
        table += (mean * (1 + noise * self.random.standard_normal(table.shape))).astype(np.uint64)


class Viewer:
    """``megatrace`` with some words, in a terminal of its own."""

    def __init__(self, words: list[str], columns: int, rows: int) -> None:
        self.begin_s = time.monotonic()
        self.pid, self.fd = pty.fork()
        if not self.pid:
            env = {**os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor"}
            env |= {"PYTHONPATH": str(ROOT)}
            os.execve(sys.executable, [sys.executable, "-m", "megatrace", *words], env)
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def read(self, wait_s: float) -> bytes:
        """What it has drawn."""
        if not select.select([self.fd], [], [], wait_s)[0]:
            return b""
        try:
            return os.read(self.fd, 1 << 20)
        except OSError:
            return b""

    def cpu_s(self) -> float:
        """CPU seconds of all its threads so far, to the nanosecond."""
        tasks = Path(f"/proc/{self.pid}/task").glob("*/schedstat")
        return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9

    def quit(self) -> None:
        """Press q."""
        os.write(self.fd, b"q")
        deadline = time.monotonic() + 5
        while time.monotonic() < deadline and os.waitpid(self.pid, os.WNOHANG) == (0, 0):
            self.read(0.05)
        os.close(self.fd)


def first_paint_s(
    server: Server | None, words: list[str], columns: int, rows: int, sign: bytes
) -> float:
    """From the start of the process to ``sign`` on the screen."""
    viewer = Viewer(words, columns, rows)
    seen = b""
    while sign not in seen and time.monotonic() - viewer.begin_s < 20:
        if server is not None:
            server.turn()
        seen += viewer.read(0.01)
    took = time.monotonic() - viewer.begin_s
    viewer.quit()
    return took


def share_of_a_core(
    server: Server, seconds: float, columns: int, rows: int, keys: bytes
) -> tuple[float, int]:
    """A viewer's CPU share after it has settled, and the bytes it draws a second."""
    viewer = Viewer(["live"], columns, rows)
    _drive(server, viewer, 4.0)
    os.write(viewer.fd, keys)
    _drive(server, viewer, 1.0)
    before, begin = viewer.cpu_s(), time.monotonic()
    drawn = _drive(server, viewer, seconds)
    share = (viewer.cpu_s() - before) / (time.monotonic() - begin)
    viewer.quit()
    return share, round(drawn / seconds)


def _drive(server: Server, viewer: Viewer, seconds: float) -> int:
    drawn, end = 0, time.monotonic() + seconds
    while time.monotonic() < end:
        server.turn()
        drawn += len(viewer.read(0.02))
    return drawn


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--size", nargs="+", type=_size, default=[(120, 40), (150, 40), (200, 50)])
    parser.add_argument("--repeat", type=int, default=5)
    options = parser.parse_args()
    capture = ROOT / "examples/01_trace_a_kernel/h200.mtr"
    plain = [_python_s() for _ in range(options.repeat)]
    print(f"python itself starts in {statistics.median(plain):.2f} s", flush=True)
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="megatrace-bench-") as name:
        server = Server(Path(name), options.ranks)
        for columns, rows in options.size:
            print(f"{columns} x {rows}:", flush=True)
            for words, sign in (
                (["live"], b"us/launch"),
                (["view", str(capture)], b"megatrace view"),
            ):
                times = [
                    first_paint_s(server, words, columns, rows, sign) for _ in range(options.repeat)
                ]
                print(
                    f"  first paint of {words[0]}: {statistics.median(times):.2f} s "
                    f"[{min(times):.2f}, {max(times):.2f}]",
                    flush=True,
                )
            if not options.seconds:
                continue
            for view, keys in (("layers", b"1"), ("ranks", b"2"), ("map", b"3")):
                share, drawn = share_of_a_core(server, options.seconds, columns, rows, keys)
                print(
                    f"  {options.ranks} ranks, {view}: {100 * share:.1f} % of a core, "
                    f"{drawn / 1000:.0f} kB/s drawn",
                    flush=True,
                )
        server.session.close(remove=True)


def _size(text: str) -> tuple[int, int]:
    columns, rows = text.split("x")
    return int(columns), int(rows)


def _python_s() -> float:
    begin = time.monotonic()
    subprocess.run([sys.executable, "-c", "pass"], check=True)
    return time.monotonic() - begin


if __name__ == "__main__":
    main()
