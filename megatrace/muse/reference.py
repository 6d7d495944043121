"""The model's math in torch: what every phase of the kernel must compute.

One function a phase, its inputs explicit, then their composition with a tap after each. Names and
symbols: S is the residual stream (fp32 [rows, H]), bf() rounds to bf16. A projection sums in fp32;
rounding its result is the reader's, as in the kernel. Everything runs on the device of its
inputs; on a GPU leave TF32 off.

Of many ranks one is computed. What the others would send is given: ``peers[exchange]`` is bf16
[ranks, rows, columns], with this rank's own place ignored.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch.nn.functional import linear, silu

from megatrace.muse import nvfp4
from megatrace.muse.config import EPS_ROUTER, HEAD_DIM, MuseConfig, RankShape
from megatrace.muse.pack import residual_gate
from megatrace.muse.plan import CacheKind
from megatrace.muse.tensors import Experts, LayerTensors, gain

Peers = Mapping[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Roundings:
    """Where SGLang's paths differ; True is what its class does on a CPU."""

    gate: bool = False
    """Norm, sigmoid and product of the output gate are rounded one by one, not once."""
    expert_norm: bool = False
    """An expert's output is rounded after its gain, its norm and its weight."""
    combine: bool = False
    """Experts are summed in bf16 by ascending id, not in fp32 by slot."""


KERNEL = Roundings()
"""What the megakernel does, as SGLang's fused CUDA kernels."""
SGLANG_CPU = Roundings(gate=True, expert_norm=True, combine=True)


def bf(x: torch.Tensor) -> torch.Tensor:
    """Rounded to bf16, of that type."""
    return x.to(torch.bfloat16)


def stored(x: torch.Tensor, cache: CacheKind) -> torch.Tensor:
    """Bf16 keys or values as the cache gives them back, bf16."""
    if cache == "bf16":
        return x
    most = torch.finfo(torch.float8_e4m3fn).max
    return bf(x.clamp(-most, most).to(torch.float8_e4m3fn))


def rms(x: torch.Tensor, eps: float) -> torch.Tensor:
    """Fp32 x / sqrt(mean(x^2) + eps), over the last axis."""
    wide = x.float()
    return wide * torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + eps)


def project(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """X W^T, summed in fp32, not rounded."""
    return linear(x.float(), weight.float())


def normed(x: torch.Tensor, norm: torch.Tensor, eps: float) -> torch.Tensor:
    """bf(rms(x) gain): the gain after the norm."""
    return bf(rms(x, eps) * gain(norm).float())


# -- between ranks ---------------------------------------------------------------------


def reduce_rows(own: torch.Tensor, peers: torch.Tensor | None, rank: int) -> torch.Tensor:
    """Sum over ranks of bf16 rows, in fp32 in the order of ranks, rounded once."""
    if peers is None:
        return own
    total = torch.zeros_like(own, dtype=torch.float32)
    for r, row in enumerate(peers):
        total += (own if r == rank else row).float()
    return bf(total)


def gather_columns(own: torch.Tensor, peers: torch.Tensor | None, rank: int) -> torch.Tensor:
    """The ranks' bf16 columns side by side."""
    if peers is None:
        return own
    return torch.cat([own if r == rank else row for r, row in enumerate(peers)], dim=-1)


# -- the phases ------------------------------------------------------------------------


def embed(
    tokens: torch.Tensor, embedding: torch.Tensor, input_norm: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens [rows] -> (S, input of layer 0 bf16 [rows, H]); the norm of the embedding has no
    weight.
    """  # noqa: D205
    stream = bf(rms(embedding[tokens], eps)).float()
    return stream, normed(stream, input_norm, eps)


def attention_part(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    *,
    context: int,
    first: int,
    window: int,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A chunk of keys, which begins at position ``first``, against all queries.

    q bf16 [rows, heads, 64], row r at position ``context`` + r; keys and values bf16
    [chunk, kv heads, 64]. Returns fp32 (sum of p v [rows, heads, 64], maximum of the scores times
    log2 e [rows, heads], sum of p [rows, heads]) with p = 2^(score - maximum). A row that sees
    nothing of the chunk has maximum -inf and zeros.
    """
    rows, heads, _ = q.shape
    group = heads // keys.shape[1]
    wide_keys = keys.float().repeat_interleave(group, dim=1)
    scores = torch.einsum("thd,khd->thk", q.float(), wide_keys) * (scale * math.log2(math.e))
    at = torch.arange(first, first + keys.shape[0], device=q.device)
    row = torch.arange(context, context + rows, device=q.device)[:, None]
    visible = at <= row
    if window:
        visible &= at > row - window
    scores = scores.masked_fill(~visible[:, None], -math.inf)
    top = scores.amax(dim=-1)
    p = torch.exp2(scores - top.clamp(min=-3e38)[..., None])
    wide_values = values.float().repeat_interleave(group, dim=1)
    return torch.einsum("thk,khd->thd", p, wide_values), top, p.sum(dim=-1)


def attention(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    *,
    context: int,
    window: int,
    scale: float,
) -> torch.Tensor:
    """Fp32 [rows, heads, 64]; keys and values bf16 [context + rows, kv heads, 64], by position."""
    first = max(0, context - window + 1) if window else 0
    end = context + q.shape[0]
    out, _, total = attention_part(
        q,
        keys[first:end],
        values[first:end],
        context=context,
        first=first,
        window=window,
        scale=scale,
    )
    return out / total[..., None]


def attention_merge(
    attended: torch.Tensor, gate: torch.Tensor, eps: float, roundings: Roundings = KERNEL
) -> torch.Tensor:
    """[rows, heads, 64] and gate bf16 [rows, heads * 64] -> bf16 [rows, heads * 64]."""
    heads = rms(bf(attended), eps).flatten(1)
    if roundings.gate:
        return bf(bf(heads).float() * bf(torch.sigmoid(gate.float())).float())
    return bf(heads * torch.sigmoid(gate.float()))


def attn_boundary(
    b: torch.Tensor,
    stream: torch.Tensor,
    gate: torch.Tensor,
    pre_ffn_norm: torch.Tensor,
    model: MuseConfig,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The sum over ranks, b bf16 [rows, H] -> (S, x bf16 [rows, H])."""
    alpha, beta = residual_gate(gate, model.residual_temperature)
    stream = alpha * stream + beta * bf(rms(b, model.eps_post)).float()
    return stream, normed(stream, pre_ffn_norm, model.eps_norm)


def route(
    logits: torch.Tensor, bias: torch.Tensor, model: MuseConfig
) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits fp32 [rows, experts] -> (ids int64, weights fp32), both [rows, top_k].

    Slots are in descending order of chance plus bias, the lower id first where they are equal.
    """
    chance = torch.sigmoid(logits * model.output_multiplier)
    order = torch.sort(chance + bias, dim=-1, descending=True, stable=True).indices
    ids = order[:, : model.top_k]
    chosen = chance.gather(1, ids)
    return ids, chosen / (chosen.sum(-1, keepdim=True) + EPS_ROUTER) * model.route_scale


def expert_matrices(experts: Experts, local: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Fp32 (gate and up rows [2 I, h], down rows [h, I]) of one expert, as the kernel has them."""
    up, down = experts.up[local], experts.down[local]
    if experts.up_scales is None or experts.down_scales is None:
        return up.float(), down.float()
    assert experts.up_scale is not None
    assert experts.down_scale is not None
    inner = up.shape[0] // 2
    scale = experts.up_scale[local].repeat_interleave(inner)[:, None]
    return (
        nvfp4.dequantise(up, experts.up_scales[local]) * scale,
        nvfp4.dequantise(down, experts.down_scales[local]) * experts.down_scale[local],
    )


def _local_pairs(ids: torch.Tensor, rank: RankShape) -> dict[int, torch.Tensor]:
    """Local expert -> the (row, slot) pairs routed to it, for those that have any."""
    local = ids.flatten() - rank.first_expert
    hit = set(local[(local >= 0) & (local < rank.local_experts)].tolist())
    return {expert: (local == expert).nonzero()[:, 0] for expert in sorted(hit)}


def experts_up(
    y: torch.Tensor, ids: torch.Tensor, experts: Experts, rank: RankShape
) -> torch.Tensor:
    """Bf16 [rows, h] -> bf16 [rows * top_k, I]; pairs of other ranks' experts are zero."""
    inner = experts.up.shape[1] // 2
    act = torch.zeros(ids.numel(), inner, dtype=torch.bfloat16, device=y.device)
    for expert, pairs in _local_pairs(ids, rank).items():
        both = bf(project(y[pairs // ids.shape[1]], expert_matrices(experts, expert)[0]))
        gate, up = both.float().chunk(2, dim=-1)
        act[pairs] = bf(bf(silu(gate)).float() * up)
    return act


def experts_down(
    act: torch.Tensor, ids: torch.Tensor, experts: Experts, rank: RankShape
) -> torch.Tensor:
    """Bf16 [rows * top_k, I] -> bf16 [rows * top_k, h]."""
    width = experts.down.shape[1]
    down = torch.zeros(ids.numel(), width, dtype=torch.bfloat16, device=act.device)
    for expert, pairs in _local_pairs(ids, rank).items():
        down[pairs] = bf(project(act[pairs], expert_matrices(experts, expert)[1]))
    return down


def expert_sum(
    down: torch.Tensor,
    ids: torch.Tensor,
    weights: torch.Tensor,
    norm: torch.Tensor,
    rank: RankShape,
    eps: float,
    roundings: Roundings = KERNEL,
) -> torch.Tensor:
    """Bf16 [rows * top_k, h] -> bf16 [rows, h], summed over this rank's experts."""
    rows, top_k = ids.shape
    scaled = down.float() * gain(norm).float()
    scaled = bf(rms(bf(scaled), eps)).float() if roundings.expert_norm else rms(scaled, eps)
    scaled = scaled.view(rows, top_k, -1) * weights[..., None]
    local = (ids >= rank.first_expert) & (ids < rank.first_expert + rank.local_experts)
    scaled = torch.where(local[..., None], scaled, 0.0)
    total = torch.zeros_like(scaled[:, 0])
    if roundings.combine:
        # Slots by ascending expert; those of other ranks add nothing.
        order = ids.argsort(dim=-1)[..., None].expand_as(scaled)
        for part in bf(scaled.gather(1, order)).unbind(1):
            total = bf(total + part.float()).float()
    else:
        for part in scaled.unbind(1):
            total = total + part
    return bf(total)


def ffn_boundary(
    branch: torch.Tensor,
    stream: torch.Tensor,
    gate: torch.Tensor,
    post_ffn_norm: torch.Tensor,
    next_input_norm: torch.Tensor | None,
    model: MuseConfig,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Branch bf16 [rows, H] -> (S, input of the next layer bf16 [rows, H], None after the last).

    The gain comes before this norm.
    """
    alpha, beta = residual_gate(gate, model.residual_temperature)
    scaled = bf(gain(post_ffn_norm).float() * branch.float())
    stream = alpha * stream + beta * bf(rms(scaled, model.eps_post)).float()
    if next_input_norm is None:
        return stream, None
    return stream, normed(stream, next_input_norm, model.eps_norm)


def rotate(x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """bf16 [rows, heads, 64] by the angles fp32 [rows, 64] of its rows: cos(32) | sin(32)."""
    cosine, sine = table[:, None].chunk(2, dim=-1)
    even, odd = x.float()[..., 0::2], x.float()[..., 1::2]
    pairs = torch.stack((even * cosine - odd * sine, even * sine + odd * cosine), dim=-1)
    return bf(pairs.flatten(-2))


def qkv_finish(
    qkv: torch.Tensor,
    rank: RankShape,
    table: torch.Tensor | None,
    eps: float,
    cache: CacheKind = "bf16",
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """fp32 [rows, qkv_rows] -> bf16 (q [rows, heads, 64], keys and values [rows, kv heads, 64],
    gate [rows, heads * 64]); ``table`` has the angles of these rows, None: no position encoding.
    Keys and values are those that ``cache`` gives back.
    """  # noqa: D205
    queries, keys = rank.heads * HEAD_DIM, rank.kv_heads * HEAD_DIM
    q, k, v, gate = torch.split(bf(qkv), [queries, keys, keys, queries], dim=-1)
    q, k, v = (part.reshape(len(part), -1, HEAD_DIM) for part in (q, k, v))
    q, k = bf(rms(q, eps)), bf(rms(k, eps))
    if table is not None:
        q, k = rotate(q, table), rotate(k, table)
    return q, stored(k, cache), stored(v, cache), gate


def logits(
    stream: torch.Tensor, final_norm: torch.Tensor, head: torch.Tensor, model: MuseConfig
) -> torch.Tensor:
    """S -> fp32 [rows, vocabulary], scaled and capped. The final norm's gain is its weight."""
    z = bf(rms(bf(stream), model.eps_norm) * final_norm.float())
    scaled = project(z, head) * model.output_multiplier
    return model.logit_cap * torch.tanh(scaled / model.logit_cap)


def layer_input(stream: torch.Tensor, layer: LayerTensors, model: MuseConfig) -> torch.Tensor:
    """What a layer's projection reads of S."""
    return normed(stream, layer.input_norm, model.eps_norm)
