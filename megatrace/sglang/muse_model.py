"""SGLang's loaded Muse Spark, as the megakernel's packing takes it.

Names are those of SGLang 0.5.23's ``MuseSparkForConditionalGeneration``. SGLang rearranges
expert weights right after it has loaded them; :func:`keep_nvfp4` and :func:`keep_bf16` are hooks
that hold on to what was loaded until it is packed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from weakref import WeakKeyDictionary

from megatrace.errors import UsageError
from megatrace.muse.config import MuseConfig
from megatrace.muse.plan import CacheKind, ExpertKind
from megatrace.muse.tensors import Experts, LayerTensors

NVFP4_LOADED = (
    "sglang.srt.layers.muse_spark.muse_spark_nvfp4_moe."
    "MuseSparkNvFp4FusedMoEMethod.process_weights_after_loading"
)
BF16_LOADED = (
    "sglang.srt.layers.muse_spark.muse_spark_bf16_moe.MuseSpark1xBf16Experts.prepare_trtllm_weights"
)

CACHES: dict[str, CacheKind] = {"bf16": "bf16", "bfloat16": "bf16", "fp8_e4m3": "e4m3"}
"""What SGLang calls the caches that are covered. It scales none of this model's."""

_kept: WeakKeyDictionary[Any, Experts] = WeakKeyDictionary()
"""Module of a layer's experts -> its weights as they were loaded."""


def text_model(model: Any) -> Any:
    """The stack of decoder layers."""
    return model.model.language_model


def config_of(hf_config: Any) -> MuseConfig:
    """The sizes of a served model; raises UsageError where the megakernel does not cover it."""
    text: Mapping[str, Any] = hf_config.text_config.to_dict()
    return MuseConfig.from_dict(text)


def served_cache() -> CacheKind:
    """How this server stores keys and values; raises UsageError where that is not covered."""
    from sglang.srt.runtime_context import get_model

    name = get_model().kv_cache_dtype
    if name not in CACHES:
        raise UsageError(uncovered_cache(name))
    return CACHES[name]


def uncovered_cache(name: str) -> str:
    """Why keys and values in SGLang's ``name`` are refused."""
    return (
        f"keys and values in {name}: the kernel reads and writes fp8_e4m3, this model's default, "
        "and bf16, --kv-cache-dtype fp8_e4m3"
    )


def uncovered_layers(model: Any) -> list[str]:
    """What of the loaded model cannot be packed."""
    problems = []
    for i, layer in enumerate(text_model(model).layers):
        if not hasattr(layer.mlp, "experts"):
            problems.append(f"layer {i} has no experts")
        elif layer.mlp.pre_expert_proj is None:
            problems.append(f"layer {i} has no projections around its experts")
        elif layer.mlp.experts not in _kept and not _as_loaded(layer.mlp.experts):
            problems.append(f"layer {i}: SGLang has rearranged its experts' weights")
    return problems[:4]


def expert_kind(layer: Any) -> ExpertKind:
    """How a layer's experts are stored."""
    return "nvfp4" if layer.mlp.nvfp4_checkpoint else "bf16"


def kept_bytes() -> int:
    """Device memory of weights that were kept for packing."""
    return sum(
        int(tensor.nbytes)
        for experts in _kept.values()
        for tensor in (experts.up, experts.down, experts.up_scales, experts.down_scales)
        if tensor is not None
    )


def take_layer(layer: Any) -> LayerTensors:
    """One layer's tensors, shared with the model; kept experts are given up with the result."""
    attention, mlp = layer.self_attn, layer.mlp
    return LayerTensors(
        qkv=attention.qkv_proj.weight,
        o_proj=attention.o_proj.weight,
        router=mlp.gate.weight,
        router_bias=mlp.gate.e_score_correction_bias,
        pre_proj=mlp.pre_expert_proj.weight,
        post_proj=mlp.post_expert_proj.weight,
        attn_gate=layer.post_attention_residual_gate.gate,
        ffn_gate=layer.post_feedforward_residual_gate.gate,
        input_norm=layer.input_layernorm.weight,
        pre_ffn_norm=layer.pre_feedforward_layernorm.weight,
        post_ffn_norm=layer.post_feedforward_layernorm.weight,
        pre_expert_norm=mlp.pre_expert_norm.weight,
        post_expert_norm=mlp.experts.post_expert_norm.weight,
        experts=_take_experts(mlp.experts),
    )


def rope_of(layer: Any) -> Any | None:
    """Fp32 [positions, 64], cos(32) | sin(32), SGLang's own; None: no position encoding."""
    rotary = layer.self_attn.rotary_emb
    return None if rotary is None else rotary.cos_sin_cache


def final_gain(text: Any) -> Any:
    """Fp32 [hidden]: what the norm before the head multiplies by, center included."""
    return text.norm._get_effective_weight().detach().float().contiguous()


def keep_nvfp4(original: Callable[..., Any], method: Any, module: Any) -> Any:
    """AROUND ``process_weights_after_loading(module)`` of the NVFP4 experts."""
    backend = getattr(method, "_moe_runner_backend", None)
    experts = _nvfp4(module)
    # Marlin makes weights of its own and drops these; TRT-LLM's are made in their place.
    in_place = backend is None or not backend.is_marlin()
    _kept[module] = _copy(experts) if in_place else experts
    return original(method, module)


def keep_bf16(original: Callable[..., Any], module: Any, *args: Any, **kwargs: Any) -> Any:
    """AROUND ``prepare_trtllm_weights(post_expert_norm)`` of the bf16 experts."""
    from sglang.srt.layers.muse_spark.muse_spark_bf16_moe import _trtllm_bf16_moe_supported

    if module not in _kept and _trtllm_bf16_moe_supported(module.gate_up_proj.device):
        _kept[module] = _copy(_bf16(module))
    return original(module, *args, **kwargs)


def _take_experts(module: Any) -> Experts:
    kept = _kept.pop(module, None)
    if kept is not None:
        return kept
    if not _as_loaded(module):
        raise UsageError("SGLang has rearranged the experts' weights before they were kept")
    return _bf16(module)


def _as_loaded(module: Any) -> bool:
    """Whether the module still has bf16 weights in the order of the checkpoint."""
    return hasattr(module, "gate_up_proj") and not getattr(module, "use_trtllm", True)


def _bf16(module: Any) -> Experts:
    return Experts(module.gate_up_proj.data, module.down_proj.data)


def _nvfp4(module: Any) -> Experts:
    return Experts(
        module.gate_up_proj.data,
        module.down_proj.data,
        module.gate_up_proj_weight_scale.data,
        module.down_proj_weight_scale.data,
        module.gate_up_proj_weight_scale_2.data.clone(),
        module.down_proj_weight_scale_2.data.clone(),
    )


def _copy(experts: Experts) -> Experts:
    named = {name: getattr(experts, name) for name in Experts.__dataclass_fields__}
    return Experts(**{name: t.clone() for name, t in named.items() if t is not None})
