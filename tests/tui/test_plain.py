"""Without a terminal: one table, JSON, a stream; and the errors of both verbs."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest

from megatrace.documents import JSON_VERSION
from tests.build import demo, write
from tests.collect.helpers import FAKE_RANK, MEGATRACE, environment, megatrace, recording
from tests.tui.helpers import H200

RANK = (*FAKE_RANK, "--step-us", "3000", "--obey", "--wait-control")


def test_a_capture_in_a_pipe_is_one_plain_table() -> None:
    done = megatrace("view", H200)
    assert done.returncode == 0
    assert done.stderr == ""
    assert "\x1b" not in done.stdout
    assert done.stdout == megatrace("view", H200, "--once").stdout
    for words in ("nothing lost", "us/launch", "consumer", "22/48 +26?", "# data"):
        assert words in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 120


def test_the_json_of_a_capture_has_what_the_table_has() -> None:
    body = json.loads(megatrace("view", H200, "--json").stdout)
    assert (body["schema"], body["version"]) == ("megatrace.view", JSON_VERSION)
    assert [row["layer"] for row in body["layers"]] == [0, 1, 2]
    first = body["layers"][0]
    assert (first["kernel"], first["prefetches"], first["late"]) == ("stream", 48, 22)
    shares = [first[name] for name in ("data", "space", "input", "peer", "not_waiting")]
    assert sum(shares) == pytest.approx(1)
    assert [row["role"] for row in body["roles"]] == ["loader", "consumer"]


def test_an_incomplete_capture_is_3_only_if_strict_and_says_so_always(tmp_path: Path) -> None:
    path = write(tmp_path / "x.mtr", *demo(), complete=False)
    done = megatrace("view", path)
    assert done.returncode == 0
    assert "is incomplete" in done.stderr
    assert "INCOMPLETE" in done.stdout
    assert megatrace("view", path, "--strict").returncode == 3


def test_no_recording_is_one_error_with_a_next_step() -> None:
    for words in ([], ["--once"], ["--json"], ["--jsonl"], ["no-such-session"]):
        done = megatrace("live", *words)
        assert done.returncode == 1
        assert done.stdout == ""
        error, hint = done.stderr.splitlines()
        assert error.startswith("megatrace: error: no recording")
        assert "megatrace sessions" in hint


def test_a_live_session_in_a_pipe_is_one_plain_table(tmp_path: Path) -> None:
    with recording(tmp_path / "run.mtr", *RANK, "--steps", "100000", options=("--every", "5")):
        deadline = time.monotonic() + 30
        while "33 %" not in (done := megatrace("live")).stdout:
            assert time.monotonic() < deadline, done
        assert done.returncode == 0
        assert done.stderr == ""
        assert "\x1b" not in done.stdout
        assert "1 step in 5" in done.stdout
        assert "note: cpu" in done.stdout
        # A recorder that has little of the machine shows the layers one after the other.
        while len((body := json.loads(megatrace("live", "--json").stdout))["layers"]) < 4:
            assert time.monotonic() < deadline, body["layers"]
        assert (body["schema"], body["version"]) == ("megatrace.live", JSON_VERSION)
        assert body["state"] == "live"
        assert {row["layer"] for row in body["layers"]} == {0, 1, 2, 3}
    assert megatrace("live", "--json", "--jsonl").returncode == 2


def test_of_a_rank_that_restarted_a_live_session_says_both_processes(tmp_path: Path) -> None:
    first, second = (
        shlex.join([*RANK, "--name", name, "--steps", steps])
        for name, steps in (("a", "20"), ("b", "100000"))
    )
    deadline = time.monotonic() + 30
    with recording(tmp_path / "run.mtr", "sh", "-c", f"{first}; {second}"):
        told: dict[str, dict[tuple[int, int], object]] = {}
        while len(told.get("layers", ())) < 2:
            assert time.monotonic() < deadline, told
            done = megatrace("live", "--json")
            if done.returncode:
                continue
            body = json.loads(done.stdout)
            ranks = {(row["rank"], row["process"]): row for row in body["ranks"]}
            told = {"ranks": ranks, "layers": body.get("layers_by_rank", {})}
        assert {key: row["alive"] for key, row in ranks.items()} == {(0, 1): False, (0, 2): True}
        assert ranks[0, 1]["step"] == 20
        assert list(body["layers_by_rank"]) == ["0", "0#2"]
        rows = [line.split() for line in megatrace("live", "--once").stdout.splitlines()]
    assert {tuple(row[:2]) for row in rows if row[:1] in (["0"], ["0#2"])} >= {
        ("0", "ended"),
        ("0#2", "runs"),
    }


def test_a_stream_of_json_ends_with_the_recording(tmp_path: Path) -> None:
    with recording(tmp_path / "run.mtr", *RANK, "--steps", "1200", options=("--every", "5")):
        deadline = time.monotonic() + 30
        while megatrace("live", "--once").returncode:
            assert time.monotonic() < deadline
        done = subprocess.run(
            [*MEGATRACE, "live", "--jsonl", "--interval", "0.7"],
            env=environment(), capture_output=True, text=True, timeout=60, check=True,
        )  # fmt: skip
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(lines) > 2
    assert {line["schema"] for line in lines} == {"megatrace.live"}
    assert len({line["session"] for line in lines}) == 1
    told = lines[-1]
    assert told["ranks"][0]["step"] > 0
    assert {row["layer"] for row in told["layers"]} <= {0, 1, 2, 3}
    assert told["stalls_of"] == "timelines"
    assert [row["data"] for row in told["layers"]] == pytest.approx([0.332] * 4, rel=0.02)


def test_without_textual_there_is_still_plain_text_and_a_hint(tmp_path: Path) -> None:
    (tmp_path / "textual.py").write_text("raise ModuleNotFoundError('no', name='textual')")
    env = environment(PYTHONPATH=f"{tmp_path}:{environment()['PYTHONPATH']}")
    done = megatrace("view", H200, env=env)
    assert done.returncode == 0
    program = (
        "from megatrace.cli.terminal import run_app\n"
        "from megatrace.errors import MegatraceError\n"
        "try: run_app(None)\n"
        "except MegatraceError as error: print(error, error.hint)\n"
    )
    told = subprocess.run(
        [sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True
    )
    assert "pip install 'megatrace[view]'" in told.stdout
