"""The megakernel's host build in a real server: its tokens, its recording, its refusals."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from megatrace.analysis.trace import Trace, decode
from megatrace.capture.reader import open_capture
from tests.sglang.answers import AFTER_A_TIE, TIE, Answer, Parts, apart, ask, follow, ties
from tests.sglang.server import Environment, Server, asked_meanwhile, serving

TOKENS, BLOCK, LAYERS = 64, 4, 6
PROMPTS = (
    [70],
    [60, 61, 62, 63, 64],
    [40 + 7 * i % 200 for i in range(17)],
    [200 - 11 * i % 150 for i in range(40)],
    [33 + 5 * i % 250 for i in range(75)],
)
APART = 0.1
"""The most that a likely token's logarithm may differ between them."""
EVERY = 8
VARIABLES = {"MEGATRACE_SHIM_DFLASH": "1", "MEGATRACE_SHIM_GPU": "sm_90"}
FLAG = "--enable-nvidia-megakernel"


@dataclass(slots=True)
class Seen:
    """What the server with the megakernel did."""

    plain: list[Answer] = field(default_factory=list)
    """Of each prompt, without the megakernel."""
    answers: list[Parts] = field(default_factory=list)
    sampled: list[int] = field(default_factory=list)
    pair: list[Any] = field(default_factory=list)
    log: str = ""
    exit_code: int = 0
    trace: Trace | None = None


def descendants(pid: int) -> list[int]:
    """Processes below ``pid``, the nearest first."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(c) for c in children] + [d for c in children for d in descendants(int(c))]


def killed_in_a_request(server: Server) -> int:
    """Kill the whole server while it answers; the recorder's exit code."""

    def long_request() -> None:
        with contextlib.suppress(OSError):
            server.generate("without an end", 900, "cut")

    request = threading.Thread(target=long_request, daemon=True)
    request.start()
    time.sleep(4)
    assert request.is_alive()
    for pid in descendants(server.process.pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return server.process.wait(60)


@pytest.fixture(scope="module")
def seen(environment: Environment, tmp_path_factory: pytest.TempPathFactory) -> Seen:
    """A recorded server with the megakernel, at last killed in the middle of a request.

    Beside it one without the megakernel: they start in the time of one.
    """
    folder, seen = tmp_path_factory.mktemp("megakernel"), Seen()
    capture, log = folder / "run.mtr", folder / "server.log"
    record = [sys.executable, "-m", "megatrace", "record", "--every", str(EVERY)]
    variables = {
        **VARIABLES,
        "MEGATRACE_RUNTIME_DIR": str(folder / "runtime"),
        "MEGATRACE_PYTHON": str(environment.python),
    }
    plain = asked_meanwhile(
        environment,
        folder / "plain.log",
        lambda server: [ask(server, prompt, TOKENS) for prompt in PROMPTS],
        draft=True,
        variables=VARIABLES,
    )
    with serving(
        environment,
        log,
        draft=True,
        command=[*record, "-o", str(capture), "--"],
        arguments=[FLAG],
        variables=variables,
    ) as server:
        seen.plain = plain.result()
        for prompt, answer in zip(PROMPTS, seen.plain, strict=True):
            # One is asked for in one piece.
            first = AFTER_A_TIE if seen.answers else TOKENS
            seen.answers.append(follow(server, prompt, answer, first))
        sampling = {"max_new_tokens": 8, "temperature": 1.0, "ignore_eos": True}
        body = {"input_ids": PROMPTS[1], "sampling_params": sampling}
        seen.sampled = server.post("/generate", body)[1]["output_ids"]
        seen.pair = server.generate(["one", "and two"], 3 * EVERY, ["pair-0", "pair-1"])
        seen.exit_code = killed_in_a_request(server)
    seen.log = log.read_text()
    with open_capture(capture) as opened:
        seen.trace = decode(opened)
    return seen


def hosts(seen: Seen, *events: str) -> pd.DataFrame:
    """Host spans of some kinds."""
    assert seen.trace is not None
    return seen.trace.host[seen.trace.host["event"].isin(events)]


def test_every_rank_says_that_the_megakernel_is_active(seen: Seen) -> None:
    assert "NVIDIA megakernel: active (megatrace Muse Spark: 6 layers, bf16 experts" in seen.log
    assert f"widths [{BLOCK}]" in seen.log
    assert "packing the weights for the megakernel takes 0.02 GB" in seen.log


def test_tokens_are_those_of_the_plain_server_but_for_ties(seen: Seen) -> None:
    found = [t for w, parts in zip(seen.plain, seen.answers, strict=True) for t in ties(w, parts)]
    print("ties (place, gap of the plain server, gap here):", found)
    assert all(max(there, here) < TIE for _, there, here in found), found
    assert len(found) <= 12, found


def test_likely_tokens_are_as_likely_as_in_the_plain_server(seen: Seen) -> None:
    gaps = [g for w, parts in zip(seen.plain, seen.answers, strict=True) for g in apart(w, parts)]
    assert len(gaps) >= TOKENS * len(PROMPTS)
    assert max(gaps) < APART
    assert pd.Series(gaps).median() < APART / 10


def test_a_sampled_request_goes_through_the_servers_own_sampler(seen: Seen) -> None:
    assert len(seen.sampled) == 8


def test_launches_lie_inside_the_verify_of_their_step(seen: Seen) -> None:
    assert seen.trace is not None
    launches = seen.trace.launches
    whole = launches[launches["complete"]]
    assert set(whole["layer"]) == set(range(LAYERS))
    assert set(whole["kernel"].astype(str)) == {"embed", "layer"}
    verifies = hosts(seen, "verify").drop_duplicates("step").set_index("step")
    # The verify that was cut by the kill was never written.
    whole = whole[whole["step"].isin(verifies.index)]
    assert whole["step"].nunique() > 2 * TOKENS // EVERY
    around = verifies.loc[whole["step"]]
    assert (around["begin_ns"].to_numpy() <= whole["begin_ns"].to_numpy()).all()
    assert (around["end_ns"].to_numpy() >= whole["end_ns"].to_numpy()).all()
    assert (around["batch_size"] == 1).all()
    assert (around["tokens"] == BLOCK).all()


def test_a_step_is_one_launch_a_layer_and_one_for_the_embedding(seen: Seen) -> None:
    assert seen.trace is not None
    launches = seen.trace.launches
    steps = hosts(seen, "verify")["step"]
    counts = launches[launches["step"].isin(steps)].groupby(["step", "ring"]).size()
    assert set(counts) == {LAYERS + 1}


def test_two_requests_at_once_are_left_to_the_servers_own_forward(seen: Seen) -> None:
    assert seen.trace is not None
    both = set(hosts(seen, "verify").query("batch_size == 2")["step"])
    assert [s for s in both if s % EVERY == 0]
    assert not both & set(seen.trace.launches["step"])
    assert [a["meta_info"]["completion_tokens"] for a in seen.pair] == [3 * EVERY] * 2


def test_a_server_killed_in_a_request_leaves_a_readable_capture(seen: Seen) -> None:
    assert seen.trace is not None
    assert seen.exit_code == 128 + signal.SIGKILL
    last = hosts(seen, "verify")["step"].max()
    assert seen.trace.launches["step"].max() >= last - EVERY
    assert not [p for p in seen.trace.problems if "clock" in p]


# -- refusals --------------------------------------------------------------------------

RESOLVE = """
import json, os, sys
import sglang.srt.server_args, sglang.srt.plugins
for i, (name, (variables, code, words)) in enumerate(json.load(sys.stdin).items()):
    if i >= 2:
        os.wait()
    if os.fork() == 0:
        os.environ.update(variables)
        out = os.open(f"{name}.out", os.O_WRONLY | os.O_CREAT, 0o600)
        for fd in (1, 2):
            os.dup2(out, fd)
        exec(code, {})
        sglang.srt.plugins.load_plugins()
        try:
            sglang.srt.server_args.prepare_server_args(words).resolve_once()
            print("accepted")
        except Exception as error:
            print("refused:", error)
        sys.stdout.flush()
        os._exit(0)
os.wait(), os.wait()
"""
KEPT = """
import torch
from types import SimpleNamespace
from megatrace.sglang import muse_model, one_copy
names = ("gate_up_proj", "down_proj", "gate_up_proj_weight_scale", "down_proj_weight_scale",
         "gate_up_proj_weight_scale_2", "down_proj_weight_scale_2")
for marlin in (True, False):
    module = torch.nn.Module()
    for i, name in enumerate(names):
        module.register_parameter(name, torch.nn.Parameter(torch.full((2,), i + 1.0)))
    place = module.gate_up_proj.data_ptr()
    def rearrange(method, module):
        if marlin:
            del module.gate_up_proj, module.down_proj
        else:
            module.gate_up_proj.data.zero_()
    backend = SimpleNamespace(is_marlin=lambda: marlin)
    muse_model.keep_nvfp4(rearrange, SimpleNamespace(_moe_runner_backend=backend), module)
    held = muse_model.kept_bytes()
    taken = muse_model._take_experts(module)
    same, left = taken.up.data_ptr() == place, muse_model.kept_bytes()
    print("kept", marlin, same, taken.up.tolist(), taken.down_scale.tolist(), held, left)
for name in ("w13_weight", "gate_up_proj"):
    print("one copy", one_copy.uncovered(SimpleNamespace(**{name: None})))
"""
SHORT = """
import json, os, torch
from types import SimpleNamespace
from megatrace.muse.memory import Memory
from megatrace.sglang import spec
text = json.load(open(os.environ["MODEL"]))["text_config"]
layer = torch.nn.Module()
layer.mlp, layer.self_attn = torch.nn.Module(), SimpleNamespace(qkv_proj=torch.nn.Linear(1, 1))
layer.mlp.pre_expert_proj, layer.mlp.nvfp4_checkpoint = torch.nn.Linear(1, 1), False
layer.mlp.experts = experts = torch.nn.Module()
experts.use_trtllm = False
for name in ("gate_up_proj", "down_proj"):
    setattr(experts, name, torch.nn.Parameter(torch.zeros(10**6)))
stack = SimpleNamespace(layers=[layer] * text["num_hidden_layers"])
model = SimpleNamespace(model=SimpleNamespace(language_model=stack))
config = SimpleNamespace(text_config=SimpleNamespace(to_dict=lambda: text))
spec._server_memory = lambda positions: (1024, 0.1)
spec.muse_model.served_cache = lambda: "bf16"
for free in (10**9, 150 * 10**6):
    spec.Memory = SimpleNamespace(of=lambda device: Memory(free, 16 * 10**7))
    print("short", spec.model_disable_reasons(model, config))
"""
RIVAL = """
from sglang.kernels.plugin_kernels.nvidia import spec
spec.register(architecture="MuseSparkForConditionalGeneration", path="rival:SPEC")
"""


@pytest.fixture(scope="module")
def refused(
    environment: Environment, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], str]:
    """What each of some servers says while it resolves its arguments."""
    import json

    folder = tmp_path_factory.mktemp("refused")
    dense = folder / "dense"
    dense.mkdir()
    for path in environment.target.iterdir():
        (dense / path.name).symlink_to(path)
    config = json.loads((environment.target / "config.json").read_text())
    config["text_config"]["mlp_layer_types"][2] = "dense"
    (dense / "config.json").unlink()
    (dense / "config.json").write_text(json.dumps(config))
    words = [*environment.arguments(1), FLAG]
    cases: dict[str, tuple[dict[str, str], str, list[str]]] = {
        "covered": (VARIABLES, "", words),
        "no GPU": ({}, "", words),
        "other GPU": ({"MEGATRACE_SHIM_GPU": "sm_80"}, "", words),
        "default cache": (VARIABLES, "", [*words, "--kv-cache-dtype", "auto"]),
        "e4m3 cache": (VARIABLES, "", [*words, "--kv-cache-dtype", "fp8_e4m3"]),
        "e5m2 cache": (VARIABLES, "", [*words, "--kv-cache-dtype", "fp8_e5m2"]),
        "several": (VARIABLES, "", [*words, "--tp-size", "2"]),
        "tree": (VARIABLES, "", [*words, "--speculative-algorithm", "NGRAM"]),
        "dense": (VARIABLES, "", [*words, "--model-path", str(dense)]),
        "rival": (VARIABLES, RIVAL, words),
        "kept": (VARIABLES, KEPT, words),
        "short": ({**VARIABLES, "MODEL": str(environment.target / "config.json")}, SHORT, words),
    }
    subprocess.run(
        [environment.python, "-c", RESOLVE],
        cwd=folder,
        env=environment.variables({}),
        input=json.dumps(cases),
        text=True,
        timeout=150,
        check=True,
    )
    return lambda name: (folder / f"{name}.out").read_text()


@pytest.mark.parametrize("name", ["covered", "default cache", "e4m3 cache"])
def test_a_covered_server_is_accepted(refused: Callable[[str], str], name: str) -> None:
    assert refused(name).endswith("accepted\n")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("no GPU", "no GPU is visible"),
        ("other GPU", "supports ['sm_103', 'sm_90'], not sm_80"),
        ("e5m2 cache", "keys and values in fp8_e5m2: the kernel reads and writes fp8_e4m3"),
        ("several", "several GPUs: the kernel's exchanges between ranks are emulated on one GPU"),
        ("tree", "NGRAM may verify a tree of tokens: only chains are covered"),
        ("dense", "layers [2] are dense (mlp_layer_types): every layer must be sparse"),
        ("rival", "rival:SPEC does not import"),
    ],
)
def test_what_is_not_covered_is_refused_with_the_reason(
    refused: Callable[[str], str], name: str, reason: str
) -> None:
    refusal = refused(name).partition("refused:")[2]
    assert f"{FLAG} cannot run this setup" in refusal
    assert reason in refusal


def test_a_second_spec_for_the_model_is_refused_with_the_reason(
    refused: Callable[[str], str],
) -> None:
    log = refused("rival")
    assert "a megakernel spec for MuseSparkForConditionalGeneration is already registered" in log


def test_nvfp4_weights_are_held_as_loaded_until_they_are_packed(
    refused: Callable[[str], str],
) -> None:
    # Marlin leaves them where they are, TRT-LLM writes over them.
    said = [line for line in refused("kept").splitlines() if line.startswith("kept")]
    values = "[1.0, 1.0] [6.0, 6.0] 32 0"
    assert said == [f"kept True True {values}", f"kept False False {values}"]


def test_a_model_that_does_not_fit_twice_is_refused_with_the_numbers_and_the_next_step(
    refused: Callable[[str], str],
) -> None:
    fits, short = (line for line in refused("short").splitlines() if line.startswith("short"))
    assert fits == "short []"
    assert "own packing of the weights takes 0.02 GB: of 0.16 GB, 0.15 are free" in short
    # Five of six layers' two matrices of a million fp32.
    assert "MEGATRACE_ONE_COPY=1 saves 0.04 GB where one request at a time is served" in short


def test_experts_in_an_order_of_trt_llm_are_not_given_up(refused: Callable[[str], str]) -> None:
    marlin, other = (line for line in refused("kept").splitlines() if line.startswith("one copy"))
    assert marlin == "one copy None"
    assert "MEGATRACE_ONE_COPY=1 with experts in an order of TRT-LLM" in other
