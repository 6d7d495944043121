"""Serves Muse Spark with the megakernel in SGLang, records it, and shows what was seen.

    python examples/02_record_sglang/run.py [-o server.mtr] [--model-path DIR] [--draft-path DIR]
                                            [--tokens 48] [-- MORE SERVER ARGUMENTS]

On a machine with an NVIDIA GPU run it with the Python that has SGLang. Elsewhere it makes an
environment for SGLang on the CPU (a minute, 2.7 GB, kept), and the same kernel source runs there,
slowly. Without a model it serves a tiny random one, with a draft that is as random.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
import tomllib
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path

from megatrace.jit.compilers import gpu_chip

ROOT = Path(__file__).resolve().parents[2]
TEST_ENVIRONMENT = ROOT / "tests" / "sglang_env"
GROUP = "sglang.srt.plugins"
PROMPTS = ("A megakernel runs a whole layer as one launch.", "hello there", "one, two, three, ")
READY_S = 900
EVERY = "8"
"""Of so many steps one has a timeline: there are few."""

COMMON = "--grammar-backend none --kv-cache-dtype bf16"
MEGAKERNEL = "--enable-nvidia-megakernel"
# Graphs of prefills take two minutes to capture, and these prompts are short.
GPU = "--attention-backend triton --sampling-backend pytorch --disable-prefill-cuda-graph"
CPU = "--device cpu --attention-backend torch_native --max-total-tokens 4096 --skip-server-warmup"
CPU_VARIABLES = {
    "SGLANG_USE_CPU_ENGINE": "1",
    "TORCHDYNAMO_DISABLE": "1",
    "OMP_NUM_THREADS": "1",
    "MEGATRACE_SHIM_DFLASH": "1",
    "MEGATRACE_SHIM_GPU": "sm_90",
}


@dataclass
class Place:
    """What the server runs on."""

    python: Path
    words: list[str]
    path: list[Path]
    variables: dict[str, str] = field(default_factory=dict)

    @classmethod
    def here(cls, scratch: Path) -> Place:
        path = [declared(scratch, "megatrace", own_entry_points()), ROOT]
        if gpu_chip() is not None:
            return cls(Path(sys.executable), GPU.split(), path)
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        venv = os.environ.get("MEGATRACE_SGLANG_VENV") or str(cache / "megatrace" / "sglang-venv")
        print(f"no GPU here: SGLang runs on the CPU, in {venv}", flush=True)
        make = [sys.executable, str(TEST_ENVIRONMENT / "make_venv.py"), venv]
        python = Path(
            subprocess.run(make, check=True, capture_output=True, text=True).stdout.strip()
        )
        declared(scratch, "megatrace_cpu_shim", {"cpu_shim": "megatrace_cpu_shim:register"})
        return cls(python, CPU.split(), [*path, TEST_ENVIRONMENT / "site"], CPU_VARIABLES)


def own_entry_points() -> dict[str, str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return dict(project["entry-points"][GROUP])


def declared(folder: Path, name: str, entry_points: dict[str, str]) -> Path:
    """Makes the plugins of a checkout known to SGLang without installing it; returns folder."""
    info = folder / f"{name}-0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0\n")
    lines = [f"{key} = {value}" for key, value in entry_points.items()]
    (info / "entry_points.txt").write_text("\n".join([f"[{GROUP}]", *lines]))
    return folder


def arguments() -> argparse.Namespace:
    words = sys.argv[1:]
    split = words.index("--") if "--" in words else len(words)
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--output", type=Path, default=Path("server.mtr"))
    parser.add_argument("--model-path", type=Path, help="a Muse Spark checkpoint")
    parser.add_argument("--draft-path", type=Path, help="a DFlash draft for it")
    parser.add_argument("--tokens", type=int, default=48, help="of each answer")
    options = parser.parse_args(words[:split])
    options.more = words[split + 1 :]
    return options


def models(options: argparse.Namespace, place: Place, scratch: Path) -> list[str]:
    model, draft = options.model_path, options.draft_path
    if model is None:
        maker = TEST_ENVIRONMENT / "make_models.py"
        subprocess.run([place.python, maker, scratch / "models"], check=True)
        model, draft = scratch / "models" / "target", scratch / "models" / "draft"
    words = ["--model-path", str(model)]
    if draft is not None:
        words += ["--speculative-algorithm", "DFLASH"]
        words += ["--speculative-draft-model-path", str(draft)]
    return words


def post(port: int, path: str, body: dict[str, object] | None = None) -> bytes:
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data, headers)
    with urllib.request.urlopen(request, timeout=300) as answer:
        answered: bytes = answer.read()
    return answered


def free_port() -> int:
    """A port below those that Linux and SGLang choose for sockets while the server starts."""
    while True:
        port = random.randrange(10_000, 20_000)
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port


def wait_ready(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + READY_S
    while time.monotonic() < until and process.poll() is None:
        try:
            post(port, "/health")
            return
        except OSError:
            time.sleep(1)
    sys.exit(f"the server is not ready; the end of {log}:\n{log.read_text()[-3000:]}")


def serve(options: argparse.Namespace, place: Place, scratch: Path) -> int:
    """Start, ask, stop; the recorder's exit code."""
    port = free_port()
    server = ["sglang.launch_server", "--port", str(port), *models(options, place, scratch)]
    server += [*COMMON.split(), MEGAKERNEL, *place.words, *options.more]
    record = [sys.executable, "-m", "megatrace", "record", "--force", "-o", str(options.output)]
    record += ["--every", EVERY]
    path = os.pathsep.join(map(str, [*place.path, os.environ.get("PYTHONPATH", "")]))
    variables = {"MEGATRACE_PYTHON": str(place.python), "HF_HUB_OFFLINE": "1", "PYTHONPATH": path}
    log = options.output.with_suffix(".log")
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*record, "--", *server],
            env={**os.environ, **variables, **place.variables},
            stdout=output,
            stderr=output,
        )
    try:
        print(f"the server starts; it writes {log}", flush=True)
        wait_ready(port, process, log)
        sampling = {"max_new_tokens": options.tokens, "temperature": 0, "ignore_eos": True}
        for prompt in PROMPTS:
            begin = time.monotonic()
            post(port, "/generate", {"text": prompt, "sampling_params": sampling})
            rate = options.tokens / (time.monotonic() - begin)
            print(f"{options.tokens} tokens after {prompt!r}: {rate:.1f} a second", flush=True)
    finally:
        process.send_signal(signal.SIGTERM)
    return process.wait(120)


def main() -> int:
    options = arguments()
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        code = serve(options, Place.here(scratch), scratch)
    active = [
        line
        for line in options.output.with_suffix(".log").read_text().splitlines()
        if "NVIDIA megakernel: active" in line
    ]
    print(*active, sep="\n", flush=True)
    megatrace = [sys.executable, "-m", "megatrace"]
    trace = options.output.with_suffix(".pftrace.gz")
    subprocess.run([*megatrace, "report", options.output], check=True)
    subprocess.run([*megatrace, "export", "--force", options.output, "-o", trace], check=True)
    return code if active else 1


if __name__ == "__main__":
    sys.exit(main())
