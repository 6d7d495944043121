"""Step time of a recorded SGLang server against the same server unrecorded, on one GPU.

    python tests/bench/bench_sglang_gpu.py MODEL [--rounds 40] [-o figures.json] [-- ARGS...]

Starts three servers on one GPU (ARGS go to all), one of them recorded, then asks them in
turn, one at a time, there and back: a decode of ``--tokens`` tokens each. Prints the ratio
of wall time a token of the recorded one to the mean of the two plain ones with its 95 %
interval over the rounds, and the same ratio of the plain ones to each other (A/A): two
servers differ by more than two requests to one.
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

RECORDED, PLAIN, PLAIN_TOO = 31101, 31102, 31103
PORTS = (RECORDED, PLAIN, PLAIN_TOO)
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
    """The figures of ``--rounds`` rounds."""
    ratios, noise, plain_us = [], [], []
    for _ in range(8):
        for port in PORTS:
            us_a_token(port, options.tokens)
    for _ in range(options.rounds):
        us = dict.fromkeys(PORTS, 0.0)
        for port in (*PORTS, *reversed(PORTS)):
            us[port] += us_a_token(port, options.tokens) / 2
        ratios.append(2 * us[RECORDED] / (us[PLAIN] + us[PLAIN_TOO]))
        noise.append(us[PLAIN] / us[PLAIN_TOO])
        plain_us.append((us[PLAIN] + us[PLAIN_TOO]) / 2)
    return {
        "rounds": options.rounds,
        "tokens": options.tokens,
        "plain_us_a_token": statistics.median(plain_us),
        "recorded_to_plain": interval(ratios),
        "plain_to_plain": interval(noise),
    }


def main() -> int:
    """Start, measure, stop, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--rounds", type=int, default=40)
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
        port: start(port, options, options.capture if port == RECORDED else None) for port in PORTS
    }
    try:
        for port, process in servers.items():
            wait_ready(port, process, until_s)
        print("all ready", flush=True)
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
