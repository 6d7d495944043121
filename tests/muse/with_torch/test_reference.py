"""What the reference must be, whatever SGLang says."""

from __future__ import annotations

import math

import pytest
import torch

from megatrace.muse import nvfp4
from megatrace.muse import reference as ref
from megatrace.muse.config import MuseConfig
from megatrace.muse.events import PHASES
from megatrace.muse.plan import ExpertKind
from megatrace.muse.taps import Past, Reference, Taps
from megatrace.muse.tensors import LayerTensors, random_layer, shard_layer
from tests.muse.models import model

SMALL = model()
WHOLE = SMALL.shard(0, 1)
ROWS, CONTEXT = 5, 37


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def distance(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found.float() - expected.float()).norm() / expected.float().norm())


def filled_past(kv_heads: int, count: int = CONTEXT) -> Past:
    keys, values = (drawn(count, kv_heads, 64, seed=seed).bfloat16() for seed in (1, 2))
    return Past(keys, values)


@pytest.mark.parametrize("kind", ["bf16", "nvfp4"])
def test_a_layer_keeps_its_activations_near_one(kind: ExpertKind) -> None:
    layer = random_layer(SMALL, WHOLE, 0, experts=kind)
    stream = drawn(ROWS, SMALL.hidden)
    taps = Reference(SMALL, WHOLE).layer(
        layer, SMALL.layers[0], stream, filled_past(2), layer.input_norm
    )
    for phase, names in taps.items():
        assert phase in PHASES
        for name, tensor in names.items():
            if name == "ids":
                continue
            assert tensor.isfinite().all()
            size = tensor.float().square().mean().sqrt().item()
            assert 0.02 < size < 5, (phase, name, size)


def test_every_phase_of_a_step_has_a_tap() -> None:
    layer = random_layer(SMALL, WHOLE, 0)
    reference = Reference(SMALL, WHOLE)
    taps = reference.embed(torch.tensor([3, 4]), drawn(320, 256).bfloat16(), layer)
    taps |= reference.layer(
        layer, SMALL.layers[0], taps["embed"]["stream"], Past.empty(WHOLE), layer.input_norm
    )
    assert set(taps) == set(PHASES)


@pytest.mark.parametrize("window", [0, 1, 16, 64])
def test_chunks_of_keys_merge_to_the_whole_attention(window: int) -> None:
    past = filled_past(2, CONTEXT + ROWS)
    q = drawn(ROWS, 8, 64, seed=3).bfloat16()
    options = {"context": CONTEXT, "window": window, "scale": SMALL.softmax_scale}
    whole = ref.attention(q, past.keys, past.values, **options)
    parts = [
        ref.attention_part(q, past.keys[i : i + 10], past.values[i : i + 10], first=i, **options)
        for i in range(0, CONTEXT + ROWS, 10)
    ]
    top = torch.stack([part[1] for part in parts]).amax(0)
    weights = [torch.exp2(part[1] - top) for part in parts]
    total = sum(w * part[2] for w, part in zip(weights, parts, strict=True))
    out = sum(w[..., None] * part[0] for w, part in zip(weights, parts, strict=True))
    assert distance(out / total[..., None], whole) < 1e-5


def test_a_window_counts_the_query_s_own_key() -> None:
    q, past = drawn(1, 2, 64).bfloat16(), filled_past(1, 9)
    alone = ref.attention(q, past.keys, past.values, context=8, window=1, scale=1.0)
    assert torch.equal(alone[0, 0], past.values[8, 0].float())
    for row, j in ((0, 2), (1, 3)):
        # Two queries at positions 7 and 8 with a window of 6 see keys from 2 and from 3.
        values = torch.zeros_like(past.values)
        values[: j + 1] = 1.0
        two = ref.attention(q.expand(2, 2, 64), past.keys, values, context=7, window=6, scale=0.0)
        assert two[row].unique().tolist() == pytest.approx([1 / 6])


def test_a_rotation_turns_neighbouring_dims_by_the_position() -> None:
    table = torch.zeros(2, 64)
    table[0, :32] = 1.0  # no turn
    table[1, 32:] = 1.0  # a quarter turn
    x = drawn(2, 3, 64).bfloat16()
    turned = ref.rotate(x, table)
    assert torch.equal(turned[0], x[0])
    assert torch.equal(turned[1, :, 0::2], -x[1, :, 1::2])
    assert torch.equal(turned[1, :, 1::2], x[1, :, 0::2])


def test_routes_go_down_and_equal_chances_go_up() -> None:
    logits = torch.zeros(1, SMALL.experts)
    logits[0, [3, 9]] = torch.tensor([5.0, 7.0])
    ids, weights = ref.route(logits, torch.zeros(SMALL.experts), SMALL)
    assert ids.tolist() == [[9, 3, 0, 1]]
    chances = torch.sigmoid(logits * SMALL.output_multiplier)[0, ids[0]]
    assert torch.allclose(weights[0], chances / chances.sum() * SMALL.route_scale)


def test_a_bias_chooses_but_does_not_weigh() -> None:
    logits, bias = torch.zeros(1, SMALL.experts), torch.zeros(SMALL.experts)
    bias[12] = 1.0
    ids, weights = ref.route(logits, bias, SMALL)
    assert ids[0, 0] == 12
    assert torch.allclose(weights, torch.full_like(weights, SMALL.route_scale / SMALL.top_k))


def test_nvfp4_experts_have_a_scale_for_gate_and_one_for_up() -> None:
    layer = random_layer(SMALL, WHOLE, 0)
    experts = layer.experts
    assert experts.up_scales is not None
    assert experts.up_scale is not None
    up, _ = ref.expert_matrices(experts, 3)
    plain = nvfp4.dequantise(experts.up[3], experts.up_scales[3])
    inner = SMALL.expert_inner
    assert torch.equal(up[:inner], plain[:inner] * experts.up_scale[3, 0])
    assert torch.equal(up[inner:], plain[inner:] * experts.up_scale[3, 1])


def test_experts_see_only_their_own_rows() -> None:
    rank = SMALL.shard(1, 2)
    layer = random_layer(SMALL, rank, 0, experts="bf16")
    ids = torch.tensor([[0, 8, 1, 15], [2, 3, 4, 5], [9, 0, 1, 2]])
    y = drawn(3, SMALL.expert_width).bfloat16()
    act = ref.experts_up(y, ids, layer.experts, rank)
    local = (ids >= 8).flatten()
    assert act[~local].abs().sum() == 0
    gate, up = (y[2].float() @ layer.experts.up[1].float().T).bfloat16().float().chunk(2)
    silu = (gate / (1 + torch.exp(-gate))).bfloat16().float()
    assert torch.allclose(act[8].float(), (silu * up).bfloat16().float(), rtol=2e-2, atol=1e-3)
    down = ref.experts_down(act, ids, layer.experts, rank)
    weights = torch.rand(3, 4, generator=torch.Generator().manual_seed(1))
    total = ref.expert_sum(down, ids, weights, layer.post_expert_norm, rank, SMALL.eps_post)
    assert total[1].abs().sum() == 0
    # The norm comes before the weight: a sum of one has the size of its weight.
    assert total[2].float().square().mean().sqrt().item() == pytest.approx(
        weights[2, 0].item(), rel=1e-2
    )


def ranks_together(
    whole: LayerTensors, small: MuseConfig, ranks: int, divided: bool, stream: torch.Tensor
) -> list[Taps]:
    """One layer on each of ``ranks``, which get each other's rows."""
    shapes = [small.shard(rank, ranks, divided) for rank in range(ranks)]
    layers = [shard_layer(whole, small, shape) for shape in shapes]
    full = filled_past(small.kv_heads)
    peers = {
        "attn_reduce": torch.zeros(ranks, ROWS, small.hidden),
        "expert_reduce": torch.zeros(ranks, ROWS, small.expert_width),
        "pre_gather": torch.zeros(ranks, ROWS, shapes[0].pre_rows),
        "post_gather": torch.zeros(ranks, ROWS, shapes[0].post_rows),
    }
    peers = {name: rows.bfloat16() for name, rows in peers.items()}
    sent = {
        "attn_reduce": ("o_proj", "o"),
        "pre_gather": ("router", "pre"),
        "expert_reduce": ("expert_sum", "own"),
        "post_gather": ("post_proj", "post"),
    }
    for exchange in (*sent, None):
        taps = []
        for shape, layer in zip(shapes, layers, strict=True):
            mine = slice(shape.first_kv_head, shape.first_kv_head + shape.kv_heads)
            past = Past(full.keys[:, mine], full.values[:, mine])
            reference = Reference(small, shape)
            taps.append(
                reference.layer(layer, small.layers[0], stream, past, whole.input_norm, peers)
            )
        if exchange is not None:
            phase, name = sent[exchange]
            peers[exchange] = torch.stack([tap[phase][name].bfloat16() for tap in taps])
    return taps


@pytest.mark.parametrize("divided", [False, True])
@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_together_are_one(ranks: int, divided: bool) -> None:
    whole = random_layer(SMALL, WHOLE, 0)
    stream = drawn(ROWS, SMALL.hidden, seed=4)
    one = Reference(SMALL, WHOLE).layer(
        whole, SMALL.layers[0], stream, filled_past(SMALL.kv_heads), whole.input_norm
    )
    together = ranks_together(whole, SMALL, ranks, divided, stream)
    for taps in together:
        for phase, name in (("attn_boundary", "x"), ("route", "y"), ("expert_sum", "sum")):
            assert distance(taps[phase][name], one[phase][name]) < 1e-2
        assert distance(taps["ffn_boundary"]["a"], one["ffn_boundary"]["a"]) < 1e-2
        assert torch.equal(taps["route"]["ids"], one["route"]["ids"])
        # What every rank has, all have alike.
        assert torch.equal(taps["ffn_boundary"]["stream"], together[0]["ffn_boundary"]["stream"])


def test_a_rank_of_many_needs_the_others() -> None:
    rank = SMALL.shard(0, 2)
    layer = random_layer(SMALL, rank, 0)
    with pytest.raises(ValueError, match="attn_reduce rows are needed"):
        Reference(SMALL, rank).layer(
            layer, SMALL.layers[0], drawn(2, SMALL.hidden), Past.empty(rank)
        )


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["bf16", "nvfp4"])
def test_a_gpu_computes_the_same(kind: ExpertKind) -> None:
    layer, stream = random_layer(SMALL, WHOLE, 0, experts=kind), drawn(ROWS, SMALL.hidden)
    reference, past = Reference(SMALL, WHOLE), filled_past(2)
    there = Past(past.keys.cuda(), past.values.cuda())
    here = reference.layer(layer, SMALL.layers[0], stream, past, layer.input_norm)
    norm = layer.input_norm.cuda()
    far = reference.layer(layer.to("cuda"), SMALL.layers[0], stream.cuda(), there, norm)
    for phase, names in here.items():
        for name, tensor in names.items():
            assert distance(far[phase][name].cpu(), tensor) < 1e-2, (phase, name)


def test_the_log_of_two_stands_in_the_partial_maximum() -> None:
    q, past = drawn(1, 2, 64).bfloat16(), filled_past(1, 4)
    _, top, _ = ref.attention_part(
        q, past.keys, past.values, context=3, first=0, window=0, scale=0.5
    )
    scores = (q[0].float() @ past.keys[:, 0].float().T) * 0.5
    assert torch.allclose(top[0], scores.amax(-1) / math.log(2), rtol=1e-5)
