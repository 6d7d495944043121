from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest
import torch

from megatrace.errors import UsageError
from megatrace.muse.checkpoint import ROOT, Checkpoint
from megatrace.muse.tensors import LayerTensors, shard_layer
from tests.muse.models import model
from tests.muse.with_torch.checkpoints import (
    Named,
    embedding_of,
    named_layer,
    single_experts,
    small_layers,
    write,
)

SMALL = model()


def equal(a: LayerTensors, b: LayerTensors) -> bool:
    pairs = [(getattr(a, f.name), getattr(b, f.name)) for f in fields(a) if f.name != "experts"]
    pairs += [(getattr(a.experts, f.name), getattr(b.experts, f.name)) for f in fields(a.experts)]
    return all(
        x is y or (x.dtype == y.dtype and torch.equal(x.float(), y.float())) for x, y in pairs
    )


@pytest.fixture(scope="module")
def layers() -> list[LayerTensors]:
    return small_layers(SMALL)


@pytest.fixture(scope="module")
def named(layers: list[LayerTensors]) -> Named:
    found = embedding_of(SMALL)
    for i, layer in enumerate(layers):
        found |= named_layer(f"{ROOT}.layers.{i}", layer, SMALL)
    return found


@pytest.mark.parametrize("files", [1, 3])
@pytest.mark.parametrize("ranks", [1, 4])
def test_every_rank_reads_its_part(
    layers: list[LayerTensors], named: Named, tmp_path: Path, files: int, ranks: int
) -> None:
    write(tmp_path, named, files=files)
    checkpoint = Checkpoint(tmp_path)
    assert checkpoint.model == SMALL
    for rank in range(ranks):
        shape = SMALL.shard(rank, ranks, True)
        for i, layer in enumerate(layers):
            assert equal(checkpoint.layer(i, shape), shard_layer(layer, SMALL, shape))


def test_experts_may_be_stored_one_by_one(layers: list[LayerTensors], tmp_path: Path) -> None:
    write(tmp_path, single_experts(named_layer(f"{ROOT}.layers.0", layers[0], SMALL)))
    shape = SMALL.shard(1, 2)
    assert equal(Checkpoint(tmp_path).layer(0, shape), shard_layer(layers[0], SMALL, shape))


def test_what_stands_around_the_layers_is_read(named: Named, tmp_path: Path) -> None:
    write(tmp_path, named)
    checkpoint = Checkpoint(tmp_path)
    assert torch.equal(checkpoint.embedding(), named[f"{ROOT}.embed_tokens.weight"])
    assert torch.equal(checkpoint.final_norm(), named[f"{ROOT}.norm.weight"])
    assert torch.equal(checkpoint.head(), named["lm_head.weight"])


def test_a_layer_names_its_files(named: Named, tmp_path: Path) -> None:
    write(tmp_path, named, files=3)
    assert {p.name for p in Checkpoint(tmp_path).sources(1)} <= {
        f"model-{i}.safetensors" for i in range(3)
    }
    with pytest.raises(UsageError, match="no weights of layer 7"):
        Checkpoint(tmp_path).sources(7)


def test_a_missing_tensor_is_named(named: Named, tmp_path: Path) -> None:
    name = f"{ROOT}.layers.0.mlp.gate.weight"
    write(tmp_path, {n: t for n, t in named.items() if n != name})
    with pytest.raises(UsageError, match=f"has no {name}"):
        Checkpoint(tmp_path).layer(0, SMALL.shard(0, 1))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda t: t.bfloat16(), r"is BF16 \(16, 256\), expected is torch.float32 \(16, 256\)"),
        (lambda t: t[:8], r"is F32 \(8, 256\), expected is torch.float32 \(16, 256\)"),
    ],
)
def test_a_tensor_of_another_shape_or_type_is_refused(
    named: Named, tmp_path: Path, change: object, said: str
) -> None:
    name = f"{ROOT}.layers.0.mlp.gate.weight"
    assert callable(change)
    write(tmp_path, {**named, name: change(named[name])})
    with pytest.raises(UsageError, match=said):
        Checkpoint(tmp_path).layer(0, SMALL.shard(0, 1))


def test_a_folder_without_weights_is_refused(named: Named, tmp_path: Path) -> None:
    write(tmp_path, named)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(UsageError, match="holds no safetensors"):
        Checkpoint(tmp_path).layer(0, SMALL.shard(0, 1))
    (tmp_path / "model.safetensors").write_bytes(b"short")
    with pytest.raises(UsageError, match="cannot read the weights"):
        Checkpoint(tmp_path).layer(0, SMALL.shard(0, 1))
