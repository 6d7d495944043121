"""Write a random checkpoint of a few Muse Spark layers, each of one rank's released sizes.

    python -m tests.bench.make_slice DIR [--experts nvfp4|bf16] [--layers 8] [--ranks 8]

DIR/target and DIR/draft, for ``bench_server``: with NVFP4 experts, the layout of ModelOpt,
0.9 GB of them a layer and 0.2 GB of all else; drawn on the GPU, ten seconds for eight layers
into shared memory. The draft is a configuration alone (``--speculative-draft-load-format
dummy``): a random one is never right, so its weights do not matter.

One GPU serves what one rank of ``--ranks`` would hold: its heads, its experts with as many of a
token's experts as fall to it on average, its rows of embedding and head.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from megatrace.muse.config import HEAD_DIM, RELEASED, MuseConfig
from megatrace.muse.plan import ExpertKind
from megatrace.muse.tensors import LayerTensors, random_layer
from tests.sglang_env import make_models

ROOT = "model.language_model"
POSITIONS = 16_384
VERIFIED, DRAFT_LAYERS = 16, 5
HEAD_SCALE = 0.1
"""Logits of a few units, well below their cap."""


def target_config(layers: int, ranks: int) -> dict[str, Any]:
    """One rank's share of the released model, ``layers`` deep."""
    whole = RELEASED.shard(0, ranks)
    config: dict[str, Any] = make_models.target_config(max(1, RELEASED.top_k // ranks))
    kinds = ["sliding_attention" if kind.window else "full_attention" for kind in RELEASED.layers]
    kinds = kinds[:layers]
    config["text_config"] |= {
        # 256 rows of a rank's share are a whole number of tiles.
        "vocab_size": -(-RELEASED.vocabulary // ranks // 256) * 256,
        "hidden_size": RELEASED.hidden,
        "intermediate_size": 2 * RELEASED.hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": whole.heads,
        "num_key_value_heads": whole.kv_heads,
        "layer_types": kinds,
        "layer_rope_theta": [0 if kind == "full_attention" else 5e5 for kind in kinds],
        "sliding_window": max(kind.window for kind in RELEASED.layers),
        "max_position_embeddings": POSITIONS,
        "mlp_layer_types": ["sparse"] * layers,
        "moe_hidden_size": RELEASED.expert_width,
        "moe_intermediate_size": RELEASED.expert_inner,
        "num_local_experts": whole.local_experts,
        "qk_scale_factor": RELEASED.qk_scale,
        "output_multiplier": RELEASED.output_multiplier,
    }
    config["audio_config"]["out_hidden_size"] = RELEASED.hidden
    return config


def draft_config(text: dict[str, Any]) -> dict[str, Any]:
    """A draft of one rank's share of the public one's sizes."""
    layers = text["num_hidden_layers"]
    return {
        **make_models.draft_config(),
        "vocab_size": text["vocab_size"],
        "hidden_size": text["hidden_size"],
        "intermediate_size": 2048,
        "num_hidden_layers": DRAFT_LAYERS,
        "num_attention_heads": 8,
        "num_key_value_heads": 1,
        "head_dim": 128,
        "max_position_embeddings": POSITIONS,
        "block_size": VERIFIED,
        "num_target_layers": layers,
        "dflash_config": {"mask_token_id": 0, "target_layer_ids": [1, max(1, layers - 3)]},
    }


def named(layer: LayerTensors, model: MuseConfig) -> Iterator[tuple[str, torch.Tensor]]:
    """A layer's tensors under the names of a checkpoint, without the layer's prefix."""
    queries, keys = model.heads * HEAD_DIM, model.kv_heads * HEAD_DIM
    # Random rows are as good in the order of a checkpoint as in that of rotary pairs.
    parts = torch.split(layer.qkv, [queries, keys, keys, queries])
    for name, part in zip(["q", "k", "v", "gate"], parts, strict=True):
        yield f"self_attn.{name}_proj.weight", part
    yield "self_attn.o_proj.weight", layer.o_proj
    yield "mlp.gate.weight", layer.router
    yield "mlp.gate.e_score_correction_bias", layer.router_bias
    yield "mlp.pre_expert_proj.weight", layer.pre_proj
    yield "mlp.post_expert_proj.weight", layer.post_proj
    yield "post_attention_residual_gate.gate", layer.attn_gate
    yield "post_feedforward_residual_gate.gate", layer.ffn_gate
    yield "input_layernorm.weight", layer.input_norm
    yield "pre_feedforward_layernorm.weight", layer.pre_ffn_norm
    yield "post_feedforward_layernorm.weight", layer.post_ffn_norm
    yield "mlp.pre_expert_norm.weight", layer.pre_expert_norm
    yield "mlp.experts.post_expert_norm.weight", layer.post_expert_norm
    yield from (
        (f"mlp.experts.{name}", tensor) for name, tensor in experts(layer) if tensor is not None
    )


def experts(layer: LayerTensors) -> Iterator[tuple[str, torch.Tensor | None]]:
    """The experts' tensors as ModelOpt names them; bf16 ones are the first two."""
    e = layer.experts
    yield "gate_up_proj", e.up
    yield "down_proj", e.down
    if e.up_scale is None or e.down_scale is None:
        return
    yield "gate_up_proj_weight_scale", e.up_scales
    yield "down_proj_weight_scale", e.down_scales
    # As a fused quantisation of both halves makes it; Marlin knows one of them alone.
    yield "gate_up_proj_weight_scale_2", e.up_scale[:, :1].expand(-1, 2)
    yield "down_proj_weight_scale_2", e.down_scale
    yield "gate_up_proj_input_scale", torch.ones_like(e.up_scale)
    yield "down_proj_input_scale", torch.ones_like(e.down_scale)


def write(folder: Path, model: MuseConfig, kind: ExpertKind, device: str) -> None:
    """The weights, a file a layer, several at a time."""
    folder.mkdir(parents=True, exist_ok=True)

    def save(name: str, tensors: dict[str, torch.Tensor]) -> None:
        here = {key: tensor.contiguous().cpu() for key, tensor in tensors.items()}
        save_file(here, folder / f"{name}.safetensors", metadata={"format": "pt"})

    def ends() -> None:
        shape, draw = (model.vocabulary, model.hidden), torch.Generator(device).manual_seed(0)
        embedding = torch.empty(shape, dtype=torch.bfloat16, device=device).normal_(generator=draw)
        head = torch.empty_like(embedding).normal_(0, HEAD_SCALE, generator=draw)
        norm = torch.ones(model.hidden, dtype=torch.bfloat16)
        at = f"{ROOT}.embed_tokens.weight", f"{ROOT}.norm.weight", "lm_head.weight"
        save("model-ends", dict(zip(at, (embedding, norm, head), strict=True)))

    def layer(i: int) -> None:
        drawn = random_layer(model, model.shard(0, 1), i, experts=kind, device=device)
        at = f"{ROOT}.layers.{i}."
        save(f"model-{i:02}", {at + name: tensor for name, tensor in named(drawn, model)})

    with ThreadPoolExecutor(4) as pool:
        jobs = [pool.submit(ends), *(pool.submit(layer, i) for i in range(len(model.layers)))]
        for job in jobs:
            job.result()


def main() -> None:
    """Write both."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--experts", choices=("nvfp4", "bf16"), default="nvfp4")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--ranks", type=int, default=8)
    here = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", default=here)
    options = parser.parse_args()
    begin, target = time.monotonic(), options.folder / "target"
    config = target_config(options.layers, options.ranks)
    model = MuseConfig.from_dict(config)
    with torch.no_grad():
        write(target, model, options.experts, options.device)
    draft = draft_config(config["text_config"])
    for folder, written in ((target, config), (options.folder / "draft", draft)):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(written, indent=1))
    if options.experts == "nvfp4":
        quant = json.dumps(make_models.quantized(options.layers, ()), indent=1)
        (target / "hf_quant_config.json").write_text(quant)
    ids = {key: make_models.IDS[key] for key in ("bos_token_id", "eos_token_id")}
    (target / "generation_config.json").write_text(json.dumps(ids))
    make_models.write_tokenizer(target)
    size = sum(path.stat().st_size for path in target.iterdir())
    print(f"{target}: {size / 1e9:.1f} GB in {time.monotonic() - begin:.0f} s")


if __name__ == "__main__":
    main()
