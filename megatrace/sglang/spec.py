"""What the Muse Spark megakernel asks of a server, and why it refuses one.

Whatever SGLang's contract can state is stated there, so that SGLang itself prints it.
"""

from __future__ import annotations

from typing import Any

from sglang.kernels.plugin_kernels.nvidia.spec import (
    Feature,
    MegakernelSpec,
    Numerics,
    NumericsKind,
    Requirements,
)

from megatrace.errors import UsageError
from megatrace.muse.config import MAX_ROWS
from megatrace.muse.memory import GB, Memory, kv_bytes, packed_bytes, shortage
from megatrace.sglang import muse_model, one_copy
from megatrace.sglang.megakernel import MuseMegakernel

_API_VERSION = 1
_LEAST_TOKENS = 16_384
"""Keys a server must have room for, unless its context or its own limit is shorter."""
_CHAINS = (None, "DFLASH")
"""Speculative algorithms whose drafts are one chain of tokens."""


def config_disable_reasons(cfg: Any, hf_config: Any) -> list[str]:
    """Why a configuration cannot be served, before its weights are loaded."""
    reasons = []
    if (cfg.tp_size or 1) > 1:
        reasons.append(
            "several GPUs: the kernel's exchanges between ranks are emulated on one GPU only, "
            "so that it serves --tp-size 1"
        )
    algorithm = cfg.speculative_algorithm
    if algorithm not in _CHAINS:
        reasons.append(
            f"{algorithm} may verify a tree of tokens: only chains are covered, "
            "--speculative-algorithm DFLASH"
        )
    elif (getattr(cfg, "speculative_eagle_topk", None) or 1) > 1:
        reasons.append("a tree of tokens to verify: only chains are covered (top-k 1)")
    if cfg.kv_cache_dtype not in muse_model.CACHES:
        # Not as a requirement of the contract: that does not say what to do about it.
        reasons.append(muse_model.uncovered_cache(cfg.kv_cache_dtype))
    if getattr(cfg, "enable_unified_memory", False):
        reasons.append("--enable-unified-memory interleaves the keys of layers")
    try:
        model = muse_model.config_of(hf_config)
    except UsageError as error:
        return [*reasons, str(error)]
    rows = 1 if algorithm is None else int(cfg.speculative_num_draft_tokens or 1)
    if rows > model.max_rows:
        reasons.append(
            f"{rows} tokens to verify a step: with {model.top_k} experts a token up to "
            f"{model.max_rows} are covered"
        )
    return reasons


def model_disable_reasons(model: Any, hf_config: Any) -> list[str]:
    """Why the loaded model cannot be served on this rank."""
    reasons = muse_model.uncovered_layers(model)
    if reasons:
        return reasons
    sizes = muse_model.config_of(hf_config)
    rank = sizes.shard(0, 1)
    layers = muse_model.text_model(model).layers
    kinds = [muse_model.expert_kind(layer) for layer in layers]
    tokens, kept_free = _server_memory(sizes.positions)
    experts = [layer.mlp.experts for layer in layers]
    given_up = one_copy.savings(experts)
    if one_copy.wanted():
        reasons = sorted({why for why in map(one_copy.uncovered, experts) if why is not None})
    if reasons:
        return reasons
    lacking = shortage(
        packed_bytes(sizes, rank, kinds),
        muse_model.kept_bytes() + (given_up if one_copy.wanted() else 0),
        kv_bytes(sizes, rank, tokens, muse_model.served_cache()),
        kept_free,
        Memory.of(layers[0].self_attn.qkv_proj.weight.device),
    )
    if lacking is None:
        return []
    if not one_copy.wanted() and not any(map(one_copy.uncovered, experts)):
        lacking += (
            f"; {one_copy.ENV}=1 saves {given_up / GB:.2f} GB where one request at a time is "
            "served: prefills, and steps of several requests, take longer with it"
        )
    return [lacking]


def _server_memory(positions: int) -> tuple[int, float]:
    """(tokens whose keys must fit, fraction of the memory that SGLang leaves alone)."""
    from sglang.srt.runtime_context import get_model, get_schedule

    schedule = get_schedule()
    context = get_model().context_length or positions
    most = schedule.max_total_tokens or _LEAST_TOKENS
    return min(context, most, _LEAST_TOKENS), 1.0 - (schedule.mem_fraction_static or 1.0)


SPEC = MegakernelSpec(
    name="megatrace Muse Spark",
    requires=Requirements(
        isas=frozenset({"sm_90", "sm_103"}),
        tp_sizes=frozenset({1}),
        dtypes=frozenset({"bfloat16"}),
    ),
    features=frozenset({Feature.SPECULATIVE_DECODING, Feature.EXPERT_PARALLEL}),
    numerics=Numerics(kind=NumericsKind.TOLERANCE, tolerances={"layer relative L2": 1e-2}),
    max_rows=MAX_ROWS,
    build=MuseMegakernel.build,
    api_version=_API_VERSION,
    model_disable_reasons=model_disable_reasons,
    config_disable_reasons=config_disable_reasons,
)
"""What SGLang finds under the architecture's name."""
