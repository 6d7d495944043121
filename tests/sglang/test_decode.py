"""Decode without a draft: the megakernel in a real server against the server without it.

The experts are NVFP4 as SGLang serves them on Hopper; in the first and last layer bf16. The
server with the megakernel has given up its own: its prefills are of the megakernel's.
"""

from __future__ import annotations

import json
import statistics
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from megatrace.analysis.trace import Trace, decode
from megatrace.capture.reader import open_capture
from tests.collect.helpers import megatrace
from tests.sglang.answers import TIE, Answer, Parts, apart, ask, first_gap, follow, ties
from tests.sglang.server import Environment, Server, asked_meanwhile, serving

TOKENS, LAYERS, EVERY = 24, 6, 4
PROMPTS = ([70], [40 + 7 * i % 200 for i in range(17)], [33 + 5 * i % 250 for i in range(50)])
SAMPLED = 12
SAMPLINGS: tuple[dict[str, float], ...] = tuple({"temperature": t} for t in (1.0, 0.7, 1.3))
"""Nothing that sorts: tokens almost as likely would change places, and the noise with them."""
FLAG = "--enable-nvidia-megakernel"
VARIABLES = {"MEGATRACE_SHIM_GPU": "sm_90", "MEGATRACE_SHIM_MARLIN": "1"}
# That they are NVFP4 is left to the checkpoint to say.
WORDS = ("--moe-runner-backend", "marlin", "--random-seed", "7")
PROBLEMS = Path(__file__).parents[1] / "bench" / "word_problems.jsonl"


@dataclass(slots=True)
class Seen:
    """What the server with the megakernel did."""

    plain: list[Answer] = field(default_factory=list)
    """Of each prompt, without the megakernel."""
    plain_sampled: list[list[int]] = field(default_factory=list)
    sampled: list[list[int]] = field(default_factory=list)
    only_one: list[int] = field(default_factory=list)
    answers: list[Parts] = field(default_factory=list)
    refused: dict[str, tuple[int, Any]] = field(default_factory=dict)
    afterwards: Answer | None = None
    bench: dict[str, Any] = field(default_factory=dict)
    log: str = ""
    trace: Trace | None = None


def sample(server: Server, sampling: dict[str, float], tokens: int = SAMPLED) -> list[int]:
    """Tokens that the server's own sampler takes."""
    asked = {"max_new_tokens": tokens, "ignore_eos": True, **sampling}
    body = {"input_ids": PROMPTS[1], "sampling_params": asked}
    status, answer = server.post("/generate", body)
    assert status == 200, answer
    ids: list[int] = answer["output_ids"]
    return ids


def plainly(server: Server) -> tuple[list[Answer], list[list[int]]]:
    """What a server says: greedily, and sampled from the same seed."""
    sampled = [sample(server, sampling) for sampling in SAMPLINGS]
    return [ask(server, prompt, TOKENS) for prompt in PROMPTS], sampled


def updates(server: Server, nvfp4: Environment) -> dict[str, tuple[int, Any]]:
    """What the server says to new weights, by the way they would come."""
    return {
        "disk": server.post("/update_weights_from_disk", {"model_path": str(nvfp4.target)}),
        "session": server.post("/begin_weight_update", {}),
        "end": server.post("/end_weight_update", {}),
    }


@pytest.fixture(scope="module")
def seen(nvfp4: Environment, tmp_path_factory: pytest.TempPathFactory) -> Seen:
    """A recorded server with the megakernel; beside it one without, which starts meanwhile."""
    folder, seen = tmp_path_factory.mktemp("decode"), Seen()
    capture, log = folder / "run.mtr", folder / "server.log"
    record = [sys.executable, "-m", "megatrace", "record", "--every", str(EVERY)]
    variables = {
        **VARIABLES,
        "MEGATRACE_RUNTIME_DIR": str(folder / "runtime"),
        "MEGATRACE_PYTHON": str(nvfp4.python),
        "MEGATRACE_ONE_COPY": "1",
    }
    plain = asked_meanwhile(
        nvfp4, folder / "plain.log", plainly, arguments=WORDS, variables=VARIABLES
    )
    with serving(
        nvfp4,
        log,
        command=[*record, "-o", str(capture), "--"],
        arguments=[FLAG, *WORDS],
        variables=variables,
    ) as server:
        # In the order of the plain server: both draw from one stream of random numbers.
        seen.sampled = [sample(server, sampling) for sampling in SAMPLINGS]
        seen.plain, seen.plain_sampled = plain.result()
        for prompt, answer in zip(PROMPTS, seen.plain, strict=True):
            seen.answers.append(follow(server, prompt, answer))
        seen.only_one = sample(server, {"temperature": 1.0, "top_k": 1}, TOKENS)
        seen.refused = updates(server, nvfp4)
        seen.afterwards = ask(server, PROMPTS[1], TOKENS)
        url = f"http://127.0.0.1:{server.port}"
        words = ("--shots", 1, "--limit", 2, "--max-tokens", 12, "--json")
        done = megatrace("bench", "gsm8k", "--data", PROBLEMS, "--url", url, *words)
        assert done.returncode == 0, done.stderr
        seen.bench = json.loads(done.stdout)
    seen.log = log.read_text()
    with open_capture(capture) as opened:
        seen.trace = decode(opened)
    return seen


def test_the_megakernel_is_active_for_one_row(seen: Seen) -> None:
    active = "NVIDIA megakernel: active (megatrace Muse Spark: 6 layers, bf16+nvfp4 experts"
    assert active in seen.log
    assert "widths [1]" in seen.log


def test_a_server_says_what_giving_up_its_own_experts_saves(seen: Seen) -> None:
    # Of four layers of NVFP4 and two of bf16, the place of one each stays.
    codes, bf16 = 16 * 3 * 128 * 128 // 2, 16 * 3 * 128 * 128 * 2
    saved = f"which saves {(3 * codes + bf16) / 1e9:.3f} GB"
    assert f"SGLang's own experts are given up (MEGATRACE_ONE_COPY=1), {saved}" in seen.log


def test_every_decode_that_was_recorded_is_a_launch_a_layer(seen: Seen) -> None:
    assert seen.trace is not None
    host = seen.trace.host
    steps = set(host[host["event"].astype(str) == "decode"]["step"])
    launches = seen.trace.launches
    whole = launches[launches["complete"]]
    assert set(whole["step"]) <= steps
    assert whole["step"].nunique() > TOKENS // EVERY
    assert set(whole.groupby(["step", "ring"]).size()) == {LAYERS + 1}


def test_greedy_tokens_are_those_of_the_plain_server_but_for_ties(seen: Seen) -> None:
    found = [t for w, parts in zip(seen.plain, seen.answers, strict=True) for t in ties(w, parts)]
    print("ties (place, gap of the plain server, gap here):", found)
    assert all(max(there, here) < TIE for _, there, here in found), found
    assert len(found) <= 6, found


def test_likely_tokens_are_as_likely_as_in_the_plain_server(seen: Seen) -> None:
    gaps = [g for w, parts in zip(seen.plain, seen.answers, strict=True) for g in apart(w, parts)]
    assert len(gaps) >= TOKENS * len(PROMPTS)
    assert max(gaps) < 0.1
    assert statistics.median(gaps) < 0.01


def test_sampled_tokens_are_those_that_the_sampler_draws_from_the_same_seed(
    seen: Seen,
) -> None:
    pairs = list(zip(seen.sampled, seen.plain_sampled, strict=True))
    print("sampled:", pairs)
    # A rounding may move one draw, and with it all after it of that request.
    same = [
        next((i for i, (a, b) in enumerate(zip(*p, strict=True)) if a != b), SAMPLED) for p in pairs
    ]
    assert sum(same) > 2 * SAMPLED
    assert len({tuple(tokens) for tokens in seen.sampled}) == len(SAMPLINGS)


def test_a_sampler_that_may_take_one_token_takes_the_greedy_one(seen: Seen) -> None:
    # Its prompt was in the cache by then, and was summed in other pieces the first time.
    assert first_gap(seen.answers[1][0][1], seen.only_one) < TIE


def test_new_weights_are_refused_before_they_are_loaded(seen: Seen) -> None:
    status, said = seen.refused["disk"]
    assert (status, said["success"]) == (400, False)
    assert f"Online weight updates are not supported with {FLAG}" in said["message"]


def test_a_session_for_new_weights_is_refused_with_the_next_step(seen: Seen) -> None:
    status, said = seen.refused["session"]
    assert (status, said["success"]) == (400, False)
    assert "restart the server with the new weights, or without" in said["message"]
    assert "no weight-update session is open" in seen.refused["end"][1]["message"]
    assert "megatrace: a weight update is refused: Online weight updates" in seen.log


def test_the_server_goes_on_with_the_weights_it_had(seen: Seen) -> None:
    assert seen.afterwards is not None
    assert first_gap(seen.answers[1][0][1], seen.afterwards.tokens) < TIE


def test_the_bench_measures_a_server_without_a_draft(seen: Seen) -> None:
    assert seen.bench["asked"] == 2
    assert seen.bench["tokens"] == 2 * 12
    assert seen.bench["accept_length"] is None
    assert 0 < seen.bench["wall_tokens_per_s"] < 1e4
    assert seen.bench["tokens_per_s"] == 1e3 / seen.bench["step_ms"]
