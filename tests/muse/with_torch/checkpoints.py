"""Writes small checkpoints under the names a released one has."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from megatrace.muse.checkpoint import ROOT
from megatrace.muse.config import HEAD_DIM, MuseConfig
from megatrace.muse.tensors import LayerTensors, random_layer
from tests.muse.models import text_config

Named = dict[str, torch.Tensor]


def half_split(rows: torch.Tensor) -> torch.Tensor:
    """Rotary pairs of each head to the order of a checkpoint: first all even rows, then all odd."""
    heads = rows.reshape(-1, HEAD_DIM, rows.shape[-1])
    return torch.cat((heads[:, 0::2], heads[:, 1::2]), dim=1).reshape(rows.shape)


def named_layer(at: str, layer: LayerTensors, model: MuseConfig) -> Named:
    """The tensors of a layer that one rank holds whole."""
    queries, keys = model.heads * HEAD_DIM, model.kv_heads * HEAD_DIM
    q, k, v, gate = torch.split(layer.qkv, [queries, keys, keys, queries])
    experts = layer.experts
    named = {
        "input_layernorm.weight": layer.input_norm,
        "self_attn.q_proj.weight": half_split(q),
        "self_attn.k_proj.weight": half_split(k),
        "self_attn.v_proj.weight": v,
        "self_attn.gate_proj.weight": gate,
        "self_attn.o_proj.weight": layer.o_proj,
        "post_attention_residual_gate.gate": layer.attn_gate,
        "pre_feedforward_layernorm.weight": layer.pre_ffn_norm,
        "post_feedforward_layernorm.weight": layer.post_ffn_norm,
        "post_feedforward_residual_gate.gate": layer.ffn_gate,
        "mlp.gate.weight": layer.router,
        "mlp.gate.e_score_correction_bias": layer.router_bias,
        "mlp.pre_expert_proj.weight": layer.pre_proj,
        "mlp.pre_expert_norm.weight": layer.pre_expert_norm,
        "mlp.post_expert_proj.weight": layer.post_proj,
        "mlp.experts.post_expert_norm.weight": layer.post_expert_norm,
        "mlp.experts.gate_up_proj": experts.up,
        "mlp.experts.down_proj": experts.down,
    }
    if experts.kind == "nvfp4":
        named |= {
            "mlp.experts.gate_up_proj_weight_scale": experts.up_scales,
            "mlp.experts.gate_up_proj_weight_scale_2": experts.up_scale,
            "mlp.experts.down_proj_weight_scale": experts.down_scales,
            "mlp.experts.down_proj_weight_scale_2": experts.down_scale,
        }
    return {f"{at}.{name}": tensor for name, tensor in named.items()}


def single_experts(named: Named) -> Named:
    """The same with a tensor for each matrix of each expert."""
    split: Named = {}
    for name, tensor in named.items():
        at, _, kind = name.rpartition(".")
        for expert, matrix in enumerate(tensor):
            if kind == "gate_up_proj":
                split[f"{at}.{expert}.gate_proj.weight"], split[f"{at}.{expert}.up_proj.weight"] = (
                    matrix.chunk(2)
                )
            elif kind == "down_proj" and at.endswith("experts"):
                split[f"{at}.{expert}.down_proj.weight"] = matrix
            else:
                split[name] = tensor
                break
    return split


def write(folder: Path, named: Named, *, files: int = 1) -> None:
    """``named`` as a checkpoint of the small model, over several files with an index if more."""
    config = {"model_type": "muse_spark", "text_config": text_config()}
    (folder / "config.json").write_text(json.dumps(config))
    owned = {name: tensor.contiguous().clone() for name, tensor in named.items()}
    if files == 1:
        save_file(owned, folder / "model.safetensors")
        return
    place = {name: f"model-{i % files}.safetensors" for i, name in enumerate(owned)}
    for file in set(place.values()):
        part = {name: tensor for name, tensor in owned.items() if place[name] == file}
        save_file(part, folder / file)
    index = {"metadata": {}, "weight_map": place}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def small_layers(model: MuseConfig) -> list[LayerTensors]:
    """Layers of the small model on one rank: bf16 experts first and last, NVFP4 between."""
    whole = model.shard(0, 1)
    return [
        random_layer(model, whole, seed, experts="nvfp4" if seed == 1 else "bf16")
        for seed in range(len(model.layers))
    ]


def embedding_of(model: MuseConfig) -> Named:
    """What stands before and after the layers."""
    draw = torch.Generator().manual_seed(9)
    shape = (model.vocabulary, model.hidden)
    return {
        f"{ROOT}.embed_tokens.weight": torch.randn(*shape, generator=draw).bfloat16(),
        f"{ROOT}.norm.weight": torch.ones(model.hidden, dtype=torch.bfloat16),
        "lm_head.weight": torch.randn(*shape, generator=draw).bfloat16(),
    }
