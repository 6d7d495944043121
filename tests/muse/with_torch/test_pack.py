from __future__ import annotations

import os
import stat
import time
from dataclasses import fields, replace
from pathlib import Path

import pytest
import torch

from megatrace.errors import UsageError
from megatrace.muse import layout, pack
from megatrace.muse.config import HEAD_DIM, RELEASED, MuseConfig
from megatrace.muse.layout import Fp4Layout
from megatrace.muse.pack import PackedLayer, PackKey, pack_cached, pack_layer, unpack_experts
from megatrace.muse.params import layer_weights
from megatrace.muse.plan import ExpertKind, expert_matrix_bytes, projections
from megatrace.muse.tensors import LayerTensors, interleave_pairs, random_layer, shard_layer
from tests.muse.models import model

KINDS: list[ExpertKind] = ["bf16", "nvfp4"]
LAYOUTS: list[Fp4Layout] = ["bits", "native"]


def same(a: torch.Tensor | None, b: torch.Tensor | None) -> bool:
    """Of equal bits."""
    if a is None or b is None:
        return a is b
    return a.dtype == b.dtype and torch.equal(
        a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8)
    )


@pytest.fixture
def small() -> MuseConfig:
    return model()


def some_layer(small: MuseConfig, kind: ExpertKind = "nvfp4", ranks: int = 2) -> LayerTensors:
    return random_layer(small, small.shard(ranks - 1, ranks, True), 5, experts=kind)


@pytest.mark.parametrize("order", LAYOUTS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_layer_is_packed_without_loss(
    small: MuseConfig, kind: ExpertKind, order: Fp4Layout
) -> None:
    layer, shape = some_layer(small, kind), small.shard(1, 2, True)
    packed = pack_layer(layer, small, order)
    for name, projection in projections(small, shape).items():
        weight, stored = getattr(layer, name), getattr(packed, name)
        assert stored.numel() == projection.bytes
        again = layout.unpack_dense(stored, projection.rows, projection.columns, weight.dtype)
        assert same(again, weight)
    experts = unpack_experts(packed, small, order)
    for field in fields(experts):
        assert same(getattr(experts, field.name), getattr(layer.experts, field.name))
    inner, width = small.expert_inner, small.expert_width
    assert packed.experts_up.shape == (8, expert_matrix_bytes(2 * inner, width, kind))
    assert packed.experts_down.shape == (8, expert_matrix_bytes(width, inner, kind))
    assert packed.kind == kind


def test_a_gain_is_one_more_rounded_to_bf16(small: MuseConfig) -> None:
    layer = some_layer(small)
    packed = pack_layer(layer, small)
    for name in ("input", "pre_ffn", "post_ffn", "pre_expert", "post_expert"):
        weight, gain = getattr(layer, f"{name}_norm"), getattr(packed, f"{name}_gain")
        assert same(gain, (weight.double() + 1).to(torch.bfloat16))


def test_a_residual_gate_keeps_the_norm() -> None:
    gate = torch.linspace(-3, 3, 97).bfloat16()
    alpha, beta = pack.residual_gate(gate, 0.3)
    assert alpha.dtype == beta.dtype == torch.float32
    exact = torch.sigmoid(gate.double() / 0.3)
    assert torch.allclose(beta.double(), exact, rtol=1e-6)
    squared = (1 - exact**2).clamp(min=1e-3)
    assert torch.allclose(alpha.double() ** 2, squared, rtol=1e-5)


def test_a_table_of_angles_is_cosines_then_sines() -> None:
    table = pack.rope_table(1e4, 40)
    assert table.shape == (40, 64)
    for position, pair in ((0, 0), (7, 3), (39, 31)):
        angle = torch.tensor(position * 1e4 ** (-2 * pair / 64), dtype=torch.float64)
        assert table[position, pair].item() == pytest.approx(angle.cos().item(), abs=1e-5)
        assert table[position, 32 + pair].item() == pytest.approx(angle.sin().item(), abs=1e-5)


def test_rows_of_a_head_become_rotary_pairs() -> None:
    rows = torch.arange(2 * HEAD_DIM)[:, None].expand(-1, 3)
    pairs = interleave_pairs(rows)[:, 0].tolist()
    for head in range(2):
        for j in range(32):
            assert pairs[head * 64 + 2 * j] == head * 64 + j
            assert pairs[head * 64 + 2 * j + 1] == head * 64 + j + 32


def test_ranks_share_a_layer(small: MuseConfig) -> None:
    whole = random_layer(small, small.shard(0, 1), 3)
    parts = [shard_layer(whole, small, small.shard(rank, 4, True)) for rank in range(4)]
    assert torch.equal(torch.cat([part.o_proj for part in parts], dim=1), whole.o_proj)
    assert torch.equal(torch.cat([part.pre_proj for part in parts]), whole.pre_proj)
    assert torch.equal(torch.cat([part.experts.down for part in parts]), whole.experts.down)
    queries, keys = parts[1].qkv[: 2 * 64], parts[1].qkv[2 * 64 : 3 * 64]
    assert torch.equal(queries, whole.qkv[2 * 64 : 4 * 64])
    # The second of four ranks has the first of two kv heads.
    assert torch.equal(keys, whole.qkv[8 * 64 : 9 * 64])


def test_a_random_layer_is_the_same_again_and_alike_on_all_ranks(small: MuseConfig) -> None:
    shapes = [small.shard(rank, 2, True) for rank in range(2)]
    first, again = (random_layer(small, shapes[0], 7) for _ in range(2))
    other = random_layer(small, shapes[1], 7)
    assert torch.equal(first.experts.up, again.experts.up)
    assert torch.equal(first.router, other.router)
    assert not torch.equal(first.experts.up, other.experts.up)
    assert not torch.equal(first.pre_proj, other.pre_proj)


def test_addresses_go_where_the_kernel_looks(small: MuseConfig) -> None:
    this, after = (pack_layer(some_layer(small, kind), small) for kind in KINDS)
    weights = layer_weights(this, after)
    assert weights.o_proj == this.o_proj.data_ptr()
    assert weights.next_qkv == after.qkv.data_ptr()
    assert weights.up_scale is None
    assert layer_weights(after, None).up_scale == after.up_scale.data_ptr()  # type: ignore[union-attr]


@pytest.mark.gpu
@pytest.mark.parametrize("order", LAYOUTS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_gpu_packs_the_same_bytes(small: MuseConfig, kind: ExpertKind, order: Fp4Layout) -> None:
    layer = some_layer(small, kind)
    here, there = pack_layer(layer, small, order), pack_layer(layer.to("cuda"), small, order)
    for name, tensor in here.tensors().items():
        found = getattr(there, name)
        assert found.is_cuda
        if name.endswith(("alpha", "beta")):
            assert torch.allclose(found.cpu(), tensor, rtol=1e-6)
        else:
            assert same(found.cpu(), tensor)


@pytest.mark.gpu
def test_a_gpu_packs_a_released_layer_in_a_second() -> None:
    layer = random_layer(RELEASED, RELEASED.shard(0, 8, True), 0, device="cuda")
    pack_layer(layer, RELEASED, "bits")
    torch.cuda.synchronize()
    begin = time.perf_counter()
    packed = pack_layer(layer, RELEASED, "bits")
    torch.cuda.synchronize()
    assert time.perf_counter() - begin < 1.0
    assert packed.bytes > 0.9e9


# -- kept on disk ----------------------------------------------------------------------


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"weights")
    return path


class Maker:
    """Makes a pack and counts."""

    def __init__(self, small: MuseConfig) -> None:
        self.packed, self.calls, self.said = pack_layer(some_layer(small), small), 0, list[str]()

    def __call__(self) -> PackedLayer:
        self.calls += 1
        return self.packed

    def get(self, folder: Path, key: PackKey) -> PackedLayer:
        return pack_cached(folder, key, self, say=self.said.append)


def key_of(small: MuseConfig, source: Path, target: str = "sm_90a", layer: int = 0) -> PackKey:
    return PackKey.of(small, small.shard(1, 2, True), layer, target, [source])


def test_a_pack_is_made_once(small: MuseConfig, source: Path, tmp_path: Path) -> None:
    make, key = Maker(small), key_of(small, source)
    first, second = (make.get(tmp_path / "packs", key) for _ in range(2))
    assert make.calls == 1
    assert make.said == []
    for name, tensor in first.tensors().items():
        assert same(getattr(second, name), tensor)


def test_a_pack_is_nobody_else_s(small: MuseConfig, source: Path, tmp_path: Path) -> None:
    folder = tmp_path / "packs"
    mask = os.umask(0)
    try:
        Maker(small).get(folder, key_of(small, source))
    finally:
        os.umask(mask)
    (file,) = folder.iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_a_pack_of_other_weights_is_made_anew(
    small: MuseConfig, source: Path, tmp_path: Path
) -> None:
    make = Maker(small)
    make.get(tmp_path / "packs", key_of(small, source))
    os.utime(source, ns=(1, 1))
    make.get(tmp_path / "packs", key_of(small, source))
    assert make.calls == 2
    (line,) = make.said
    assert "packing again" in line
    assert "other weights" in line
    assert len(list((tmp_path / "packs").iterdir())) == 1


@pytest.mark.parametrize("keep", [0, 100, 5000, -1])
def test_a_truncated_pack_is_made_anew(
    small: MuseConfig, source: Path, tmp_path: Path, keep: int
) -> None:
    make, key = Maker(small), key_of(small, source)
    make.get(tmp_path / "packs", key)
    (file,) = (tmp_path / "packs").iterdir()
    file.write_bytes(file.read_bytes()[:keep])
    again = make.get(tmp_path / "packs", key)
    assert make.calls == 2
    assert "cannot be read" in make.said[0]
    assert same(again.qkv, make.packed.qkv)


def test_what_a_pack_depends_on_changes_its_key(small: MuseConfig, source: Path) -> None:
    key = key_of(small, source)
    assert key_of(small, source) == key
    assert key_of(small, source, target="host").digest == key.digest
    others = [key_of(small, source, target="sm_103a"), key_of(small, source, layer=1)]
    others.append(key_of(replace(small, residual_temperature=0.4), source))
    source.write_bytes(b"other weights")
    others.append(key_of(small, source))
    assert len({key.digest, *(other.digest for other in others)}) == 5
    with pytest.raises(UsageError, match="no kernel is built for 'sm_80'"):
        key_of(small, source, target="sm_80")
