"""Step time of a recorded SGLang server against the same server unrecorded.

    python -m tests.bench.bench_sglang [--model-path SLICE/target --draft-path SLICE/draft] \
        [--rounds 40] [-o figures.json] [--json] [-- MORE SERVER ARGUMENTS]

Two servers on one host differ by more than recording costs, so it is one: under ``megatrace
record`` with its defaults, and a plugin of this bench (site/megatrace_bench_hooks.py) takes
megatrace's hooks of every step out of its scheduler and puts them back. While they are out the
recorder is stopped too (SIGSTOP). A round asks the same greedy request of the server recorded,
plain, and plain again, there and back. Prints wall time a step (a verify, or a token where nothing
is drafted), the ratio of recorded to plain with the 95 % interval of its mean, and the same of
plain to plain again (A/A).

Plain is without hooks of the host, not without a traced kernel: the ratio says nothing of a
megakernel. Of several schedulers (tensor parallel) only the first to answer is waited for.

Without a GPU it serves a tiny model on the CPU: that shows that it works, no figures.
"""

from __future__ import annotations

import argparse
import json
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from megatrace.jit.compilers import gpu_chip
from megatrace.paths import SHARED_MEMORY
from tests.bench.recorded_server import Server, end_of, parsed, parser_of, recorded_server, say

RECORDED, PLAIN, AGAIN = "recorded", "plain", "plain again"
CASES = (RECORDED, PLAIN, AGAIN)
BARE, HOOKED = range(2)
SETTLE_S = 5.0
T_95 = 1.96


class Switched:
    """A recorded server whose hooks and recorder can be taken away."""

    def __init__(self, server: Server, page: Path, log: Path) -> None:
        self._server, self._log = server, log
        self._page = page.open("r+b", buffering=0)

    def wake(self) -> None:
        """Let the recorder go on: a stopped one would not end."""
        self._server.recorder.send_signal(signal.SIGCONT)

    def hook(self, wanted: int) -> None:
        """Take the hooks out or put them back; nothing may be asked meanwhile."""
        self._server.recorder.send_signal(signal.SIGCONT if wanted == HOOKED else signal.SIGSTOP)
        self._page.seek(0)
        self._page.write(bytes((wanted,)))
        until = time.monotonic() + SETTLE_S
        while self._at(1) != wanted:
            if time.monotonic() > until:
                raise SystemExit(f"the plugin of this bench does not answer\n{end_of(self._log)}")
            time.sleep(0.005)

    def step_us(self, case: str, tokens: int, warm: int) -> float:
        """Wall time a step of one request."""
        self.hook(HOOKED if case == RECORDED else BARE)
        self._server.ask(warm)
        dur_s, meta = self._server.ask(tokens)
        steps = meta.get("spec_verify_ct") or meta["completion_tokens"] - 1
        return 1e6 * dur_s / steps

    def _at(self, index: int) -> int:
        self._page.seek(index)
        return self._page.read(1)[0]


def interval(ratios: Sequence[float]) -> dict[str, float]:
    """Mean and 95 % interval of the mean, in percent over 1."""
    mean = statistics.fmean(ratios)
    half = T_95 * statistics.stdev(ratios) / len(ratios) ** 0.5
    return {
        "mean_pct": 100 * (mean - 1),
        "low_pct": 100 * (mean - half - 1),
        "high_pct": 100 * (mean + half - 1),
    }


def measure(server: Switched, options: argparse.Namespace) -> dict[str, Any]:
    """The figures of the rounds that ``--measure-s`` allows, at least two."""
    for case in CASES:
        server.step_us(case, options.tokens, options.warm)
    rounds: list[dict[str, float]] = []
    until = time.monotonic() + options.measure_s
    while len(rounds) < options.rounds and (time.monotonic() < until or len(rounds) < 2):
        us = dict.fromkeys(CASES, 0.0)
        for case in (*CASES, *reversed(CASES)):
            us[case] += server.step_us(case, options.tokens, options.warm) / 2
        rounds.append(us)
        say(f"round {len(rounds)}: " + ", ".join(f"{k} {v:.0f} us a step" for k, v in us.items()))
    return {
        "rounds": len(rounds),
        "tokens": options.tokens,
        "step_us": {case: statistics.median(us[case] for us in rounds) for case in CASES},
        "recorded_over_plain": interval(
            [2 * us[RECORDED] / (us[PLAIN] + us[AGAIN]) for us in rounds]
        ),
        "plain_over_plain": interval([us[PLAIN] / us[AGAIN] for us in rounds]),
    }


def arguments() -> argparse.Namespace:
    on_gpu = gpu_chip() is not None
    parser = parser_of(__doc__, "bench_sglang")
    parser.add_argument("--rounds", type=int, default=40 if on_gpu else 4)
    parser.add_argument("--tokens", type=int, default=256 if on_gpu else 24, help="of a request")
    parser.add_argument("--warm", type=int, default=16 if on_gpu else 4, help="before each request")
    return parsed(parser)


def main() -> int:
    """Start, measure, stop, print."""
    options = arguments()
    # An end in order by a timeout too: else a server stays, and a recorder that is stopped.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with (
        tempfile.TemporaryDirectory() as folder,
        tempfile.TemporaryDirectory(dir=SHARED_MEMORY) as rings,
    ):
        page = Path(folder) / "page"
        page.write_bytes(bytes((HOOKED, HOOKED)))
        plugin = {"bench_hooks": "megatrace_bench_hooks:register"}
        variables = {"MEGATRACE_BENCH_PAGE": str(page)}
        with recorded_server(options, Path(folder), Path(rings), plugin, (), variables) as server:
            switched = Switched(server, page, options.log)
            try:
                body = measure(switched, options)
            finally:
                switched.wake()
    text = json.dumps(body, indent=1)
    if options.out:
        options.out.write_text(text)
    if options.json:
        print(text)
        return 0
    for name in ("recorded_over_plain", "plain_over_plain"):
        print(f"{name.replace('_', ' ')}: {{mean_pct:+.2f}} % (95 %: {{low_pct:+.2f}} to "
              f"{{high_pct:+.2f}})".format(**body[name]))  # fmt: skip
    print(f"{body['rounds']} rounds; {body['step_us'][PLAIN]:.0f} us a step when plain")
    return 0


if __name__ == "__main__":
    sys.exit(main())
