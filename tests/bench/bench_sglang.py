"""Step time of a recorded SGLang server against the same server unrecorded.

    python -m tests.bench.bench_sglang [--model-path SLICE/target --draft-path SLICE/draft] \
        [--measure-s 60] [-o figures.json] [--json] [-- MORE SERVER ARGUMENTS]

Two servers on one host differ by more than recording costs, and so do two requests to one: so it
is one server, and turns of a few steps inside of a request. Under ``megatrace record`` with its
defaults, a plugin of this bench (site/megatrace_bench_hooks.py) takes megatrace's hooks of every
step out of the scheduler and puts them back: recorded, plain, plain again, there and back. While
they are out the recorder is stopped too (SIGSTOP). A step lasts from the begin of its
``Scheduler.run_batch`` to the next one's. Prints the ratio of recorded to plain, turns side by
side, and the same of plain to plain again (A/A): of the median step of a turn, and of its mean
step. The mean step has the host's interruptions in it, and what the recorder has to make up for, as
it goes on: more of its work than a recorded server has. Of the rounds' ratios it says median and
mean, each with its 95 % interval: a host changes its pace now and then, and a round in which it did
stands far off.

Plain is without hooks of the host, not without a traced kernel: the ratio says nothing of a
megakernel. Of several schedulers (tensor parallel) only one is looked at.

Without a GPU it serves a tiny model on the CPU: that shows that it works, no figures.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import statistics
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from megatrace.jit.compilers import gpu_chip
from megatrace.paths import SHARED_MEMORY
from tests.bench.recorded_server import Server, end_of, parsed, parser_of, recorded_server, say
from tests.bench.site.megatrace_bench_hooks import AGAIN, ORDER, PLAIN, RECORDED, STEPS

SETTLE = 3
"""Steps of a turn that its beginning may still be felt in: not for the median."""
T_95 = 1.96
Cycle = list[list[int]]
"""Lengths of the steps of each of ORDER's turns, in ns."""


class Switched:
    """A recorded server whose hooks and recorder take turns."""

    def __init__(self, server: Server, page: Path, seen: Path, log: Path) -> None:
        self._server, self._log = server, log
        self._page = page.open("r+b", buffering=0)
        self._seen = seen.open()

    def turns(self, wanted: bool) -> None:
        """From the next step on."""
        self._page.seek(0)
        self._page.write(struct.pack("ii", wanted, self._server.recorder.pid))

    def wake(self) -> None:
        """Let the recorder go on: a stopped one would not end."""
        self.turns(False)
        self._server.recorder.send_signal(signal.SIGCONT)

    def cycles(self, tokens: int) -> list[Cycle]:
        """The whole cycles of one request, but for the first, which has its prefill."""
        self.turns(True)
        self._server.ask(tokens)
        self.turns(False)
        self._server.ask(2)
        lines = self._seen.readlines()
        if not lines:
            raise SystemExit(f"the plugin of this bench has seen no step\n{end_of(self._log)}")
        return _cycles(json.loads(lines[-1]))[1:]


def _cycles(begun: Sequence[tuple[int, int]]) -> list[Cycle]:
    turns: dict[int, list[int]] = {}
    for (turn, ns), (next_turn, next_ns) in pairwise(begun):
        # The last of a turn ends in the next one's hooks.
        if turn == next_turn:
            turns.setdefault(turn, []).append(next_ns - ns)
    lasted = [turns[turn] for turn in sorted(turns) if len(turns[turn]) == STEPS - 1]
    whole = len(lasted) // len(ORDER)
    return [lasted[i * len(ORDER) : (i + 1) * len(ORDER)] for i in range(whole)]


def intervals(ratios: Sequence[float]) -> dict[str, dict[str, float]]:
    """Median and mean with their 95 % intervals, in percent over 1: by ranks, by the normal law."""
    ordered, count = sorted(ratios), len(ratios)
    reach = T_95 * count**0.5 / 2
    low = ordered[max(0, math.floor(count / 2 - reach) - 1)]
    high = ordered[min(count - 1, math.ceil(count / 2 + reach))]
    mean, half = statistics.fmean(ratios), T_95 * statistics.stdev(ratios) / count**0.5
    found = {
        "median": (statistics.median(ratios), low, high),
        "mean": (mean, mean - half, mean + half),
    }
    names = ("pct", "low_pct", "high_pct")
    return {
        name: {key: 100 * (at - 1) for key, at in zip(names, of, strict=True)}
        for name, of in found.items()
    }


def figures(cycles: Sequence[Cycle]) -> dict[str, Any]:
    """Ratios of the cycles' turns, of their median and of their mean steps; those medians."""

    def of(case: int, cycle: Cycle, middle: Callable[[list[int]], float]) -> float:
        steps = (turn for turn, which in zip(cycle, ORDER, strict=True) if which == case)
        return statistics.fmean(middle(turn) for turn in steps)

    result: dict[str, Any] = {
        "rounds": len(cycles),
        "turns_us": [[statistics.median(turn[SETTLE:]) / 1e3 for turn in c] for c in cycles],
    }
    settled: dict[str, Callable[[list[int]], float]] = {
        "median": lambda turn: statistics.median(turn[SETTLE:]),
        "mean": statistics.fmean,
    }
    for name, middle in settled.items():
        ns = [[of(case, c, middle) for case in (RECORDED, PLAIN, AGAIN)] for c in cycles]
        result[name] = {
            "plain_step_us": statistics.median((plain + again) / 2e3 for _, plain, again in ns),
            "recorded_over_plain": intervals([2 * r / (p + a) for r, p, a in ns]),
            "plain_over_plain": intervals([plain / again for _, plain, again in ns]),
        }
    return result


def measure(server: Switched, options: argparse.Namespace) -> dict[str, Any]:
    """The figures of the requests that ``--measure-s`` allows, at least one."""
    cycles: list[Cycle] = []
    until = time.monotonic() + options.measure_s
    while time.monotonic() < until or not cycles:
        cycles += server.cycles(options.tokens)
        if len(cycles) < 2:
            raise SystemExit("--tokens: a request has to last three rounds of turns")
        here = figures(cycles)["median"]["recorded_over_plain"]["median"]
        say("{} rounds: {low_pct:+.2f} to {high_pct:+.2f} %".format(len(cycles), **here))
    return {"tokens": options.tokens, **figures(cycles)}


def arguments() -> argparse.Namespace:
    on_gpu = gpu_chip() is not None
    parser = parser_of(__doc__, "bench_sglang")
    parser.set_defaults(measure_s=60.0 if on_gpu else 10.0)
    parser.add_argument("--tokens", type=int, default=8192 if on_gpu else 640, help="of a request")
    return parsed(parser)


def table(body: dict[str, Any]) -> str:
    """The same for people."""
    lines = [f"{body['rounds']} rounds of turns; recorded over plain with 95 % intervals, and A/A"]
    for step in ("median", "mean"):
        here = body[step]
        lines.append(f"{step} step, plain {here['plain_step_us']:.0f} us")
        for of in ("median", "mean"):
            texts = [
                "{pct:+.2f} % ({low_pct:+.2f} to {high_pct:+.2f})".format(**here[ratio][of])
                for ratio in ("recorded_over_plain", "plain_over_plain")
            ]
            lines.append(f"  {of:6} of the rounds  {texts[0]}, A/A {texts[1]}")
    return "\n".join(lines)


def main() -> int:
    """Start, measure, stop, print."""
    options = arguments()
    # An end in order by a timeout too: else a server stays, and a recorder that is stopped.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with (
        tempfile.TemporaryDirectory() as folder,
        tempfile.TemporaryDirectory(dir=SHARED_MEMORY) as rings,
    ):
        page, seen = Path(folder) / "page", Path(folder) / "seen"
        page.write_bytes(bytes(8))
        seen.touch()
        plugin = {"bench_hooks": "megatrace_bench_hooks:register"}
        variables = {
            "MEGATRACE_BENCH_PAGE": os.fspath(page),
            "MEGATRACE_BENCH_SEEN": os.fspath(seen),
        }
        with recorded_server(options, Path(folder), Path(rings), plugin, (), variables) as server:
            switched = Switched(server, page, seen, options.log)
            try:
                body = measure(switched, options)
            finally:
                switched.wake()
    text = json.dumps(body, indent=1)
    if options.out:
        options.out.write_text(text)
    print(text if options.json else table(body))
    return 0


if __name__ == "__main__":
    sys.exit(main())
