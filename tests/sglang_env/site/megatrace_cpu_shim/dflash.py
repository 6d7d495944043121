"""What SGLang's DFLASH needs to run on a CPU with the torch_native attention."""

from __future__ import annotations

import copy

BACKEND = "torch_native"
_VERIFY_IN = "sglang.srt.layers.attention.torch_native_backend.TorchNativeAttnBackend"


class _Platform:
    """The CPU platform, but one that knows DFLASH."""

    def __init__(self, platform):
        self._platform = platform

    def __getattr__(self, name):
        return getattr(self._platform, name)

    def is_out_of_tree(self):
        return True

    def supports_speculative_algorithm(self, _algorithm):
        return True

    def supports_speculative_draft_attention_backend(self, _algorithm, _backend):
        return True

    def get_default_speculative_draft_attention_backend(self, _algorithm):
        return BACKEND


def install() -> None:
    """Register the hooks, in every process: arguments are checked in the first."""
    import torch
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType
    from sglang.srt.server_args import add_draft_attention_backend_choices

    torch.Tensor.record_stream = lambda _tensor, _stream: None
    add_draft_attention_backend_choices([BACKEND])
    for target, hook, kind in (
        ("sglang.srt.arg_groups.speculative_hook._handle_dflash", _accept, HookType.AROUND),
        (f"{_VERIFY_IN}.forward_extend", _verify_as_extend, HookType.AROUND),
        ("sglang.srt.models.dflash.DFlashAttention.__init__", _no_triton, HookType.AFTER),
    ):
        HookRegistry.register(target, hook, kind)


def _accept(original, server_args):
    from sglang.srt.arg_groups import speculative_hook

    platform = speculative_hook.current_platform
    speculative_hook.current_platform = _Platform(platform)
    try:
        return original(server_args)
    finally:
        speculative_hook.current_platform = platform


def _verify_as_extend(original, backend, query, key, value, layer, batch, *args, **kwargs):
    """torch_native reads extend lengths, which SGLang leaves out of a verify."""
    if batch.forward_mode.is_target_verify():
        import torch

        width = int(batch.spec_info.draft_token_num)
        prefix, batch = batch.seq_lens, copy.copy(batch)
        batch.extend_prefix_lens = prefix
        batch.extend_seq_lens = torch.full_like(prefix, width)
        batch.seq_lens = prefix + width
    return original(backend, query, key, value, layer, batch, *args, **kwargs)


def _no_triton(_result, attention, *_args, **_kwargs):
    attention.use_table_qk_norm_rope = False
