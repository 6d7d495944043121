"""The sizes of a Muse Spark text model, and which of them the kernel covers.

Names are those of ``Shape`` in params.cuh. A model or a division over ranks that the kernel
does not cover is refused here, with every reason at once.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from megatrace.errors import UsageError

HEAD_DIM = 64
MAX_ROWS = 16
"""Rows of a step: ``kMaxRows``."""
MAX_PAIRS = 256
"""(row, slot) pairs of a step: ``kMaxPairs``."""
MAX_RANKS = 8
MAX_HIDDEN = 8192
MAX_EXPERT_SIZE = 4096
"""Eight tokens of an expert's input or inner row fill the kernel's scratch memory."""
MAX_EXPERTS = 256
MAX_QUERIES_PER_KEY = 8
EPS_ROUTER = 1e-15
"""Added to the sum of a row's router weights before they are divided by it."""
MIN_ALPHA_SQUARED = 1e-3
"""The square of a residual gate's alpha is at least this."""


@dataclass(frozen=True, slots=True)
class LayerKind:
    """What a layer's attention sees."""

    window: int
    """Keys a query sees, itself included; 0: all."""
    rope_theta: float
    """Base of the rotary angles; 0: no position encoding."""


@dataclass(frozen=True, slots=True)
class RankShape:
    """What one rank of many computes of a layer."""

    rank: int
    ranks: int
    heads: int
    """Query heads of this rank; the first is ``rank * heads``."""
    kv_heads: int
    first_kv_head: int
    local_experts: int
    first_expert: int
    pre_rows: int
    """Rows of the pre-expert projection on this rank."""
    first_pre_row: int
    post_rows: int
    first_post_row: int

    @property
    def qkv_rows(self) -> int:
        """Rows of the fused projection: queries, keys, values, gate."""
        return (2 * self.heads + 2 * self.kv_heads) * HEAD_DIM


@dataclass(frozen=True, slots=True)
class MuseConfig:
    """A text model of the Muse Spark family."""

    layers: tuple[LayerKind, ...]
    hidden: int
    heads: int
    kv_heads: int
    experts: int
    top_k: int
    expert_width: int
    """What an expert reads and writes."""
    expert_inner: int
    vocabulary: int
    positions: int
    eps_norm: float = 1e-5
    eps_post: float = 1e-8
    output_multiplier: float = 0.17677669529663687
    route_scale: float = 1.0
    qk_scale: float = 5.4730064863875
    residual_temperature: float = 0.3
    logit_cap: float = 20.0

    @property
    def softmax_scale(self) -> float:
        """What scores of query and key are multiplied by."""
        return self.qk_scale / math.sqrt(HEAD_DIM)

    @property
    def max_rows(self) -> int:
        """Most rows of a step."""
        return min(MAX_ROWS, MAX_PAIRS // self.top_k)

    @classmethod
    def from_dict(cls, config: Mapping[str, Any]) -> MuseConfig:
        """The model of a ``config.json``, whole or its ``text_config`` alone.

        Raises UsageError where a size is missing or the kernel does not cover the model.
        """
        text = config.get("text_config", config)
        problems = _uncovered_kinds(text)
        try:
            model = _read(cls, text)
        except KeyError as missing:
            raise UsageError(f"the model's configuration has no {missing}") from None
        except (TypeError, ValueError) as error:
            raise UsageError(
                f"the model's configuration has a size that is no number: {error}"
            ) from None
        problems += _uncovered_sizes(model)
        if problems:
            raise UsageError("the megakernel does not cover this model: " + "; ".join(problems))
        return model

    @classmethod
    def from_file(cls, path: Path) -> MuseConfig:
        """The model of ``path``, a ``config.json`` or the folder of one.

        Raises UsageError where it cannot be read, is no JSON object, or is not covered.
        """
        file = path / "config.json" if path.is_dir() else path
        try:
            config = json.loads(file.read_text())
        except (OSError, ValueError) as error:
            raise UsageError(f"cannot read {file}: {error}") from None
        if not isinstance(config, dict):
            raise UsageError(f"{file} is no configuration of a model")
        return cls.from_dict(config)

    def check_rows(self, rows: int) -> None:
        """Raise UsageError unless a step may have this many rows."""
        if not 1 <= rows <= self.max_rows:
            raise UsageError(
                f"a step of {rows} rows: with {self.top_k} experts a token the megakernel "
                f"takes 1 to {self.max_rows}"
            )

    def shard(self, rank: int, ranks: int, shard_projections: bool = False) -> RankShape:
        """The part of ``rank``; ``shard_projections`` divides those around the experts too.

        Keys and values are replicated where there are more ranks than kv heads. Raises
        UsageError where the kernel does not cover the division.
        """
        if not 0 <= rank < ranks:
            raise UsageError(f"rank {rank} of {ranks}: ranks are numbered from 0")
        problems = _undividable(self, ranks, shard_projections)
        if problems:
            raise UsageError(
                f"the megakernel does not divide this model over {ranks} ranks: "
                + "; ".join(problems)
            )
        parts = ranks if shard_projections else 1
        part = rank if shard_projections else 0
        experts = self.experts // ranks
        pre, post = self.expert_width // parts, self.hidden // parts
        return RankShape(
            rank=rank,
            ranks=ranks,
            heads=self.heads // ranks,
            kv_heads=max(1, self.kv_heads // ranks),
            first_kv_head=rank * self.kv_heads // ranks,
            local_experts=experts,
            first_expert=rank * experts,
            pre_rows=pre,
            first_pre_row=part * pre,
            post_rows=post,
            first_post_row=part * post,
        )


def _read(cls: type[MuseConfig], text: Mapping[str, Any]) -> MuseConfig:
    window = int(text["sliding_window"])
    thetas: Sequence[float] = text["layer_rope_theta"]
    kinds = tuple(
        LayerKind(window if kind == "sliding_attention" else 0, float(theta))
        for kind, theta in zip(text["layer_types"], thetas, strict=False)
    )
    return cls(
        layers=kinds,
        hidden=int(text["hidden_size"]),
        heads=int(text["num_attention_heads"]),
        kv_heads=int(text["num_key_value_heads"]),
        experts=int(text["num_local_experts"]),
        top_k=int(text["num_experts_per_tok"]),
        expert_width=int(text["moe_hidden_size"]),
        expert_inner=int(text["moe_intermediate_size"]),
        vocabulary=int(text["vocab_size"]),
        positions=int(text["max_position_embeddings"]),
        eps_norm=float(text["rms_norm_eps"]),
        eps_post=float(text["post_norm_eps"]),
        output_multiplier=float(text["output_multiplier"]),
        route_scale=float(text["routed_scaling_factor"]),
        qk_scale=float(text["qk_scale_factor"]),
        residual_temperature=float(text["residual_gate_temperature"]),
        logit_cap=float(text["final_logit_softcapping"]),
    )


def _uncovered_kinds(text: Mapping[str, Any]) -> list[str]:
    """What is no size and not covered."""
    layers = text.get("num_hidden_layers")
    problems = [
        f"{key} has {len(text[key])} entries for {layers} layers"
        for key in ("layer_types", "layer_rope_theta", "mlp_layer_types")
        if key in text and len(text[key]) != layers
    ]
    attention = set(text.get("layer_types", ())) - {"sliding_attention", "full_attention"}
    problems += [f"layer_types holds {kind!r}" for kind in sorted(attention)]
    dense = [i for i, kind in enumerate(text.get("mlp_layer_types", ())) if kind != "sparse"]
    if dense:
        problems.append(f"layers {dense} are dense (mlp_layer_types): every layer must be sparse")
    required = {
        "head_dim": HEAD_DIM,
        "hidden_act": "silu",
        "attention_bias": False,
        "tie_word_embeddings": False,
        "num_shared_experts": 0,
    }
    for key, value in required.items():
        found = text.get(key, value)
        if found != value:
            problems.append(f"{key} is {found}, covered is {value}")
    rope = (text.get("rope_parameters") or {}).get("rope_type", "default")
    if rope != "default":
        problems.append(f"rope_type is {rope!r}, covered is 'default'")
    return problems


def _uncovered_sizes(model: MuseConfig) -> list[str]:
    problems = []

    def multiple(name: str, size: int, unit: int, most: int) -> None:
        if size < unit or size % unit or size > most:
            problems.append(f"{name} is {size}, covered are multiples of {unit} up to {most}")

    multiple("hidden_size", model.hidden, 128, MAX_HIDDEN)
    multiple("moe_hidden_size", model.expert_width, 128, MAX_EXPERT_SIZE)
    multiple("moe_intermediate_size", model.expert_inner, 64, MAX_EXPERT_SIZE)
    multiple("num_local_experts", model.experts, 16, MAX_EXPERTS)
    if model.kv_heads < 1 or model.heads % model.kv_heads:
        problems.append(f"{model.heads} query heads do not divide into {model.kv_heads} kv heads")
    elif model.heads // model.kv_heads > MAX_QUERIES_PER_KEY:
        problems.append(
            f"{model.heads // model.kv_heads} query heads a kv head, covered are up to "
            f"{MAX_QUERIES_PER_KEY}"
        )
    most = min(model.experts, MAX_PAIRS // MAX_ROWS)
    if not 1 <= model.top_k <= most:
        problems.append(f"num_experts_per_tok is {model.top_k}, covered are 1 to {most}")
    for layer, kind in enumerate(model.layers):
        if kind.window < 0 or kind.rope_theta < 0:
            problems.append(f"layer {layer} has window {kind.window}, theta {kind.rope_theta}")
    if not model.layers:
        problems.append("it has no layers")
    return problems


def _undividable(model: MuseConfig, ranks: int, shard_projections: bool) -> list[str]:
    problems = []
    if ranks > MAX_RANKS:
        problems.append(f"at most {MAX_RANKS} are covered")
    if model.heads % ranks:
        problems.append(f"{model.heads} query heads do not divide")
    elif model.heads // ranks % 2:
        problems.append(
            f"{model.heads // ranks} query heads a rank are {model.heads // ranks * HEAD_DIM} "
            "columns of the output projection, covered are multiples of 128"
        )
    if model.kv_heads % ranks and ranks % model.kv_heads:
        problems.append(f"{model.kv_heads} kv heads neither divide nor repeat evenly")
    if model.experts % ranks:
        problems.append(f"{model.experts} experts do not divide")
    if shard_projections:
        for name, size in (("moe_hidden_size", model.expert_width), ("hidden_size", model.hidden)):
            if size % (16 * ranks):
                problems.append(f"{name} {size} over {ranks} is no multiple of 16")
    return problems


def _released_kind(layer: int) -> LayerKind:
    # The schedule counts from the top: the last layer is full.
    return LayerKind(0, 0.0) if (61 - layer) % 4 == 0 else LayerKind(2048, 5e5)


RELEASED = MuseConfig(
    layers=tuple(_released_kind(layer) for layer in range(62)),
    hidden=8192,
    heads=128,
    kv_heads=16,
    experts=256,
    top_k=8,
    expert_width=4096,
    expert_inner=4096,
    vocabulary=202_048,
    positions=1_048_576,
)
"""The sizes of the released model."""
