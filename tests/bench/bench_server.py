"""The megakernel against SGLang's own forward, both inside one running server.

    python -m tests.bench.make_slice /dev/shm/slice --experts nvfp4
    python -m tests.bench.bench_server --model-path /dev/shm/slice/target \
        --draft-path /dev/shm/slice/draft [--rounds 3] [-o figures.json] [--json] \
        [-- --speculative-draft-load-format dummy MORE SERVER ARGUMENTS]

One server under ``megatrace record`` holds three graphs of every verify (a plugin of this bench
captures each shape once a path, see site/megatrace_bench_switch.py): SGLang's own forward, the
megakernel without a tracer, and with one. The same requests go through each in turn, there and
back (ABBA), and the traced one is recorded in three ways that the control page asks for:
counters on every step, counters and a timeline on one step in 32 each ("recorded"; the default
chooses the latter by what the host drains), a timeline on every step. Of each:

    span      of the verify graph, first node to last, by events inside of the graph: of the
              median verify
    mean      the same of the mean verify, in which the steps that keep something have their part:
              of about 77 verifies a visit, two or three of each kind
    step      wall time of a request over its steps, draft, sampling and scheduler included
    tokens/s  of the wall

as medians over the rounds with their range; how much faster than SGLang's own it is and what it
costs over the untraced kernel, paired round by round; and the first visit of each against its
second (A/A). Before that every path runs on the very inputs of the same verifies: their logits
are compared, and the experts that a layer's rows hit are counted, which its time follows.

``--out`` is written anew after every visit: time on a GPU may end before the last round.

A random draft is never right: ``--accept`` is the accept length that SGLang pretends. Without
a GPU it serves a tiny model on the CPU, without graphs: that shows that it works, no figures.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from megatrace.errors import RingError
from megatrace.jit.compilers import gpu_chip
from megatrace.paths import SHARED_MEMORY
from megatrace.ring.control import Control, read_control
from megatrace.ring.file import RingFile
from megatrace.ring.wishes import send_wish
from tests.bench.recorded_server import Server, parsed, parser_of, recorded_server, say

PATHS = ("sglang", "untraced", "traced")
RUN, SPANS, COMPARE = range(3)
SETTLE_S = 5.0


@dataclass(frozen=True)
class Variant:
    """A path, and what the recorder is asked for while it runs."""

    name: str
    path: int
    asks: dict[str, str] = field(default_factory=dict)

    def granted(self, control: Control) -> bool:
        """Whether the control page says so."""
        if not self.asks:
            return True
        timeline = self.asks["level"] == "timeline"
        if (control.level > 1) != timeline or control.counters_every != int(self.asks["counters"]):
            return False
        return not timeline or (control.every_n == 1) == (self.asks["every"] == "1")


COUNTERS = {"level": "counters", "counters": "1"}
VARIANTS = (
    Variant("sglang", 0, COUNTERS),
    Variant("untraced", 1, COUNTERS),
    Variant("counters", 2, COUNTERS),
    Variant("recorded", 2, {"level": "timeline", "every": "32", "counters": "32"}),
    Variant("every step", 2, {"level": "timeline", "every": "1", "counters": "1"}),
)
OWN, UNTRACED = "sglang", "untraced"
RATIOS = (
    *("faster_span", "faster_step", "cost_span", "cost_mean", "cost_step"),
    *("a_over_a_span", "a_over_a_mean", "a_over_a_step"),
)


@dataclass
class Visit:
    """What one variant did once: median and mean of its verifies' spans, its request's wall."""

    span_us: float
    mean_us: float
    step_us: float
    tokens_per_s: float


class Bench:
    """A running server with the switch, and where its recorder listens."""

    def __init__(self, server: Server, scratch: Path, runtime: Path) -> None:
        self._server, self._runtime = server, runtime
        self._page = (scratch / "page").open("r+b", buffering=0)
        self._seen = (scratch / "seen").open()

    def switch(self, path: int, mode: int = RUN) -> None:
        """Which path the next verify takes, and what is done beside it."""
        self._page.seek(0)
        self._page.write(bytes((path, mode)))

    def seen(self) -> list[dict[str, Any]]:
        """What the server's plugin has written since the last call."""
        return [json.loads(line) for line in self._seen]

    def ask(self, tokens: int) -> tuple[float, dict[str, Any]]:
        """(seconds, meta_info) of one greedy request."""
        return self._server.ask(tokens)

    def wish(self, variant: Variant) -> None:
        """Ask the recorder, and wait until the kernel's control page says so."""
        (ring,) = self._runtime.glob("*/rank*.ring")
        if not variant.asks or self._granted(ring, variant):
            return
        send_wish(ring.parent, variant.asks)
        until = time.monotonic() + SETTLE_S
        while not self._granted(ring, variant):
            if time.monotonic() > until:
                raise SystemExit(f"the recorder does not grant {variant.asks}")
            time.sleep(0.02)

    def visit(self, variant: Variant, tokens: int, warm: int) -> Visit:
        """One request for the wall, one for the spans."""
        begin = time.monotonic()
        self.wish(variant)
        self.switch(variant.path)
        self.ask(warm)
        dur_s, meta = self.ask(tokens)
        # The first token is the prefill's.
        steps = meta.get("spec_verify_ct") or meta["completion_tokens"] - 1
        self.seen()
        self.switch(variant.path, SPANS)
        self.ask(tokens)
        self.switch(variant.path)
        lines = [line for line in self.seen() if line["kind"] == "span"]
        spans = [line["us"] for line in lines if line["path"] == PATHS[variant.path]]
        if len(spans) < 3 or len(spans) < len(lines):
            raise SystemExit(f"{variant.name}: {len(spans)} of {len(lines)} verifies were its own")
        span_us, step_us = statistics.median(spans[1:]), 1e6 * dur_s / steps
        mean_us = statistics.fmean(spans[1:])
        visit = Visit(span_us, mean_us, step_us, meta["completion_tokens"] / dur_s)
        say(
            f"{variant.name}: span {span_us:.0f} us, step {step_us:.0f} us, "
            f"{visit.tokens_per_s:.0f} tokens/s; took {time.monotonic() - begin:.1f} s"
        )
        return visit

    def compare(self, tokens: int) -> dict[str, Any]:
        """Every path on the inputs of the same verifies, and the experts these hit."""
        self.seen()
        self.switch(0, COMPARE)
        self.ask(tokens)
        self.switch(0)
        seen = self.seen()
        lines = [line for line in seen if line["kind"] == "compare"]
        hits = [hit for line in seen if line["kind"] == "experts" for hit in line["distinct"]]
        return {
            "answers": {p: _agreement([x for x in lines if x["path"] == p]) for p in PATHS[1:]},
            "experts": {
                "mean": statistics.fmean(hits),
                "layers_by_distinct": {str(n): hits.count(n) for n in sorted(set(hits))},
            },
        }

    @staticmethod
    def _granted(ring: Path, variant: Variant) -> bool:
        with contextlib.suppress(RingError), RingFile.attach(ring) as attached:
            return variant.granted(read_control(attached))
        return False


def _agreement(lines: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """How far one path's answers are from SGLang's own, over all compared verifies."""
    if not lines:
        raise SystemExit("no verify was compared")
    taps = [line["taps_l2"] for line in lines if line["taps_l2"] is not None]
    return {
        "verifies": len(lines),
        "rows": sum(line["rows"] for line in lines),
        "same_token": sum(line["same_token"] for line in lines),
        "logits_l2": spread([line["logits_l2"] for line in lines]),
        "taps_l2": spread(taps) if taps else None,
        "likely_apart": spread([line["likely_apart"] for line in lines]),
        "finite": all(line["finite"] for line in lines),
    }


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median and range."""
    return {"median": statistics.median(values), "low": min(values), "high": max(values)}


def measure(bench: Bench, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """All figures, anew after each visit of each round; no round begins after ``--measure-s``."""
    variants, until = options.variants, time.monotonic() + options.measure_s
    for variant in variants:
        bench.visit(variant, options.tokens, options.warm)
    compared = bench.compare(options.compare)
    rounds: list[dict[str, tuple[Visit, Visit]]] = []
    yield {"rounds": 0, **compared, "figures": {}}
    while len(rounds) < options.rounds and time.monotonic() < until:
        visits: dict[str, list[Visit]] = {v.name: [] for v in variants}
        for variant in (*variants, *reversed(variants)):
            visits[variant.name].append(bench.visit(variant, options.tokens, options.warm))
            begun = {name: [asdict(v) for v in done] for name, done in visits.items()}
            known = figures(rounds) if rounds else {}
            yield {"rounds": len(rounds), **compared, "figures": known, "begun": begun}
        rounds.append({name: (pair[0], pair[1]) for name, pair in visits.items()})
        say(f"round {len(rounds)} of {options.rounds}")
        yield {"rounds": len(rounds), **compared, "figures": figures(rounds)}


def figures(rounds: Sequence[dict[str, tuple[Visit, Visit]]]) -> dict[str, Any]:
    """Of each variant: its medians, its ratios to the two it is held against, its A/A."""

    def mean(visits: tuple[Visit, Visit], name: str) -> float:
        return statistics.fmean(getattr(visit, name) for visit in visits)

    result = {}
    for variant in rounds[0]:
        here: dict[str, Any] = {}
        for name in ("span_us", "mean_us", "step_us", "tokens_per_s"):
            here[name] = spread([mean(r[variant], name) for r in rounds])
        for name in ("span", "mean", "step"):
            us = f"{name}_us"
            own, untraced, this = (
                [mean(r[which], us) for r in rounds] for which in (OWN, UNTRACED, variant)
            )
            pairs = [[getattr(v, us) for v in r[variant]] for r in rounds]
            here[f"faster_{name}"] = spread([a / b for a, b in zip(own, this, strict=True)])
            here[f"cost_{name}"] = spread([a / b for a, b in zip(this, untraced, strict=True)])
            here[f"a_over_a_{name}"] = spread([a / b for a, b in pairs])
        result[variant] = here
    return result


def table(body: dict[str, Any]) -> str:
    """The same for people."""

    def text(value: dict[str, float], pattern: str) -> str:
        low, high = pattern.format(value["low"]), pattern.format(value["high"])
        return f"{pattern.format(value['median'])} ({low} to {high})"

    about = body["about"]
    graphs = ", ".join(about["graphs"]) or "none"
    lines = [f"{about['device']}, span: {about['span']}; attention {about['attention']}"]
    lines.append(f"graphs of the target: {graphs}")
    lines.append(f"flashinfer {'there' if about['flashinfer'] else 'absent'}; {about['versions']}")
    for path, a in body["answers"].items():
        lines.append(
            f"{path} against SGLang's own on {a['verifies']} verifies: {a['same_token']} of "
            f"{a['rows']} tokens the same; relative L2 of logits {text(a['logits_l2'], '{:.1e}')}"
            + (f", of taps {text(a['taps_l2'], '{:.1e}')}" if a["taps_l2"] else "")
        )
    hit = body["experts"]
    lines.append(
        f"distinct experts that a layer's rows hit: {hit['mean']:.2f} on average; "
        + ", ".join(f"{n}: {count}" for n, count in hit["layers_by_distinct"].items())
    )
    if not body["figures"]:
        return "\n".join([*lines, "no round was whole"])
    lines.append(
        f"{body['rounds']} rounds; faster: SGLang's own over this; cost: this over the untraced "
        "kernel"
    )
    rows = [
        ("", "span us", "mean us", "step us", "tokens/s", *(w.replace("_", " ") for w in RATIOS))
    ]
    for name, f in body["figures"].items():
        names = ("span_us", "mean_us", "step_us", "tokens_per_s")
        times = [text(f[k], "{:.0f}") for k in names]
        rows.append((name, *times, *(text(f[k], "{:.3f}") for k in RATIOS)))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines += ["  ".join(c.ljust(w) for c, w in zip(r, widths, strict=True)).rstrip() for r in rows]
    return "\n".join(lines)


@contextlib.contextmanager
def served(options: argparse.Namespace, scratch: Path, runtime: Path) -> Iterator[Bench]:
    """The recorded server with the switch, ready; stopped in the end."""
    (scratch / "page").write_bytes(bytes(2))
    (scratch / "seen").touch()
    variables = {
        "MEGATRACE_BENCH_PAGE": str(scratch / "page"),
        "MEGATRACE_BENCH_SEEN": str(scratch / "seen"),
    }
    if options.accept:
        variables["SGLANG_SIMULATE_ACC_LEN"] = str(options.accept)
    words = ["--enable-nvidia-megakernel"]
    plugin = {"bench_switch": "megatrace_bench_switch:register"}
    with recorded_server(options, scratch, runtime, plugin, words, variables) as server:
        yield Bench(server, scratch, runtime)


def arguments() -> argparse.Namespace:
    on_gpu = gpu_chip() is not None
    parser = parser_of(__doc__, "bench_server")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=512 if on_gpu else 24, help="of a request")
    parser.add_argument("--warm", type=int, default=64 if on_gpu else 4, help="before each visit")
    parser.add_argument(
        "--compare", type=int, default=128 if on_gpu else 16, help="tokens compared"
    )
    parser.add_argument(
        "--accept", type=float, default=6.6 if on_gpu else 2, help="0: do not pretend"
    )
    names = ",".join(variant.name for variant in VARIANTS[2:])
    parser.add_argument("--traced", default=names, help=f"which of {names} (every step: GB/s)")
    options = parsed(parser)
    wanted = (OWN, UNTRACED, *options.traced.split(","))
    options.variants = [variant for variant in VARIANTS if variant.name in wanted]
    return options


def main() -> int:
    options = arguments()
    # An end in order, with what was measured, by a timeout too.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with (
        tempfile.TemporaryDirectory() as folder,
        tempfile.TemporaryDirectory(dir=SHARED_MEMORY) as rings,
        served(options, Path(folder), Path(rings)) as bench,
    ):
        about = next(line for line in bench.seen() if line["kind"] == "about")
        asked = {name: getattr(options, name) for name in ("tokens", "accept", "more")}
        asked["variants"] = [asdict(v) for v in options.variants]
        body: dict[str, Any] = {}
        try:
            for measured in measure(bench, options):
                body = {"about": about, **asked, **measured}
                if options.out:
                    options.out.write_text(json.dumps(body, indent=1))
        except KeyboardInterrupt:
            say("stopped")
    if not body:
        raise SystemExit("stopped before anything was compared")
    print(json.dumps(body, indent=1) if options.json else table(body))
    return 0


if __name__ == "__main__":
    sys.exit(main())
