"""A layer as the kernel reads it: packed once, kept on disk if one likes.

The byte orders are those of ``megatrace.muse.layout``; the fields those of ``LayerWeights`` in
params.cuh.
"""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from megatrace.errors import UsageError
from megatrace.muse import layout
from megatrace.muse.config import MIN_ALPHA_SQUARED, MuseConfig, RankShape
from megatrace.muse.layout import TARGET_LAYOUT, Fp4Layout
from megatrace.muse.plan import ExpertKind
from megatrace.muse.tensors import Experts, LayerTensors, gain

LAYOUT_VERSION = 1
"""Raised with every change of the byte orders: packs of another version are made anew."""


@dataclass(frozen=True, slots=True)
class PackedLayer:
    """What ``LayerWeights`` points to, for one layer and rank. Packed matrices are uint8."""

    qkv: torch.Tensor
    o_proj: torch.Tensor
    router: torch.Tensor
    pre_proj: torch.Tensor
    experts_up: torch.Tensor
    """[local_experts, bytes of one]."""
    experts_down: torch.Tensor
    """[local_experts, bytes of one]."""
    post_proj: torch.Tensor
    router_bias: torch.Tensor
    """fp32 [experts]."""
    attn_alpha: torch.Tensor
    """fp32 [H], as the other three."""
    attn_beta: torch.Tensor
    ffn_alpha: torch.Tensor
    ffn_beta: torch.Tensor
    input_gain: torch.Tensor
    """bf16 [H]; the other gains too, [h] beside the experts."""
    pre_ffn_gain: torch.Tensor
    post_ffn_gain: torch.Tensor
    pre_expert_gain: torch.Tensor
    post_expert_gain: torch.Tensor
    up_scale: torch.Tensor | None = None
    """NVFP4: fp32 [local_experts, 2], of the gate and of the up rows."""
    down_scale: torch.Tensor | None = None
    """NVFP4: fp32 [local_experts]."""

    @property
    def kind(self) -> ExpertKind:
        """How the experts are stored."""
        return "bf16" if self.up_scale is None else "nvfp4"

    def tensors(self) -> dict[str, torch.Tensor]:
        """Every tensor there is, by field."""
        named = ((field.name, getattr(self, field.name)) for field in fields(self))
        return {name: tensor for name, tensor in named if tensor is not None}

    @property
    def bytes(self) -> int:
        """Of all tensors."""
        return sum(t.numel() * t.element_size() for t in self.tensors().values())

    def to(self, device: torch.device | str) -> PackedLayer:
        """The same on another device."""
        return PackedLayer(**{name: t.to(device) for name, t in self.tensors().items()})


def residual_gate(gate: torch.Tensor, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
    """(alpha, beta) fp32 of a residual gate: stream <- alpha stream + beta branch."""
    z = gate.float() / temperature
    beta = torch.sigmoid(z)
    squared = torch.sigmoid(-z) * (1.0 + beta)
    return torch.sqrt(squared.clamp(min=MIN_ALPHA_SQUARED)), beta


def rope_table(theta: float, positions: int, device: torch.device | str = "cpu") -> torch.Tensor:
    """fp32 [positions, 64]: the cosines of 32 pairs, then their sines."""
    exponents = torch.arange(0, 64, 2, dtype=torch.float32, device=device) / 64
    angles = torch.arange(positions, dtype=torch.float32, device=device)[:, None] * (
        1.0 / theta**exponents
    )
    return torch.cat((angles.cos(), angles.sin()), dim=-1)


def pack_layer(layer: LayerTensors, model: MuseConfig, fp4: Fp4Layout = "bits") -> PackedLayer:
    """Pack a rank's layer, on the device it lies on; ``fp4`` is ``TARGET_LAYOUT[target]``."""
    attn_alpha, attn_beta = residual_gate(layer.attn_gate, model.residual_temperature)
    ffn_alpha, ffn_beta = residual_gate(layer.ffn_gate, model.residual_temperature)
    up, down = _pack_experts(layer.experts, fp4)
    return PackedLayer(
        qkv=layout.pack_dense(layer.qkv),
        o_proj=layout.pack_dense(layer.o_proj),
        router=layout.pack_dense(layer.router),
        pre_proj=layout.pack_dense(layer.pre_proj),
        experts_up=up,
        experts_down=down,
        post_proj=layout.pack_dense(layer.post_proj),
        router_bias=layer.router_bias.float().contiguous(),
        attn_alpha=attn_alpha,
        attn_beta=attn_beta,
        ffn_alpha=ffn_alpha,
        ffn_beta=ffn_beta,
        input_gain=gain(layer.input_norm),
        pre_ffn_gain=gain(layer.pre_ffn_norm),
        post_ffn_gain=gain(layer.post_ffn_norm),
        pre_expert_gain=gain(layer.pre_expert_norm),
        post_expert_gain=gain(layer.post_expert_norm),
        up_scale=_owned(layer.experts.up_scale),
        down_scale=_owned(layer.experts.down_scale),
    )


def pack_all(
    layers: Iterable[LayerTensors],
    model: MuseConfig,
    fp4: Fp4Layout = "bits",
    each: Callable[[PackedLayer], object] | None = None,
) -> list[PackedLayer]:
    """Pack layers one after the other: what only ``layers`` holds on to is free again at once.

    ``each`` is told of every pack before the next layer's turn.
    """
    packed = []
    with torch.no_grad():
        for layer in layers:
            packed.append(pack_layer(layer, model, fp4))
            if each is not None:
                each(packed[-1])
    return packed


def _owned(scale: torch.Tensor | None) -> torch.Tensor | None:
    return None if scale is None else scale.float().contiguous()


def _pack_experts(experts: Experts, fp4: Fp4Layout) -> tuple[torch.Tensor, torch.Tensor]:
    if experts.up_scales is None or experts.down_scales is None:
        up = layout.interleave_gate_up(experts.up)
        return layout.pack_experts_bf16(up), layout.pack_experts_bf16(experts.down)
    codes = layout.interleave_gate_up(experts.up)
    scales = layout.interleave_gate_up(experts.up_scales.view(torch.uint8))
    return (
        layout.pack_experts_nvfp4(codes, scales, fp4),
        layout.pack_experts_nvfp4(experts.down, experts.down_scales, fp4),
    )


def unpack_experts(packed: PackedLayer, model: MuseConfig, fp4: Fp4Layout = "bits") -> Experts:
    """The experts that ``pack_layer`` took."""
    inner, width = model.expert_inner, model.expert_width
    if packed.kind == "bf16":
        up = layout.unpack_experts_bf16(packed.experts_up, 2 * inner, width)
        down = layout.unpack_experts_bf16(packed.experts_down, width, inner)
        return Experts(layout.separate_gate_up(up), down)
    codes, scales = layout.unpack_experts_nvfp4(packed.experts_up, 2 * inner, width, fp4)
    down, down_scales = layout.unpack_experts_nvfp4(packed.experts_down, width, inner, fp4)
    return Experts(
        layout.separate_gate_up(codes),
        down,
        layout.separate_gate_up(scales).view(torch.float8_e4m3fn),
        down_scales.view(torch.float8_e4m3fn),
        packed.up_scale,
        packed.down_scale,
    )


# -- on disk ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PackKey:
    """Which pack: its file's name, and a hash of all it is made from."""

    name: str
    digest: str

    @classmethod
    def of(
        cls,
        model: MuseConfig,
        rank: RankShape,
        layer: int,
        target: str,
        sources: Sequence[Path],
    ) -> PackKey:
        """The key of a layer read from ``sources``, known by their size and time of change.

        Raises UsageError for a target that the kernel is not built for.
        """
        if target not in TARGET_LAYOUT:
            known = ", ".join(TARGET_LAYOUT)
            raise UsageError(f"no kernel is built for {target!r}", hint=f"known are {known}")
        facts = [(p.name, p.stat().st_size, p.stat().st_mtime_ns) for p in sources]
        made_from = repr((LAYOUT_VERSION, model, rank, layer, TARGET_LAYOUT[target], facts))
        name = f"layer{layer}-rank{rank.rank}of{rank.ranks}-{TARGET_LAYOUT[target]}"
        return cls(name, hashlib.sha256(made_from.encode()).hexdigest())


def pack_cached(
    folder: Path,
    key: PackKey,
    make: Callable[[], PackedLayer],
    *,
    device: torch.device | str = "cpu",
    say: Callable[[str], object] | None = None,
) -> PackedLayer:
    """The pack of ``key`` in ``folder``, made with ``make`` and kept where there is none.

    A pack of other weights or another version, a truncated or damaged one is made anew, and
    ``say`` (stderr unless given) is told why in a line. Files are this user's alone.
    """
    path = folder / f"{key.name}.safetensors"
    reason = ""
    if path.exists():
        loaded = _load(path, key, device)
        if isinstance(loaded, PackedLayer):
            return loaded
        reason = loaded
    if reason:
        (say or _say)(f"megatrace: packing again, {path} {reason}")
    packed = make()
    _save(path, key, packed)
    return packed.to(device)


def _load(path: Path, key: PackKey, device: torch.device | str) -> PackedLayer | str:
    """The pack, or why it is none of this key."""
    try:
        with safe_open(path, framework="pt", device=str(device)) as file:
            if (file.metadata() or {}).get("digest") != key.digest:
                return "was made from other weights or by another version"
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        return PackedLayer(**tensors)
    except (OSError, SafetensorError, TypeError) as error:
        return f"cannot be read: {error}"


def _save(path: Path, key: PackKey, packed: PackedLayer) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    # A folder of its own, which only this user can enter, until the file is whole and private.
    with tempfile.TemporaryDirectory(prefix=".pack-", dir=path.parent) as folder:
        half_made = Path(folder) / path.name
        save_file(packed.tensors(), half_made, metadata={"digest": key.digest})
        half_made.chmod(0o600)
        os.replace(half_made, path)


def _say(line: str) -> None:
    sys.stderr.write(line + "\n")
