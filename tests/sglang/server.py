"""A real SGLang server as a child process, for tests."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")
START_S, ANSWER_S, STOP_S = 300, 120, 40


@dataclass(frozen=True, slots=True)
class Environment:
    """What a server needs: its Python, import path and checkpoints."""

    python: Path
    path: tuple[Path, ...]
    target: Path
    draft: Path

    def variables(self, extra: Mapping[str, str]) -> dict[str, str]:
        """Environment variables of a process of this environment."""
        return {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(map(str, self.path)),
            "SGLANG_USE_CPU_ENGINE": "1",
            "HF_HUB_OFFLINE": "1",
            "TORCHDYNAMO_DISABLE": "1",
            # The models are tiny: threads would spend their time on each other.
            "OMP_NUM_THREADS": "1",
            **extra,
        }

    def arguments(self, port: int, *, draft: bool = False) -> list[str]:
        """Arguments of ``sglang.launch_server``."""
        words = f"--device cpu --attention-backend torch_native --grammar-backend none \
            --kv-cache-dtype bf16 --max-total-tokens 4096 --skip-server-warmup \
            --host 127.0.0.1 --port {port} --model-path".split()
        words.append(str(self.target))
        if draft:
            words += ["--speculative-algorithm", "DFLASH"]
            words += ["--speculative-draft-model-path", str(self.draft)]
        return words


@dataclass(frozen=True, slots=True)
class Server:
    """A running server."""

    port: int
    log: Path
    process: subprocess.Popen[bytes]

    def post(self, path: str, body: object | None = None) -> tuple[int, Any]:
        """POST JSON; returns status and the answer, decoded where it is JSON."""
        data = b"" if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}",
            data=data,
            headers={"Content-Type": "application/json"} if data else {},
            method="POST",
        )
        try:
            with urllib.request.urlopen(request, timeout=ANSWER_S) as answer:
                text, status = answer.read().decode(), answer.status
        except urllib.error.HTTPError as error:
            text, status = error.read().decode(), error.code
        try:
            return status, json.loads(text)
        except ValueError:
            return status, text

    def generate(self, text: str | list[str], tokens: int, rid: str | list[str]) -> Any:
        """Greedy decoding of ``tokens`` tokens under the request id ``rid``."""
        status, answer = self.post(
            "/generate",
            {
                "text": text,
                "rid": rid,
                "sampling_params": {
                    "max_new_tokens": tokens,
                    "temperature": 0,
                    "ignore_eos": True,
                },
            },
        )
        assert status == 200, answer
        return answer

    def wait_ready(self) -> None:
        """Return when it answers; fail with its log when it does not."""
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                break
            if self._healthy():
                return
            time.sleep(0.25)
        raise AssertionError(f"the server is not ready:\n{self.log.read_text()[-6000:]}")

    def _healthy(self) -> bool:
        url = f"http://127.0.0.1:{self.port}/health"
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=5) as answer:
            return bool(answer.status == 200)
        return False

    def stop(self) -> int:
        """SIGTERM to the main process alone; its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(STOP_S)


def free_port() -> int:
    """A port nobody listens on now, nor will before the server does.

    It binds its port long after it starts. Below 20000 neither Linux's own choice for a
    socket (``ip_local_port_range``) nor SGLang's falls on it meanwhile.
    """
    while True:
        port = random.randrange(10_000, 20_000)
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port


def asked_meanwhile(
    environment: Environment,
    log: Path,
    ask: Callable[[Server], T],
    *,
    draft: bool = False,
    arguments: Sequence[str] = (),
    variables: Mapping[str, str] | None = None,
) -> Future[T]:
    """What ``ask`` gets out of a server that starts now, beside whatever else is started."""

    def asked() -> T:
        with serving(
            environment, log, draft=draft, arguments=arguments, variables=variables
        ) as server:
            return ask(server)

    pool = ThreadPoolExecutor(1)
    try:
        return pool.submit(asked)
    finally:
        pool.shutdown(wait=False)


@contextlib.contextmanager
def serving(
    environment: Environment,
    log: Path,
    *,
    draft: bool = False,
    command: Sequence[str] = (),
    arguments: Sequence[str] = (),
    variables: Mapping[str, str] | None = None,
) -> Iterator[Server]:
    """A server that is ready, stopped on exit whatever happens.

    ``command`` goes before ``sglang.launch_server``, by default it is ``python -m``;
    ``arguments`` go after those of the environment.
    """
    port = free_port()
    words = [*(command or (str(environment.python), "-m")), "sglang.launch_server"]
    words += [*environment.arguments(port, draft=draft), *arguments]
    with log.open("wb") as output:
        process = subprocess.Popen(
            words,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment.variables(variables or {}),
            start_new_session=True,
        )
        server = Server(port, log, process)
        try:
            server.wait_ready()
            yield server
            server.stop()
        finally:
            # A server that was killed leaves schedulers; they are of its own group.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
