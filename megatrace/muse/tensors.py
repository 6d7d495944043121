"""One layer's weights on one rank, as the math of the model names them."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, fields, replace

import torch

from megatrace.muse.config import HEAD_DIM, MuseConfig, RankShape
from megatrace.muse.plan import NVFP4_GROUP, ExpertKind


@dataclass(frozen=True, slots=True)
class Experts:
    """A rank's experts. Gate rows come before up rows."""

    up: torch.Tensor
    """bf16 [local, 2 I, h]; NVFP4: codes, uint8 [local, 2 I, h / 2], low nibble first."""
    down: torch.Tensor
    """bf16 [local, h, I]; NVFP4: codes, uint8 [local, h, I / 2]."""
    up_scales: torch.Tensor | None = None
    """NVFP4: e4m3 [local, 2 I, h / 16]."""
    down_scales: torch.Tensor | None = None
    """NVFP4: e4m3 [local, h, I / 16]."""
    up_scale: torch.Tensor | None = None
    """NVFP4: fp32 [local, 2], of the gate and of the up rows."""
    down_scale: torch.Tensor | None = None
    """NVFP4: fp32 [local]."""

    @property
    def kind(self) -> ExpertKind:
        """How they are stored."""
        return "bf16" if self.up_scale is None else "nvfp4"

    def to(self, device: torch.device | str) -> Experts:
        """The same on another device."""
        named = {f.name: getattr(self, f.name) for f in fields(self)}
        return Experts(**{name: t.to(device) for name, t in named.items() if t is not None})


@dataclass(frozen=True, slots=True)
class LayerTensors:
    """A rank's part of a layer. Norm weights are those of the checkpoint, without the one."""

    qkv: torch.Tensor
    """bf16 [rows, H], rows [q | k | v | gate]; q and k of a head in the order of rotary pairs."""
    o_proj: torch.Tensor
    """bf16 [H, heads * 64]."""
    router: torch.Tensor
    """fp32 [experts, H]."""
    router_bias: torch.Tensor
    """fp32 [experts]."""
    pre_proj: torch.Tensor
    """bf16 [pre_rows, H]."""
    post_proj: torch.Tensor
    """bf16 [post_rows, h]."""
    attn_gate: torch.Tensor
    """bf16 [H], of the residual after the attention."""
    ffn_gate: torch.Tensor
    """bf16 [H], of the residual after the experts."""
    input_norm: torch.Tensor
    """bf16 [H]."""
    pre_ffn_norm: torch.Tensor
    """bf16 [H]."""
    post_ffn_norm: torch.Tensor
    """bf16 [H]."""
    pre_expert_norm: torch.Tensor
    """bf16 [h]."""
    post_expert_norm: torch.Tensor
    """bf16 [h]."""
    experts: Experts

    def to(self, device: torch.device | str) -> LayerTensors:
        """The same on another device."""
        return LayerTensors(**{f.name: getattr(self, f.name).to(device) for f in fields(self)})


def gain(weight: torch.Tensor) -> torch.Tensor:
    """The gain of a norm: one more than its weight, rounded to the weight's type."""
    return weight + 1.0


def interleave_pairs(rows: torch.Tensor) -> torch.Tensor:
    """[heads * 64, H] of q or k from the checkpoint's half-split order to rotary pairs.

    Row j of a head becomes 2 j, row j + 32 becomes 2 j + 1.
    """
    halves = rows.view(-1, 2, HEAD_DIM // 2, *rows.shape[1:])
    return halves.transpose(1, 2).reshape(rows.shape)


def shard_layer(whole: LayerTensors, model: MuseConfig, rank: RankShape) -> LayerTensors:
    """One rank's part of a layer that one rank holds whole."""
    queries, keys = model.heads * HEAD_DIM, model.kv_heads * HEAD_DIM
    q, k, v, gate = torch.split(whole.qkv, [queries, keys, keys, queries])
    mine = slice(rank.rank * rank.heads * HEAD_DIM, (rank.rank + 1) * rank.heads * HEAD_DIM)
    kv = slice(rank.first_kv_head * HEAD_DIM, (rank.first_kv_head + rank.kv_heads) * HEAD_DIM)
    local = slice(rank.first_expert, rank.first_expert + rank.local_experts)
    pre = slice(rank.first_pre_row, rank.first_pre_row + rank.pre_rows)
    post = slice(rank.first_post_row, rank.first_post_row + rank.post_rows)
    e = whole.experts
    experts = Experts(e.up[local], e.down[local])
    if e.up_scales is not None and e.down_scales is not None:
        assert e.up_scale is not None
        assert e.down_scale is not None
        experts = replace(
            experts,
            up_scales=e.up_scales[local],
            down_scales=e.down_scales[local],
            up_scale=e.up_scale[local],
            down_scale=e.down_scale[local],
        )
    return replace(
        whole,
        qkv=torch.cat((q[mine], k[kv], v[kv], gate[mine])),
        o_proj=whole.o_proj[:, mine],
        pre_proj=whole.pre_proj[pre],
        post_proj=whole.post_proj[post],
        experts=experts,
    )


def random_layer(
    model: MuseConfig,
    rank: RankShape,
    seed: int,
    *,
    experts: ExpertKind = "nvfp4",
    device: torch.device | str = "cpu",
) -> LayerTensors:
    """A layer of random weights whose activations stay near one.

    What all ranks hold alike is equal on all of them, on one kind of device. NVFP4 codes and
    scales are drawn, not quantised.
    """
    hidden, width = model.hidden, model.expert_width
    draw = _Draw(seed, rank, torch.device(device))
    columns = rank.heads * HEAD_DIM
    return LayerTensors(
        qkv=draw.matrix("qkv", rank.qkv_rows, hidden, mine=True),
        o_proj=draw.matrix("o_proj", hidden, columns, mine=True),
        router=draw.normal("router", (model.experts, hidden), 4.0 * hidden**-0.5),
        router_bias=draw.normal("router_bias", (model.experts,), 0.05),
        pre_proj=draw.matrix("pre", rank.pre_rows, hidden, mine=rank.pre_rows < width),
        post_proj=draw.matrix("post", rank.post_rows, width, mine=rank.post_rows < hidden),
        attn_gate=draw.vector("attn_gate", hidden, mean=-0.6, scale=0.3),
        ffn_gate=draw.vector("ffn_gate", hidden, mean=-0.6, scale=0.3),
        input_norm=draw.vector("input_norm", hidden),
        pre_ffn_norm=draw.vector("pre_ffn_norm", hidden),
        post_ffn_norm=draw.vector("post_ffn_norm", hidden),
        pre_expert_norm=draw.vector("pre_expert_norm", width),
        post_expert_norm=draw.vector("post_expert_norm", width),
        experts=_random_experts(draw, model, rank, experts),
    )


def _random_experts(draw: _Draw, model: MuseConfig, rank: RankShape, kind: ExpertKind) -> Experts:
    up = (rank.local_experts, 2 * model.expert_inner, model.expert_width)
    down = (rank.local_experts, model.expert_width, model.expert_inner)
    if kind == "bf16":
        return Experts(
            draw.normal("up", up, up[2] ** -0.5, torch.bfloat16, mine=True),
            draw.normal("down", down, down[2] ** -0.5, torch.bfloat16, mine=True),
        )
    up_codes, up_scales = draw.nvfp4("up", up)
    down_codes, down_scales = draw.nvfp4("down", down)
    # A drawn code has a mean square of 8.6, a drawn scale one of 1.4.
    whole = (8.6 * 1.4) ** -0.5
    local = rank.local_experts
    return Experts(
        up_codes,
        down_codes,
        up_scales,
        down_scales,
        draw.uniform("up_scale", (local, 2)) * whole * up[2] ** -0.5,
        draw.uniform("down_scale", (local,)) * whole * down[2] ** -0.5,
    )


@dataclass(frozen=True, slots=True)
class _Draw:
    """Random tensors by name: the same name, seed and kind of device, the same values."""

    seed: int
    rank: RankShape
    device: torch.device

    def _generator(self, name: str, mine: bool) -> torch.Generator:
        who = f"{self.seed} {name} {self.rank.rank if mine else 'all'}"
        return torch.Generator(self.device).manual_seed(zlib.crc32(who.encode()))

    def normal(
        self,
        name: str,
        shape: tuple[int, ...],
        scale: float,
        dtype: torch.dtype = torch.float32,
        *,
        mean: float = 0.0,
        mine: bool = False,
    ) -> torch.Tensor:
        drawn = torch.empty(shape, dtype=dtype, device=self.device)
        return drawn.normal_(mean, scale, generator=self._generator(name, mine))

    def matrix(self, name: str, rows: int, columns: int, *, mine: bool) -> torch.Tensor:
        return self.normal(name, (rows, columns), columns**-0.5, torch.bfloat16, mine=mine)

    def vector(
        self, name: str, size: int, *, mean: float = 0.0, scale: float = 0.1
    ) -> torch.Tensor:
        return self.normal(name, (size,), scale, torch.bfloat16, mean=mean)

    def uniform(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """From 0.5 to 1.5, so that a scale mistaken for another shows."""
        drawn = torch.empty(shape, device=self.device)
        return drawn.uniform_(0.5, 1.5, generator=self._generator(name, True))

    def nvfp4(self, name: str, shape: tuple[int, int, int]) -> tuple[torch.Tensor, torch.Tensor]:
        """Codes of every value, scales of 0.5 to 2."""
        generator = self._generator(name, True)
        experts, rows, columns = shape
        codes = torch.empty(
            (experts, rows, columns // 2), dtype=torch.uint8, device=self.device
        ).random_(0, 256, generator=generator)
        scales = torch.empty(
            (experts, rows, columns // NVFP4_GROUP), dtype=torch.uint8, device=self.device
        ).random_(0x30, 0x41, generator=generator)
        return codes, scales.view(torch.float8_e4m3fn)
