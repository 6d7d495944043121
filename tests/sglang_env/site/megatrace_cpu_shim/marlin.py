"""NVFP4 experts on a CPU: SGLang's own preparation for Marlin, and the products without it.

Only the repacking kernel and the products are missing here; all else that happens to the
weights is SGLang's. The products are those of Marlin: operands of bf16, the dequantised ones
exact in it, an expert's own scale after the sum.
"""

from __future__ import annotations

import weakref

_FP4 = "sglang.srt.layers.quantization.marlin_utils_fp4"
_EXPERTS = "sglang.srt.layers.muse_spark.muse_spark_fp4_moe.MuseSpark1xFp4Experts"
_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_scales = weakref.WeakKeyDictionary()
"""Module of experts -> scales of both projections, and the experts' own."""


def install() -> None:
    """Register the hooks; the server takes them with ``--moe-runner-backend marlin``."""
    from sglang.srt.layers.quantization import marlin_utils_fp4
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    # Imported with CUDA alone; what it makes of the weights is read by a CUDA kernel.
    marlin_utils_fp4.gptq_marlin_repack = _repack
    for target, hook, kind in (
        (f"{_FP4}.prepare_moe_nvfp4_layer_for_marlin", _prepare, HookType.AROUND),
        (f"{_EXPERTS}._forward_marlin", _forward, HookType.REPLACE),
    ):
        HookRegistry.register(target, hook, kind)


def _repack(b_q_weight, perm, size_k, size_n, num_bits):
    """The words in the order they come in, in the shape of Marlin's tiles."""
    return b_q_weight.reshape(size_k // 16, size_n * 16 * num_bits // 32).clone()


def _prepare(original, layer, *args, **kwargs):
    _scales[layer] = tuple(
        getattr(layer, name).data.clone()
        for name in (
            *("w13_weight_scale", "w2_weight_scale"),
            *("w13_weight_scale_2", "w2_weight_scale_2"),
        )
    )
    return original(layer, *args, **kwargs)


def _dequantized(words, scales):
    """An expert's matrix without its own scale: exact in bf16."""
    import torch

    values = torch.tensor(_VALUES)
    rows, groups = scales.shape
    codes = words.data.reshape(groups * 2, rows).T.contiguous().view(torch.uint8)
    pair = torch.stack((codes & 15, codes >> 4), dim=-1).long()
    signed = torch.where(pair > 7, -1.0, 1.0) * values[pair & 7]
    return signed.flatten(-2) * scales.float().repeat_interleave(16, dim=-1)


def _forward(experts, hidden, scores, ids, post_expert_norm, pre_expert_norm=None):
    import torch
    from torch.nn import functional

    up_scales, down_scales, up_scale, down_scale = _scales[experts]
    if pre_expert_norm is not None:
        hidden = pre_expert_norm(hidden)
    result = torch.zeros(hidden.shape, dtype=torch.float32)
    for expert in range(experts.num_local_experts):
        rows, slots = (ids == expert).nonzero(as_tuple=True)
        if len(rows):
            up = _dequantized(experts.w13_weight[expert], up_scales[expert])
            down = _dequantized(experts.w2_weight[expert], down_scales[expert])
            both = (hidden[rows].float() @ up.T) * up_scale[expert]
            gate, value = both.to(torch.bfloat16).chunk(2, dim=-1)
            inner = functional.silu(gate) * value
            out = (inner.float() @ down.T) * down_scale[expert]
            normed = post_expert_norm(out.to(torch.bfloat16))
            result.index_add_(0, rows, normed.float() * scores[rows, slots].unsqueeze(-1))
    return result.to(hidden.dtype)
