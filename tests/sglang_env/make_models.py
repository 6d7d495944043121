"""Make a tiny random Muse Spark checkpoint and a DFlash draft for it.

    python make_models.py DIR [--seed 0] [--router random|decided] [--experts bf16|nvfp4]

DIR/target and DIR/draft, 18 MB, a few seconds; run it with an environment of
make_venv.py. The tokenizer has one token a byte, so no vocabulary is needed.

A random router chooses between experts that score alike, so that one rounding may change what
a token becomes. A decided one knows every token's kind, which its embedding says loudly, and
each layer has its own eight experts for a kind: far from all others, whatever is rounded.

NVFP4 experts are drawn as ModelOpt lays them out, and as in the released model not in the
first and the last layer.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

HIDDEN, VOCABULARY, LAYERS, HEAD_DIM = 256, 320, 6, 64
HEADS, KV_HEADS = 8, 2
EXPERTS, EXPERTS_PER_TOKEN, EXPERT_HIDDEN, EXPERT_WIDTH = 16, 8, 128, 128
WINDOW, POSITIONS = 16, 1024
DRAFT_LAYERS, DRAFT_HEADS, DRAFT_WIDTH, BLOCK = 2, 4, 256, 4
TAPPED_LAYERS = [1, 4]
KINDS, DECIDED = 8, 16.0
"""Kinds of tokens, and how far a decided router holds the experts of one from all others."""
BF16_LAYERS = (0, LAYERS - 1)
GROUP = 16
"""Columns that share a scale of NVFP4."""
TOKENS = {"unk": "<unk>", "bos": "<s>", "eos": "</s>", "pad": "<pad>"}
# The multimodal processor insists on these, text-only or not.
MEDIA = [
    *(f"<|{name}|>" for name in ("patch", "video", "audio", "image_start", "image_end")),
    *(f"<|{name}|>" for name in ("vid_start", "vid_end", "vid_frame_separator")),
    *(f"<|soft_audio_{end}|>" for end in ("start", "end")),
]
IDS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 3}
CHAT = (
    "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def write_tokenizer(folder: Path) -> None:
    """One token a byte, after the special ones."""
    words = [*TOKENS.values(), *MEDIA, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    assert len(words) <= VOCABULARY
    vocabulary = {word: i for i, word in enumerate(words)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token=TOKENS["unk"]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        additional_special_tokens=MEDIA,
        **{f"{name}_token": word for name, word in TOKENS.items()},
    )
    fast.chat_template = CHAT
    fast.save_pretrained(folder)
    (folder / "chat_template.jinja").write_text(CHAT)


def target_config(top_k: int = EXPERTS_PER_TOKEN) -> dict[str, object]:
    """Every fourth layer attends to all without positions, the others slide."""
    kinds = ["full_attention" if i % 4 == 3 else "sliding_attention" for i in range(LAYERS)]
    text = {
        "model_type": "muse_spark_text",
        "dtype": "bfloat16",
        "vocab_size": VOCABULARY,
        "hidden_size": HIDDEN,
        "intermediate_size": 2 * HIDDEN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "attention_bias": False,
        "layer_types": kinds,
        "layer_rope_theta": [0 if kind == "full_attention" else 5e5 for kind in kinds],
        "rope_parameters": {"rope_theta": 5e5, "rope_type": "default"},
        "sliding_window": WINDOW,
        "max_position_embeddings": POSITIONS,
        "mlp_layer_types": ["sparse"] * LAYERS,
        "hidden_act": "silu",
        "moe_hidden_size": EXPERT_HIDDEN,
        "moe_intermediate_size": EXPERT_WIDTH,
        "num_local_experts": EXPERTS,
        "num_experts_per_tok": top_k,
        "routed_scaling_factor": 1.0,
        "rms_norm_eps": 1e-5,
        "post_norm_eps": 1e-8,
        "qk_scale_factor": 5.5,
        "residual_gate_temperature": 0.3,
        "output_multiplier": 0.18,
        "final_logit_softcapping": 20.0,
        "tie_word_embeddings": False,
        **IDS,
    }
    vision = {
        "model_type": "muse_spark_vision",
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_attention_heads": 1,
        "num_hidden_layers": 1,
        "patch_size": 14,
        "patch_temporal": 2,
        "pos_emb_height": 4,
        "pos_emb_width": 4,
        "merge_size": 2,
    }
    audio = {
        "model_type": "muse_spark_audio",
        "depths": [1, 1],
        "hidden_sizes": [32, 64],
        "num_hidden_layers": 2,
        "out_hidden_size": HIDDEN,
        "patch_sizes": [16, 120],
    }
    return {
        "architectures": ["MuseSparkForConditionalGeneration"],
        "model_type": "muse_spark",
        "dtype": "bfloat16",
        "text_config": text,
        "vision_config": vision,
        "audio_config": audio,
        "out_hidden_size": HIDDEN,
        "projector_hidden_size": 64,
        "projector_hidden_act": "gelu",
        "image_token_id": 4,
        "video_token_id": 5,
        "audio_token_id": 6,
        "tie_word_embeddings": False,
        **IDS,
    }


class Weights:
    """Random bfloat16 tensors under names."""

    def __init__(self, seed: int) -> None:
        self._random = torch.Generator().manual_seed(seed)
        self.tensors: dict[str, torch.Tensor] = {}

    def add(self, name: str, *shape: int, scale: float = 0.06, mean: float = 0.0) -> None:
        """Normal values."""
        values = mean + scale * torch.randn(*shape, generator=self._random)
        self.tensors[name] = values.to(torch.bfloat16)

    def add_wide(self, name: str, *shape: int, scale: float) -> None:
        """The same in float32, which the router is kept in."""
        self.tensors[name] = scale * torch.randn(*shape, generator=self._random)

    def add_nvfp4(self, name: str, experts: int, rows: int, columns: int, parts: int) -> None:
        """Codes, scales of 0.5 to 2 a group and one of a few hundredths an expert and part."""
        shape = (experts, rows, columns)
        codes = torch.randint(0, 256, (*shape[:2], columns // 2), generator=self._random)
        scales = torch.randint(0x30, 0x41, (*shape[:2], columns // GROUP), generator=self._random)
        whole = 0.02 + 0.02 * torch.rand(experts, generator=self._random)
        # The two halves of a gated projection are quantised as one.
        whole = whole[:, None].expand(-1, 2).contiguous() if parts == 2 else whole
        self.tensors |= {
            name: codes.to(torch.uint8),
            f"{name}_weight_scale": scales.to(torch.uint8).view(torch.float8_e4m3fn),
            f"{name}_weight_scale_2": whole,
            f"{name}_input_scale": torch.ones_like(whole),
        }

    def decide(self) -> None:
        """Have every token's kind said in its embedding, and heard by the routers."""
        kinds = torch.linalg.qr(torch.randn(HIDDEN, KINDS, generator=self._random)).Q.T
        root = "model.language_model"
        embedding = self.tensors[f"{root}.embed_tokens.weight"]
        loud = kinds[torch.arange(VOCABULARY) % KINDS] * HIDDEN**0.5
        self.tensors[f"{root}.embed_tokens.weight"] = (embedding + loud).to(torch.bfloat16)
        for layer in range(LAYERS):
            order = torch.rand(KINDS, EXPERTS, generator=self._random).argsort(-1)
            likes = torch.where(order < EXPERTS_PER_TOKEN, 1.0, -1.0)
            self.tensors[f"{root}.layers.{layer}.mlp.gate.weight"] = (
                DECIDED / HIDDEN**0.5 * likes.T @ kinds
            )

    def save(self, folder: Path) -> None:
        """Write ``model.safetensors``."""
        save_file(self.tensors, folder / "model.safetensors", metadata={"format": "pt"})


def target_weights(seed: int, experts: str = "bf16") -> Weights:
    """The text model; vision and audio may be absent."""
    weights, root = Weights(seed), "model.language_model"
    weights.add(f"{root}.embed_tokens.weight", VOCABULARY, HIDDEN, scale=1.0)
    weights.add(f"{root}.norm.weight", HIDDEN, scale=0.1, mean=1.0)
    weights.add("lm_head.weight", VOCABULARY, HIDDEN, scale=0.3)
    for layer in range(LAYERS):
        at = f"{root}.layers.{layer}"
        queries, keys = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
        for name, rows in (("q", queries), ("k", keys), ("v", keys), ("gate", queries)):
            weights.add(f"{at}.self_attn.{name}_proj.weight", rows, HIDDEN)
        weights.add(f"{at}.self_attn.o_proj.weight", HIDDEN, queries)
        for name in ("input", "pre_feedforward", "post_feedforward"):
            weights.add(f"{at}.{name}_layernorm.weight", HIDDEN, scale=0.1)
        for name in ("post_attention", "post_feedforward"):
            weights.add(f"{at}.{name}_residual_gate.gate", HIDDEN, scale=0.3, mean=-0.6)
        weights.add_wide(f"{at}.mlp.gate.weight", EXPERTS, HIDDEN, scale=0.2)
        weights.add_wide(f"{at}.mlp.gate.e_score_correction_bias", EXPERTS, scale=0.05)
        weights.add(f"{at}.mlp.pre_expert_proj.weight", EXPERT_HIDDEN, HIDDEN)
        weights.add(f"{at}.mlp.post_expert_proj.weight", HIDDEN, EXPERT_HIDDEN, scale=0.09)
        weights.add(f"{at}.mlp.pre_expert_norm.weight", EXPERT_HIDDEN, scale=0.1)
        name = f"{at}.mlp.experts"
        weights.add(f"{name}.post_expert_norm.weight", EXPERT_HIDDEN, scale=0.1)
        up = (EXPERTS, 2 * EXPERT_WIDTH, EXPERT_HIDDEN)
        down = (EXPERTS, EXPERT_HIDDEN, EXPERT_WIDTH)
        if experts == "bf16" or layer in BF16_LAYERS:
            weights.add(f"{name}.gate_up_proj", *up, scale=0.09)
            weights.add(f"{name}.down_proj", *down, scale=0.09)
        else:
            weights.add_nvfp4(f"{name}.gate_up_proj", *up, parts=2)
            weights.add_nvfp4(f"{name}.down_proj", *down, parts=1)
    return weights


def draft_config() -> dict[str, object]:
    """A DFlash draft that reads two layers of the target."""
    return {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "torch_dtype": "bfloat16",
        "vocab_size": VOCABULARY,
        "hidden_size": HIDDEN,
        "intermediate_size": DRAFT_WIDTH,
        "num_hidden_layers": DRAFT_LAYERS,
        "num_attention_heads": DRAFT_HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 1e4,
        "max_position_embeddings": POSITIONS,
        "attention_bias": False,
        "tie_word_embeddings": False,
        "block_size": BLOCK,
        "num_target_layers": LAYERS,
        "dflash_config": {"mask_token_id": 0, "target_layer_ids": TAPPED_LAYERS},
        **IDS,
    }


def draft_weights(seed: int) -> Weights:
    """Embedding and head are the target's."""
    weights = Weights(seed)
    weights.add("fc.weight", HIDDEN, HIDDEN * len(TAPPED_LAYERS), scale=0.02)
    for name in ("hidden_norm", "norm"):
        weights.add(f"{name}.weight", HIDDEN, scale=0.0, mean=1.0)
    queries, keys = DRAFT_HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    for layer in range(DRAFT_LAYERS):
        at = f"layers.{layer}"
        for name, rows in (("q", queries), ("k", keys), ("v", keys)):
            weights.add(f"{at}.self_attn.{name}_proj.weight", rows, HIDDEN, scale=0.02)
        weights.add(f"{at}.self_attn.o_proj.weight", HIDDEN, queries, scale=0.02)
        for name in ("q", "k"):
            weights.add(f"{at}.self_attn.{name}_norm.weight", HEAD_DIM, scale=0.0, mean=1.0)
        for name in ("input", "post_attention"):
            weights.add(f"{at}.{name}_layernorm.weight", HIDDEN, scale=0.0, mean=1.0)
        for name in ("gate", "up"):
            weights.add(f"{at}.mlp.{name}_proj.weight", DRAFT_WIDTH, HIDDEN, scale=0.02)
        weights.add(f"{at}.mlp.down_proj.weight", HIDDEN, DRAFT_WIDTH, scale=0.02)
    return weights


def quantized(layers: int, plain: Sequence[int]) -> dict[str, object]:
    """``hf_quant_config.json``: experts are NVFP4 but for layers ``plain``, all else is bf16."""
    root = "model.language_model.layers"
    parts = ("self_attn", "mlp.gate", "mlp.pre_expert_proj", "mlp.post_expert_proj")
    excluded = [f"{root}.{i}.{part}*" for i in range(layers) for part in parts]
    excluded += [f"{root}.{i}.mlp.experts*" for i in plain]
    return {
        "producer": {"name": "modelopt", "version": "0"},
        "quantization": {
            "quant_algo": "NVFP4",
            "kv_cache_quant_algo": None,
            "group_size": GROUP,
            "exclude_modules": ["lm_head", *excluded],
        },
    }


def main() -> None:
    """Write both checkpoints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--router", choices=("random", "decided"), default="random")
    parser.add_argument("--experts", choices=("bf16", "nvfp4"), default="bf16")
    options = parser.parse_args()
    target, draft = options.folder / "target", options.folder / "draft"
    model = target_weights(options.seed, options.experts)
    if options.router == "decided":
        model.decide()
    for folder, config, weights in (
        (target, target_config(), model),
        (draft, draft_config(), draft_weights(options.seed + 1)),
    ):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(config, indent=1))
        weights.save(folder)
    if options.experts == "nvfp4":
        (target / "hf_quant_config.json").write_text(json.dumps(quantized(LAYERS, BF16_LAYERS)))
    generation = {key: IDS[key] for key in ("bos_token_id", "eos_token_id")}
    (target / "generation_config.json").write_text(json.dumps(generation))
    write_tokenizer(target)


if __name__ == "__main__":
    main()
