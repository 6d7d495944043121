"""The reference against SGLang's own class, each layer from SGLang's own inputs.

A tiny random model is chaotic, so errors must not go from layer to layer: every comparison begins
with what SGLang itself had there.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from megatrace.muse import reference as ref
from megatrace.muse.checkpoint import Checkpoint
from megatrace.muse.reference import KERNEL, SGLANG_CPU, Roundings
from megatrace.muse.taps import Past, Reference
from megatrace.muse.tensors import LayerTensors

ROOT = Path(__file__).resolve().parents[3]
MOST = 1e-2
"""Relative L2 distance."""

pytestmark = pytest.mark.skipif(find_spec("sglang") is None, reason="no SGLang here")


@dataclass(frozen=True)
class Oracle:
    """A checkpoint and what SGLang made of it."""

    checkpoint: Checkpoint
    taps: dict[str, torch.Tensor]
    layers: list[LayerTensors]

    @property
    def steps(self) -> int:
        return 1 + max(int(name.partition(".")[0]) for name in self.taps)

    def tap(self, step: int, layer: int, name: str) -> torch.Tensor:
        return self.taps[f"{step}.{layer}.{name}"]


@pytest.fixture(scope="module")
def oracle(tmp_path_factory: pytest.TempPathFactory) -> Oracle:
    folder = tmp_path_factory.mktemp("oracle")
    make = [sys.executable, ROOT / "tests" / "sglang_env" / "make_models.py", folder]
    subprocess.run(make, check=True)
    out = folder / "taps.safetensors"
    run = [sys.executable, "-m", "tests.muse.with_torch.sglang_taps", folder / "target", out]
    path = os.pathsep.join([str(ROOT / "tests" / "sglang_env" / "site"), str(ROOT)])
    done = subprocess.run(
        run, cwd=ROOT, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    checkpoint = Checkpoint(folder / "target")
    whole = checkpoint.model.shard(0, 1)
    layers = [checkpoint.layer(i, whole) for i in range(len(checkpoint.model.layers))]
    return Oracle(checkpoint, load_file(out), layers)


def distance(found: torch.Tensor, expected: torch.Tensor) -> float:
    assert found.shape == expected.shape
    return float((found.float() - expected.float()).norm() / expected.float().norm())


def test_the_embedding_is_sglang_s(oracle: Oracle) -> None:
    reference = Reference(oracle.checkpoint.model, oracle.checkpoint.model.shard(0, 1))
    embedding = oracle.checkpoint.embedding()
    for step in range(oracle.steps):
        taps = reference.embed(oracle.taps[f"{step}.tokens"].long(), embedding, oracle.layers[0])
        assert distance(taps["embed"]["stream"], oracle.tap(step, 0, "before")) <= MOST
        assert distance(taps["embed"]["a"], oracle.tap(step, 0, "a")) <= MOST


@pytest.mark.parametrize("roundings", [SGLANG_CPU, KERNEL], ids=["sglang", "kernel"])
def test_every_layer_is_sglang_s(oracle: Oracle, roundings: Roundings) -> None:
    model = oracle.checkpoint.model
    reference = Reference(model, model.shard(0, 1), roundings)
    errors: dict[str, float] = {}
    for i, (layer, kind) in enumerate(zip(oracle.layers, model.layers, strict=True)):
        past = Past.empty(reference.rank)
        for step in range(oracle.steps):

            def check(name: str, found: torch.Tensor, step: int = step, i: int = i) -> None:
                error = distance(found, oracle.tap(step, i, name))
                errors[name] = max(errors.get(name, 0.0), error)

            stream, a = oracle.tap(step, i, "before"), oracle.tap(step, i, "a")
            check("a", ref.layer_input(stream, layer, model))
            new = reference.begin(layer, kind, a, len(past.keys))["qkv_finish"]
            past.add(new["keys"], new["values"])
            first = reference.attend(layer, kind, stream, new["q"], new["gate"], past)
            check("b", first["attn_boundary"]["b"])

            stream, x = ref.attn_boundary(
                oracle.tap(step, i, "b"), stream, layer.attn_gate, layer.pre_ffn_norm, model
            )
            check("x", x)
            rest = reference.feed(layer, stream, oracle.tap(step, i, "x"), None)
            check("logits", rest["router"]["logits"])
            ids, theirs = rest["route"]["ids"], oracle.tap(step, i, "ids").long()
            assert torch.equal(ids.sort(-1).values, theirs.sort(-1).values)
            weights = torch.zeros(len(ids), model.experts)
            weights.scatter_(1, ids, rest["route"]["weights"])
            check("weights", weights.gather(1, theirs))
            check("y", rest["route"]["y"])
            check("sum", rest["expert_sum"]["sum"])
            check("branch", rest["ffn_boundary"]["branch"])
            check("stream", rest["ffn_boundary"]["stream"])
    assert {name: error for name, error in errors.items() if not error <= MOST} == {}
    assert set(errors) == {"a", "b", "x", "logits", "weights", "y", "sum", "branch", "stream"}


def test_logits_are_sglang_s(oracle: Oracle) -> None:
    model = oracle.checkpoint.model
    final_norm, head = oracle.checkpoint.final_norm(), oracle.checkpoint.head()
    for step in range(oracle.steps):
        stream = oracle.tap(step, len(model.layers) - 1, "stream")[-1:]
        found = ref.logits(stream, final_norm, head, model)
        assert distance(found, oracle.taps[f"{step}.logits"]) <= MOST


def test_a_step_with_forced_streams_is_the_layers_one_by_one(oracle: Oracle) -> None:
    model = oracle.checkpoint.model
    reference = Reference(model, model.shard(0, 1), SGLANG_CPU)
    pasts = [Past.empty(reference.rank) for _ in model.layers]
    for step in range(oracle.steps):
        befores = {i: oracle.tap(step, i, "before") for i in range(len(model.layers))}
        taps = reference.step(oracle.layers, befores[0], pasts, forced=befores)
        for i in range(len(model.layers)):
            error = distance(taps[i]["attn_boundary"]["b"], oracle.tap(step, i, "b"))
            assert error <= MOST
            assert taps[i]["ffn_boundary"].keys() >= {"stream", "branch"}
    assert [len(past.keys) for past in pasts] == [40 + 4] * len(model.layers)
