"""A SGLang server over HTTP: what it serves, and one request at a time, streamed.

::

    server = Server("http://127.0.0.1:30000", timeout_s=120)
    server.model()
    answer = server.generate("1 + 1 =", {"max_new_tokens": 8, "temperature": 0})
    answer.text, answer.step_times_s
"""

from __future__ import annotations

import http.client
import json
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from megatrace.errors import ServerError, UsageError

_ABOUT = ("/model_info", "/get_model_info")
"""Where a server says what it serves: SGLang's path, and its older one."""
_SAID_CHARS = 200


@dataclass(frozen=True, slots=True)
class Event:
    """Tokens of a stream that came together, and the time since those before."""

    dur_s: float
    tokens: int


@dataclass(slots=True)
class Answer:
    """One request's answer. ``verifies``: steps that checked a draft, None without one."""

    text: str = ""
    tokens: int = 0
    prompt_tokens: int = 0
    verifies: int | None = None
    first_s: float = 0.0
    """From the request to its first token."""
    events: list[Event] = field(default_factory=list)
    """What came after that."""

    @property
    def steps_an_event(self) -> float:
        """Steps of the model that came together, on average; 1 where each was sent at once."""
        steps = self.verifies or sum(event.tokens for event in self.events)
        return max(1.0, steps / len(self.events)) if self.events else 1.0

    @property
    def step_times_s(self) -> list[float]:
        """The time of each event's step, or the mean of its steps where it had several."""
        return [event.dur_s / self.steps_an_event for event in self.events]


class Server:
    """A SGLang server at ``url``; ``timeout_s`` is the longest silence it is allowed."""

    def __init__(self, url: str, *, timeout_s: float) -> None:
        """Raises UsageError where ``url`` is none of http or https."""
        parts = urlsplit(url if "://" in url else f"http://{url}")
        try:
            port = parts.port
        except ValueError:
            port = -1
        if parts.scheme not in ("http", "https") or not parts.hostname or port == -1:
            raise UsageError(f"{url} is no http address", hint="such as http://127.0.0.1:30000")
        self.url = f"{parts.scheme}://{parts.netloc}"
        self._base = parts.path.rstrip("/")
        self._host, self._port = parts.hostname, port
        self._secure = parts.scheme == "https"
        self._timeout_s = timeout_s

    def model(self) -> str:
        """What the server serves. Raises ServerError where it is away or no SGLang."""
        return self._names()[0]

    def serves(self, name: str) -> bool:
        """Whether ``name`` is its model: the name it goes by, its path, or the path's end."""
        names = self._names()
        return name in {*names, *(n.rstrip("/").rpartition("/")[2] for n in names)}

    def generate(self, text: str, sampling: Mapping[str, object]) -> Answer:
        """Continue ``text``; ``sampling`` is SGLang's ``sampling_params``.

        Raises ServerError where the server refuses, goes away or falls silent.
        """
        body = {"text": text, "sampling_params": dict(sampling), "stream": True}
        answer = Answer()
        before_s = time.perf_counter()
        for event in self._events("/generate", body):
            now_s = time.perf_counter()
            _take(answer, event, now_s - before_s)
            before_s = now_s
        if not answer.tokens:
            raise ServerError(f"{self.url} ended a request without a token")
        return answer

    def _names(self) -> list[str]:
        for path in _ABOUT:
            with self._ask("GET", path) as response:
                if response.status == http.client.NOT_FOUND:
                    continue
                about = _json(response.read(), self.url)
            names = [about.get("served_model_name"), about.get("model_path")]
            found = [str(name) for name in names if name]
            if found:
                return found
        raise ServerError(
            f"{self.url} is no SGLang server: it has no {_ABOUT[0]}",
            hint="give the address of sglang.launch_server",
        )

    def _events(self, path: str, body: object) -> Iterator[Mapping[str, Any]]:
        with self._ask("POST", path, json.dumps(body).encode()) as response:
            if response.status != http.client.OK:
                said = response.read().decode("utf-8", "replace")[:_SAID_CHARS]
                raise ServerError(f"{self.url}{path} answers {response.status}: {said}")
            for line in response:
                word, _, data = line.strip().partition(b":")
                if word != b"data":
                    continue
                if data.strip() == b"[DONE]":
                    return
                event = _json(data, self.url)
                if "error" in event:
                    raise ServerError(f"{self.url}: {_message(event['error'])}")
                yield event
        raise ServerError(
            f"{self.url} ended in the middle of an answer", hint="its own log says why"
        )

    @contextmanager
    def _ask(
        self, method: str, path: str, body: bytes | None = None
    ) -> Iterator[http.client.HTTPResponse]:
        """One connection a request: a server that restarted is no broken pipe."""
        kind = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
        connection = kind(self._host, self._port, timeout=self._timeout_s)
        headers = {"Content-Type": "application/json"} if body else {}
        try:
            connection.request(method, self._base + path, body, headers)
            yield connection.getresponse()
        except TimeoutError:
            raise ServerError(
                f"{self.url} has said nothing for {self._timeout_s:g} s", hint="raise --timeout"
            ) from None
        except (OSError, http.client.HTTPException) as error:
            raise _away(self.url, error) from None
        finally:
            connection.close()


def _take(answer: Answer, event: Mapping[str, Any], dur_s: float) -> None:
    """Add an event that came ``dur_s`` after the one before."""
    meta = event.get("meta_info")
    if not isinstance(meta, Mapping) or "completion_tokens" not in meta:
        raise ServerError("the server's stream has no meta_info", hint="it is no SGLang server")
    text = str(event.get("text") or "")
    # Streams are cumulative unless the server was started with the incremental kind.
    answer.text = text if text.startswith(answer.text) else answer.text + text
    tokens = int(meta["completion_tokens"])
    if not answer.tokens:
        answer.first_s += dur_s
    elif tokens > answer.tokens:
        answer.events.append(Event(dur_s, tokens - answer.tokens))
    answer.tokens, answer.prompt_tokens = tokens, int(meta.get("prompt_tokens") or 0)
    # The server counts them in every step, and says so with the last.
    answer.verifies = int(meta.get("spec_verify_ct") or 0) or answer.verifies


def _away(url: str, error: Exception) -> ServerError:
    why = error.strerror if isinstance(error, OSError) else None
    if isinstance(error, socket.gaierror):
        return ServerError(f"no host of {url}: {why}", hint="check --url")
    if isinstance(error, ConnectionRefusedError):
        return ServerError(f"no server answers at {url}: {why}", hint="start it, or give --url")
    return ServerError(f"{url} went away: {why or type(error).__name__}", hint="its log says why")


def _json(data: bytes, url: str) -> Mapping[str, Any]:
    try:
        value = json.loads(data)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        said = data[:_SAID_CHARS].decode("utf-8", "replace").strip()
        raise ServerError(f"{url} answers no JSON: {said}", hint="it is no SGLang server")
    return value


def _message(error: object) -> str:
    return str(error.get("message", error) if isinstance(error, Mapping) else error)
