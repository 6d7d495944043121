"""A real SGLang server under ``megatrace record``, with a plugin of a bench inside of it."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from megatrace.jit.compilers import gpu_chip

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "02_record_sglang" / "run.py"
SITE = Path(__file__).parent / "site"
STOP_S, TELL_S = 30.0, 20.0
BEGIN = time.monotonic()
PROMPT = "A megakernel runs a whole layer as one launch, and nobody sees what is inside of it."


@dataclass(frozen=True)
class Server:
    """A server that answers, and the recorder it runs under."""

    example: ModuleType
    port: int
    recorder: subprocess.Popen[bytes]

    def ask(self, tokens: int) -> tuple[float, dict[str, Any]]:
        """(seconds, meta_info) of one greedy request."""
        sampling = {"max_new_tokens": tokens, "temperature": 0, "ignore_eos": True}
        body = {"text": PROMPT, "sampling_params": sampling}
        begin = time.perf_counter()
        answer = self.example.post(self.port, "/generate", body)
        dur_s = time.perf_counter() - begin
        return dur_s, json.loads(answer)["meta_info"]


def parser_of(doc: str, name: str) -> argparse.ArgumentParser:
    """The options of every bench of a server; ``name`` is that of its files."""
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    parser.add_argument("--model-path", type=Path, help="a checkpoint (default: tiny, random)")
    parser.add_argument("--draft-path", type=Path, help="a DFlash draft for it")
    parser.add_argument("--measure-s", type=float, default=1e6, help="no new round after it")
    parser.add_argument("--capture", type=Path, default=Path(f"{name}.mtr"))
    parser.add_argument("--log", type=Path, default=Path(f"{name}.log"))
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    parser.add_argument("-o", "--out", type=Path, help="the JSON as a file too")
    return parser


def parsed(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """The command line's options; ``more`` is what follows ``--``, the server's own arguments."""
    words = sys.argv[1:]
    split = words.index("--") if "--" in words else len(words)
    options = parser.parse_args(words[:split])
    options.more = words[split + 1 :]
    return options


@contextlib.contextmanager
def recorded_server(
    options: argparse.Namespace,
    scratch: Path,
    runtime: Path,
    plugin: Mapping[str, str],
    words: Sequence[str],
    variables: Mapping[str, str],
) -> Iterator[Server]:
    """The server of examples/02 with ``plugin`` (name to function, of tests/bench/site), ready.

    One request at a time. ``options`` are of :func:`parsed`; ``words`` are arguments of the server
    that come before its ``more``. Stopped in the end.
    """
    example = _example()
    place = example.Place.here(scratch)
    example.declared(scratch, "megatrace_bench", plugin)
    port = example.free_port()
    server = ["sglang.launch_server", "--port", str(port)]
    server += [*example.models(options, place, scratch), *example.COMMON.split(), *place.words]
    server += ["--max-running-requests", "1"]
    if gpu_chip() is not None:
        server += ["--cuda-graph-bs-decode", "1"]
    record = [sys.executable, "-m", "megatrace", "record", "--force", "-o", str(options.capture)]
    path = os.pathsep.join(map(str, [*place.path, SITE, os.environ.get("PYTHONPATH", "")]))
    environment = {
        **place.variables,
        "PYTHONPATH": path,
        "HF_HUB_OFFLINE": "1",
        "MEGATRACE_PYTHON": str(place.python),
        "MEGATRACE_RUNTIME_DIR": str(runtime),
        **variables,
    }
    with options.log.open("wb") as log:
        process = subprocess.Popen(
            [*record, "--", *server, *words, *options.more],
            env={**os.environ, **environment},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        say(f"the server starts; it writes {options.log}")
        _wait_ready(example, port, process, options.log)
        say("ready")
        yield Server(example, port, process)
    except OSError as error:
        raise SystemExit(f"the server answers no more: {error}\n{end_of(options.log)}") from None
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # the server too: it holds the GPU
            process.wait()


def _example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("record_sglang", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    sys.modules["record_sglang"] = example
    spec.loader.exec_module(example)
    return example


def _wait_ready(
    example: ModuleType, port: int, process: subprocess.Popen[bytes], log: Path
) -> None:
    """Wait for an answer, and tell meanwhile what the server is at."""
    tell = time.monotonic() + TELL_S
    while process.poll() is None:
        try:
            example.post(port, "/health")
            return
        except OSError:
            time.sleep(0.5)
        if time.monotonic() > tell:
            tell += TELL_S
            said = [x for x in end_of(log).splitlines() if x and not x.startswith("megatrace: ")]
            say(f"waiting: {said[-1][-200:] if said else 'nothing yet'}")
    raise SystemExit(f"the server ended with {process.returncode}\n{end_of(log)}")


def end_of(log: Path) -> str:
    """What a server said last."""
    return log.read_text(errors="replace")[-4000:]


def say(line: str) -> None:
    """Progress, with the seconds since the bench began."""
    print(f"[{time.monotonic() - BEGIN:.0f} s] {line}", file=sys.stderr, flush=True)
