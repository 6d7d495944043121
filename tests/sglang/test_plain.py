"""``megatrace record -- sglang.launch_server``: a real server, from its start to its end."""

from __future__ import annotations

import itertools
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from megatrace.capture.reader import open_capture
from megatrace.ring.control import read_ack
from megatrace.ring.file import RingFile
from tests.sglang.records import Run, read_capture
from tests.sglang.server import Environment, Server, serving

TOKENS = 5
WINDOW = {"activities": ["MEGATRACE"]}


@dataclass(slots=True)
class Seen:
    """What the traffic saw, and what the processes wrote."""

    run: Run = field(default_factory=Run)
    answers: dict[str, Any] = field(default_factory=dict)
    window_open: list[int] = field(default_factory=list)
    traces: list[Path] = field(default_factory=list)
    log: str = ""
    complete: bool = False
    exit_code: int = -1


def _traffic(server: Server, runtime: Path, seen: Seen, folder: Path) -> None:
    (path,) = runtime.glob("*/scheduler-*.host.ring")
    with RingFile.attach(path) as ring:

        def profile(verb: str, body: object | None = None) -> None:
            seen.answers[f"{verb} {len(seen.answers)}"] = server.post(f"/{verb}_profile", body)[0]
            seen.window_open.append(read_ack(ring).window_open)

        seen.answers["alone"] = server.generate("hello there", TOKENS, "alone")
        profile("start", WINDOW)
        seen.answers["pair"] = server.generate(["one", "and two"], TOKENS, ["pair-0", "pair-1"])
        profile("stop")
        profile("start", {"activities": ["CPU", "MEGATRACE"], "output_dir": str(folder / "both")})
        seen.answers["both"] = server.generate("with torch", TOKENS, "both")
        profile("stop")
        profile("start", {"activities": ["CPU"], "output_dir": str(folder / "cpu")})
        profile("stop")
        profile("start", WINDOW | {"num_steps": 2})
        seen.answers["counted"] = server.generate("two steps", TOKENS, "counted")
        seen.window_open.append(read_ack(ring).window_open)


@pytest.fixture(scope="module")
def seen(environment: Environment, tmp_path_factory: pytest.TempPathFactory) -> Seen:
    folder, seen = tmp_path_factory.mktemp("plain"), Seen()
    runtime, capture = folder / "runtime", folder / "run.mtr"
    record = [sys.executable, "-m", "megatrace", "record", "-o", str(capture), "--"]
    variables = {
        "MEGATRACE_RUNTIME_DIR": str(runtime),
        "MEGATRACE_PYTHON": str(environment.python),
    }
    log = folder / "server.log"
    with serving(environment, log, command=record, variables=variables) as server:
        _traffic(server, runtime, seen, folder)
        seen.exit_code = server.stop()
    seen.traces = sorted(folder.rglob("*.trace.json.gz"))
    seen.log = log.read_text()
    with open_capture(capture, strict=True) as opened:
        seen.complete, seen.run = opened.complete, read_capture(opened)
    return seen


def test_the_server_answers_and_ends_in_order(seen: Seen) -> None:
    answers = [seen.answers["alone"], *seen.answers["pair"], seen.answers["both"]]
    assert [a["meta_info"]["completion_tokens"] for a in answers] == [TOKENS] * 4
    assert seen.exit_code == 0


def test_every_process_says_what_it_is_and_what_it_attached_to(seen: Seen) -> None:
    facts = {role: named["attach"] for role, named in seen.run.facts.items()}
    assert set(facts) == {"main", "scheduler", "detokenizer"}
    for role, fact in facts.items():
        assert (fact["process"], fact["state"], fact["missed"]) == (role, "attached", {})
        assert (fact["sglang"], fact["nvtx"]) == ("0.5.23", "no tool attached")
    assert facts["main"]["attached"] == facts["detokenizer"]["attached"] == []
    assert "Scheduler.run_batch" in facts["scheduler"]["attached"]
    assert "ModelRunner.forward" in facts["scheduler"]["attached"]
    assert (facts["scheduler"]["rank"], facts["scheduler"]["gpu_id"]) == (0, 0)


def test_the_recording_is_whole_and_ends_with_what_attached(seen: Seen) -> None:
    assert seen.complete
    said = [line for line in seen.log.splitlines() if line.startswith("megatrace: ")]
    (scheduler,) = [line for line in said if "scheduler" in line]
    assert "attached to" in scheduler
    assert "ModelRunner.forward" in scheduler
    assert not [line for line in said if "not attached" in line]


def test_no_step_is_missing(seen: Seen) -> None:
    steps = seen.run.scheduler.steps()
    assert steps == list(range(1, len(steps) + 1))


def test_a_request_is_one_extend_and_then_decodes(seen: Seen) -> None:
    rows = seen.run.scheduler
    events = [f.event for step in rows.steps_of("alone") for f in rows.forwards(step)]
    # The first token comes from the extend; overlap may run one step more than is used.
    assert events[:TOKENS] == ["extend"] + ["decode"] * (TOKENS - 1)
    assert len(events) <= TOKENS + 1


def test_an_extend_has_a_row_for_each_token_of_the_prompt(seen: Seen) -> None:
    rows = seen.run.scheduler
    (extend,) = rows.forwards(rows.steps_of("alone")[0])
    assert (extend.batch, extend.tokens) == (1, len("hello there"))
    assert extend.tokens == seen.answers["alone"]["meta_info"]["prompt_tokens"]


def test_a_decode_has_a_row_for_each_request(seen: Seen) -> None:
    rows = seen.run.scheduler
    decodes = [row for row in rows.of("decode") if len(rows.requests(row.step)) == 2]
    assert decodes
    assert {(f.batch, f.tokens) for f in decodes} == {(2, 2)}
    assert {tuple(rows.requests(f.step)) for f in decodes} == {("pair-0", "pair-1")}


def test_on_a_cpu_everything_is_eager_and_nothing_is_verified(seen: Seen) -> None:
    spans = seen.run.scheduler.of("step", "extend", "decode", "draft", "verify")
    assert {(s.graph, s.accepted) for s in spans} == {(0, -1)}


def test_a_forward_lies_inside_its_step_and_agrees_with_it(seen: Seen) -> None:
    rows = seen.run.scheduler
    for step in rows.of("step"):
        (forward,) = rows.forwards(step.step)
        assert step.begin_ns < forward.begin_ns < forward.end_ns < step.end_ns
        assert (step.batch, step.tokens) == (forward.batch, forward.tokens)


def test_steps_do_not_overlap(seen: Seen) -> None:
    steps = seen.run.scheduler.of("step")
    for before, after in itertools.pairwise(steps):
        assert before.end_ns <= after.begin_ns


def test_start_and_stop_answer_whatever_the_activities(seen: Seen) -> None:
    statuses = {k: v for k, v in seen.answers.items() if k.startswith(("start", "stop"))}
    assert set(statuses.values()) == {200}


def test_the_window_is_open_between_start_and_stop(seen: Seen) -> None:
    alone, with_torch, torch_only = [1, 0], [1, 0], [0, 0]
    opened, ended_by_itself = 1, 0
    expected = [*alone, *with_torch, *torch_only, opened, ended_by_itself]
    assert seen.window_open == expected


def test_a_window_is_a_span_around_its_steps(seen: Seen) -> None:
    rows = seen.run.scheduler
    first, second, third = rows.of("window")
    inside = [s.step for s in rows.of("step") if first.begin_ns < s.begin_ns < first.end_ns]
    assert inside == rows.steps_with("pair-0", "pair-1")
    assert first.step == inside[0]
    assert second.step == rows.steps_of("both")[0]
    assert third.step == rows.steps_of("counted")[0]


def test_a_window_of_two_steps_holds_two(seen: Seen) -> None:
    rows = seen.run.scheduler
    window = rows.of("window")[-1]
    inside = [f for f in rows.of("extend", "decode") if window.begin_ns < f.begin_ns]
    assert [f.step for f in inside if f.end_ns < window.end_ns] == rows.steps_of("counted")[:2]


def test_torch_traces_are_written_as_before(seen: Seen) -> None:
    assert [trace.parent.name for trace in seen.traces] == ["both", "cpu"]
    assert all(trace.stat().st_size > 0 for trace in seen.traces)
