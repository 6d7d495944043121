"""A real server with DFLASH: drafts, verifies, accept lengths, and the same as NVTX ranges."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from megatrace.ring.session import Session
from tests.agent.tool import build_tool, tool_variables
from tests.collect.helpers import megatrace
from tests.sglang.records import Run, read_session
from tests.sglang.server import Environment, serving

BLOCK = 4
TOKENS = 9
SIMULATED = "3"
PROBLEMS = Path(__file__).parents[1] / "bench" / "word_problems.jsonl"


@dataclass(slots=True)
class Seen:
    """What the traffic saw, and what the processes wrote."""

    run: Run = field(default_factory=Run)
    alone: dict[str, Any] = field(default_factory=dict)
    ranges: list[str] = field(default_factory=list)
    bench: dict[str, Any] = field(default_factory=dict)


@pytest.fixture(scope="module")
def seen(
    environment: Environment,
    new_session: Callable[[str], Session],
    tmp_path_factory: pytest.TempPathFactory,
) -> Seen:
    session, folder, seen = new_session("dflash"), tmp_path_factory.mktemp("dflash"), Seen()
    ranges = folder / "ranges"
    variables = {
        **session.environment,
        **tool_variables(build_tool(folder), ranges),
        "MEGATRACE_SHIM_DFLASH": "1",
        # A random draft is never right; SGLang can pretend that it is.
        "SGLANG_SIMULATE_ACC_LEN": SIMULATED,
    }
    log = folder / "server.log"
    with serving(environment, log, draft=True, variables=variables) as server:
        seen.alone = server.generate("hello there", TOKENS, "alone")["meta_info"]
        server.generate(["one", "and two"], TOKENS, ["pair-0", "pair-1"])
        url = f"http://127.0.0.1:{server.port}"
        words = ("--shots", 1, "--limit", 2, "--max-tokens", 16, "--json")
        done = megatrace("bench", "gsm8k", "--data", PROBLEMS, "--url", url, *words)
        assert done.returncode == 0, done.stderr
        seen.bench = json.loads(done.stdout)
    seen.ranges = ranges.read_text().splitlines()
    seen.run = read_session(session)
    return seen


def test_every_hook_is_attached(seen: Seen) -> None:
    fact = seen.run.facts["scheduler"]["attach"]
    assert (fact["state"], fact["missed"]) == ("attached", {})


def test_no_step_is_missing(seen: Seen) -> None:
    steps = seen.run.scheduler.steps()
    assert steps == list(range(1, len(steps) + 1))


def test_a_step_is_a_draft_and_then_a_verify(seen: Seen) -> None:
    rows = seen.run.scheduler
    extend, *later = rows.steps_of("alone")
    assert [f.event for f in rows.forwards(extend)] == ["extend"]
    assert later
    for step in later:
        assert [f.event for f in rows.forwards(step)] == ["draft", "verify"]


def test_draft_and_verify_have_a_block_of_rows_for_each_request(seen: Seen) -> None:
    rows = seen.run.scheduler
    forwards = rows.of("draft", "verify")
    assert {len(rows.requests(forward.step)) for forward in forwards} >= {1, 2}
    for forward in forwards:
        assert forward.batch == len(rows.requests(forward.step))
        assert forward.tokens == BLOCK * forward.batch


def test_a_verify_says_how_many_tokens_it_accepted(seen: Seen) -> None:
    rows = seen.run.scheduler
    steps = set(rows.steps_of("alone"))
    # SGLang's own counters of the request: what was accepted, and one bonus a verify.
    count = seen.alone["spec_verify_ct"]
    accepted = seen.alone["spec_num_correct_drafts"] + count
    verifies = [row.accepted for row in rows.of("verify") if row.step in steps]
    assert len(verifies) - count in (0, 1)  # overlap: one more may have been on its way
    assert sum(verifies[:count]) == accepted > count


def test_a_step_has_the_accept_length_and_the_rows_of_its_verify(seen: Seen) -> None:
    rows = seen.run.scheduler
    steps = {row.step: row for row in rows.of("step")}
    for verify in rows.of("verify"):
        step = steps[verify.step]
        assert (step.tokens, step.accepted) == (verify.tokens, verify.accepted)
    assert {row.accepted for row in rows.of("draft", "extend")} == {-1}


def test_the_same_spans_are_nvtx_ranges(seen: Seen) -> None:
    spans = seen.run.scheduler.of("step", "extend", "draft", "verify")
    pushed = Counter(line for line in seen.ranges if line.startswith("push megatrace "))
    assert pushed == Counter(f"push megatrace {s.event} {s.step}" for s in spans)
    assert seen.ranges.count("pop megatrace") == len(spans)
    assert seen.run.facts["scheduler"]["attach"]["nvtx"] == "on"


def test_the_bench_counts_accept_lengths_as_the_server_does(seen: Seen) -> None:
    bench = seen.bench
    assert (bench["asked"], bench["tokens"]) == (2, 2 * 16)
    # Of the first token too, which no verify gave: somewhat more than what is simulated.
    assert float(SIMULATED) - 0.5 < bench["accept_length"] < float(SIMULATED) + 1
    assert bench["tokens_per_s"] == 1e3 * bench["accept_length"] / bench["step_ms"]
    assert 1 <= bench["steps_an_event"] < 2  # a busy machine sends an event or two together
