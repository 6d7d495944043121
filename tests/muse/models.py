"""Small models for tests, as a checkpoint's configuration states them."""

from __future__ import annotations

from typing import Any

from megatrace.muse.config import MuseConfig


def text_config(**changes: Any) -> dict[str, Any]:
    """Three layers: window and rotation, all keys and none, all keys and rotation."""
    text: dict[str, Any] = {
        "hidden_size": 256,
        "num_hidden_layers": 3,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "attention_bias": False,
        "layer_types": ["sliding_attention", "full_attention", "full_attention"],
        "layer_rope_theta": [5e5, 0, 1e4],
        "rope_parameters": {"rope_theta": 5e5, "rope_type": "default"},
        "sliding_window": 16,
        "max_position_embeddings": 256,
        "mlp_layer_types": ["sparse"] * 3,
        "hidden_act": "silu",
        "moe_hidden_size": 128,
        "moe_intermediate_size": 192,
        "num_local_experts": 16,
        "num_experts_per_tok": 4,
        "routed_scaling_factor": 1.25,
        "rms_norm_eps": 1e-5,
        "post_norm_eps": 1e-8,
        "qk_scale_factor": 5.5,
        "residual_gate_temperature": 0.3,
        "output_multiplier": 0.18,
        "final_logit_softcapping": 20.0,
        "tie_word_embeddings": False,
        "vocab_size": 320,
    }
    return {**text, **changes}


def model(**changes: Any) -> MuseConfig:
    """The model of ``text_config``."""
    return MuseConfig.from_dict(text_config(**changes))
