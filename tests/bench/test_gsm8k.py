"""``megatrace bench gsm8k`` against a server that says what a test wants it to say."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from megatrace.bench.client import Server
from megatrace.bench.gsm8k import number_in, prompt, read_problems
from megatrace.bench.run import Plan, run
from megatrace.errors import ServerError, UsageError
from tests.collect.helpers import megatrace

DATA = Path(__file__).parent / "word_problems.jsonl"
STEP_S = 0.02


class Script(BaseHTTPRequestHandler):
    """A server whose answers stand in ``events``: (seconds before it, meta_info, text)."""

    events: ClassVar[list[tuple[float, dict[str, int], str]]] = []
    status = 200
    about: ClassVar[dict[str, object] | None] = {
        "model_path": "/models/tiny",
        "served_model_name": "tiny-one",
    }
    asked: ClassVar[list[Any]] = []
    done = True

    def log_message(self, *_args: object) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        """What it serves."""
        if self.about is None or self.path != "/model_info":
            self.send_error(404)
            return
        self._send(200, json.dumps(self.about).encode())

    def do_POST(self) -> None:
        """One answer, streamed."""
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.asked.append(body)
        if self.status != 200:
            self._send(self.status, b'{"error": {"message": "no room"}}')
            return
        self.send_response(200)
        self.end_headers()
        for wait_s, meta, text in self.events:
            time.sleep(wait_s)
            event = {"text": text, "meta_info": {"prompt_tokens": 9, **meta}}
            self.wfile.write(b"data: " + json.dumps(event).encode() + b"\n\n")
            self.wfile.flush()
        if self.done:
            self.wfile.write(b"data: [DONE]\n\n")

    def _send(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@contextmanager
def scripted(**said: object) -> Iterator[tuple[str, type[Script]]]:
    """(url, its script) of a server that says ``said``."""
    script = type("Said", (Script,), {"asked": [], **said})
    server = ThreadingHTTPServer(("127.0.0.1", 0), script)
    server.handle_error = lambda *_args: None  # a client that has left is what some tests want
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", script
    finally:
        server.shutdown()
        server.server_close()


def stream(words: list[str], tokens_a_step: int) -> list[tuple[float, dict[str, int], str]]:
    """A first token, then a step a word."""
    events, text = [], ""
    for i, word in enumerate(words):
        text += word
        meta = {"completion_tokens": 1 + i * tokens_a_step}
        if tokens_a_step > 1 and i == len(words) - 1:
            meta["spec_verify_ct"] = i  # a server says it once, at the end
        events.append((STEP_S, meta, text))
    return events


ANSWER = stream([" 1250", " and", " 2500", ":", " 3,750", "."], tokens_a_step=3)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("so she pays 5 + 7 = $12.", "12"),
        ("1,234.50 in all", "1234.5"),
        ("it is -3 degrees", "-3"),
        ("#### 42 and 7 more", "42"),
        ("no digits at all", None),
        ("", None),
    ],
)
def test_an_answer_comes_to_its_marked_or_its_last_number(text: str, number: str | None) -> None:
    assert number_in(text) == (None if number is None else Decimal(number))


def test_the_shots_are_shown_solved_and_the_problem_is_left_open() -> None:
    problems = read_problems(DATA)
    text = prompt(problems[:2], problems[4])
    assert text.count("Question: ") == 3
    assert text.count("####") == 2
    assert text.endswith("How many in all?\nAnswer:")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"{not json", "is no JSON"),
        (b'{"question": "why?"}', "lacks a question or an answer"),
        (b"[1, 2]", "lacks a question or an answer"),
        (b'{"question": "why?", "answer": "because"}', "no number after ####"),
        (b"\xff\xfe", "is no JSON"),
    ],
)
def test_a_line_that_is_no_problem_is_named(tmp_path: Path, line: bytes, said: str) -> None:
    path = tmp_path / "test.jsonl"
    path.write_bytes(DATA.read_bytes() + line + b"\n")
    with pytest.raises(UsageError, match=f"line 7.* {said}"):
        read_problems(path)


def test_tokens_a_second_are_those_of_a_step_over_the_median_step() -> None:
    with scripted(events=ANSWER) as (url, _script):
        result = run(Server(url, timeout_s=5), read_problems(DATA), Plan(shots=4, warmups=0))
    assert (len(result.answers), result.correct) == (2, 1)
    assert result.accept_length == 16 / 5
    assert result.step_ms == pytest.approx(1e3 * STEP_S, rel=0.5)
    assert result.tokens_per_s == 1e3 * result.accept_length / result.step_ms
    assert result.wall_tokens_per_s == pytest.approx(3 / STEP_S, rel=0.5)
    assert result.steps_an_event == 1


def test_without_a_draft_a_step_is_a_token_and_there_is_no_accept_length() -> None:
    with scripted(events=stream(["a", "b", "c 35"], 1)) as (url, _script):
        result = run(Server(url, timeout_s=5), read_problems(DATA), Plan(shots=1, limit=1))
    assert result.accept_length is None
    assert result.accuracy == 1
    assert result.tokens_per_s == pytest.approx(1 / STEP_S, rel=0.5)


def test_steps_that_are_streamed_together_are_told_apart() -> None:
    both = [
        (0.0, {"completion_tokens": 1}, "a"),
        (2 * STEP_S, {"completion_tokens": 7}, "a b"),
        (2 * STEP_S, {"completion_tokens": 13, "spec_verify_ct": 4}, "a b c"),
    ]
    with scripted(events=both) as (url, _script):
        result = run(Server(url, timeout_s=5), read_problems(DATA), Plan(shots=5, warmups=0))
    assert result.steps_an_event == 2
    assert result.step_ms == pytest.approx(1e3 * STEP_S, rel=0.5)


def test_a_stream_of_increments_is_put_together() -> None:
    events = [
        (0.0, {"completion_tokens": i + 1}, word) for i, word in enumerate(["It", " is", " 5"])
    ]
    with scripted(events=events) as (url, _script):
        assert Server(url, timeout_s=5).generate("x", {}).text == "It is 5"


def test_a_run_asks_what_the_plan_says() -> None:
    with scripted(events=ANSWER) as (url, script):
        done = megatrace(
            *("bench", "gsm8k", "--data", DATA, "--url", url, "--model", "tiny", "--json"),
            *("--shots", 2, "--limit", 1, "--max-tokens", 64, "--warmups", 2, "--timeout", 5),
        )
    assert done.returncode == 0, done.stderr
    assert [body["stream"] for body in script.asked] == [True] * 3
    assert script.asked[0]["sampling_params"]["max_new_tokens"] == 64
    body = json.loads(done.stdout)
    assert (body["schema"], body["asked"], body["model"]) == (
        "megatrace.bench.gsm8k",
        1,
        "tiny-one",
    )
    assert body["accept_length"] == 3.2


def test_the_table_has_a_figure_a_row() -> None:
    with scripted(events=ANSWER) as (url, _script):
        done = megatrace("bench", "gsm8k", "--data", DATA, "--url", url, "--limit", 1)
    rows = dict(line.split(maxsplit=1) for line in done.stdout.splitlines() if "wall" not in line)
    assert rows["model"] == "tiny-one"
    assert float(rows["tokens/s"]) > 0


def failing(url: str, *words: object) -> tuple[int, list[str]]:
    """(exit code, lines of stderr) of a run that must fail, with nothing on stdout."""
    done = megatrace("bench", "gsm8k", "--data", DATA, "--url", url, "--timeout", 1, *words)
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    return done.returncode, done.stderr.splitlines()


def test_a_server_that_is_away_is_said_with_what_to_do() -> None:
    with scripted() as (url, _script):
        pass
    assert failing(url) == (
        1,
        [
            f"megatrace: error: no server answers at {url}: Connection refused",
            "megatrace: hint: start it, or give --url",
        ],
    )


@pytest.mark.parametrize(
    ("said", "cause"),
    [
        ({"about": None}, "is no SGLang server"),
        ({"status": 503}, "/generate answers 503"),
        ({"events": ANSWER, "done": False}, "ended in the middle of an answer"),
        ({"events": [(0.0, {}, "hello")]}, "stream has no meta_info"),
        ({"events": []}, "ended a request without a token"),
        ({"events": [(3.0, {"completion_tokens": 1}, "late")]}, "has said nothing for 1 s"),
    ],
    ids=["no SGLang", "refuses", "cut", "other stream", "empty", "silent"],
)
def test_a_server_that_answers_wrong_is_one_clear_error(
    said: dict[str, object], cause: str
) -> None:
    with scripted(**said) as (url, _script):
        code, lines = failing(url)
    assert code == 1
    assert cause in lines[0]
    assert len(lines) <= 2


def test_another_model_is_refused_with_what_is_served() -> None:
    with scripted(events=ANSWER) as (url, _script):
        code, lines = failing(url, "--model", "big")
    assert code == 2
    assert lines[0].endswith("serves tiny-one, not big")


def test_a_plan_that_leaves_nothing_to_ask_is_refused_before_the_server_is_asked() -> None:
    code, lines = failing("http://127.0.0.1:9", "--shots", 6)
    assert code == 2
    assert "none is left to ask" in lines[0]


@pytest.mark.parametrize("url", ["ftp://x", "http://", "http://a:b"])
def test_an_address_that_is_none_is_a_wrong_call(url: str) -> None:
    with pytest.raises(UsageError, match="no http address"):
        Server(url, timeout_s=1)


def test_a_failure_says_which_problem_it_was() -> None:
    with (
        scripted(status=500) as (url, _script),
        pytest.raises(ServerError, match="problem 1 of 2: "),
    ):
        run(Server(url, timeout_s=1), read_problems(DATA), Plan(shots=4, warmups=0))
