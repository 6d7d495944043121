"""Step time of a recorded SGLang server against the same server unrecorded, on one GPU.

    python tests/bench/bench_sglang_gpu.py MODEL [--pairs 40] [-o figures.json] [-- ARGS...]

Starts both servers on one GPU (ARGS go to both), then asks them in turn, one at a time, in
the order recorded, plain, plain, recorded: a decode of ``--tokens`` tokens each. Prints the
ratio of wall time a token, its 95 % interval over the rounds, and the same ratio of the two
plain requests of each round (A/A: the noise).
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

RECORDED, PLAIN = 31101, 31102
T_95 = 1.96


def start(port: int, options: argparse.Namespace, capture: Path | None) -> subprocess.Popen[bytes]:
    """Start one server; with ``capture`` under ``megatrace record``."""
    server = ["--model-path", options.model, "--host", "127.0.0.1", "--port", str(port)]
    if capture is None:
        command = [sys.executable, "-m", "sglang.launch_server"]
    else:
        record = [sys.executable, "-m", "megatrace", "record", "--force", "-o", str(capture)]
        command = [*record, "--", "sglang.launch_server"]
    with Path(f"{options.log}-{port}.log").open("wb") as log:
        return subprocess.Popen(
            [*command, *server, *options.args], stdout=log, stderr=log, env=os.environ
        )


def post(port: int, path: str, body: dict[str, Any] | None) -> Any:
    """POST ``body`` (None: GET); returns the answer's JSON, or its text."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}{path}", data, {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        text = answer.read()
    return json.loads(text) if text.startswith((b"{", b"[")) else text


def wait_ready(port: int, process: subprocess.Popen[bytes], until_s: float) -> None:
    """Wait for the health endpoint; SystemExit where the server dies or takes too long."""
    while time.monotonic() < until_s:
        if process.poll() is not None:
            raise SystemExit(f"the server on {port} ended with {process.returncode}")
        try:
            post(port, "/health_generate", None)
            return
        except OSError:
            time.sleep(1)
    raise SystemExit(f"the server on {port} is not ready")


def us_a_token(port: int, tokens: int) -> float:
    """Wall time a token of one greedy decode."""
    sampling = {"max_new_tokens": tokens, "temperature": 0, "ignore_eos": True}
    begin = time.perf_counter()
    post(port, "/generate", {"text": "hello", "sampling_params": sampling})
    return (time.perf_counter() - begin) / tokens * 1e6


def interval(ratios: list[float]) -> dict[str, float]:
    """Mean and 95 % interval of the mean, in percent over 1."""
    mean = statistics.fmean(ratios)
    half = T_95 * statistics.stdev(ratios) / len(ratios) ** 0.5
    return {
        "mean_pct": 100 * (mean - 1),
        "low_pct": 100 * (mean - half - 1),
        "high_pct": 100 * (mean + half - 1),
        "median_pct": 100 * (statistics.median(ratios) - 1),
    }


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """The figures of ``--pairs`` rounds."""
    ratios, noise, plain_us = [], [], []
    for _ in range(8):
        for port in (RECORDED, PLAIN):
            us_a_token(port, options.tokens)
    for _ in range(options.pairs):
        a1, b1, b2, a2 = (
            us_a_token(port, options.tokens) for port in (RECORDED, PLAIN, PLAIN, RECORDED)
        )
        ratios.append((a1 + a2) / (b1 + b2))
        noise.append(b1 / b2)
        plain_us.append((b1 + b2) / 2)
    return {
        "rounds": options.pairs,
        "tokens": options.tokens,
        "plain_us_a_token": statistics.median(plain_us),
        "recorded_to_plain": interval(ratios),
        "plain_to_plain": interval(noise),
    }


def main() -> int:
    """Start, measure, stop, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--pairs", type=int, default=40)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--ready-s", type=float, default=400)
    parser.add_argument("--log", default="server")
    parser.add_argument("--capture", type=Path, default=Path("sglang.mtr"))
    parser.add_argument("-o", "--out", type=Path)
    words = sys.argv[1:]
    split = words.index("--") if "--" in words else len(words)
    options = parser.parse_args(words[:split])
    options.args = words[split + 1 :]
    until_s = time.monotonic() + options.ready_s
    servers = {
        RECORDED: start(RECORDED, options, options.capture),
        PLAIN: start(PLAIN, options, None),
    }
    try:
        for port, process in servers.items():
            wait_ready(port, process, until_s)
        print("both ready", flush=True)
        figures = measure(options)
    finally:
        for process in servers.values():
            process.send_signal(signal.SIGTERM)
        for process in servers.values():
            process.wait(60)
    text = json.dumps(figures, indent=1)
    print(text)
    if options.out:
        options.out.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
