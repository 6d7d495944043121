"""Lets SGLang's pools hold e4m3 on any CPU, stored as on a GPU; torch_native reads them so.

SGLang asks a CPU for AMX there, and then has another way to store.
"""

from __future__ import annotations

_CONFIGURATOR = "sglang.srt.mem_cache.kv_cache_configurator.KVCacheConfigurator"


class _Platform:
    """The CPU platform, but that the first question whether it is one is denied."""

    def __init__(self, platform):
        self._platform, self._asked = platform, False

    def __getattr__(self, name):
        return getattr(self._platform, name)

    def is_cpu(self):
        asked, self._asked = self._asked, True
        return asked and self._platform.is_cpu()


def install() -> None:
    """Register the hooks."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(f"{_CONFIGURATOR}.configure", _accept, HookType.AROUND)
    HookRegistry.register(
        f"{_CONFIGURATOR}._build_mha_quant_method", _store_as_a_gpu, HookType.REPLACE
    )


def _accept(original, configurator, *args, **kwargs):
    from sglang.srt.mem_cache import kv_cache_configurator as module

    platform = module.current_platform
    module.current_platform = _Platform(platform)
    try:
        return original(configurator, *args, **kwargs)
    finally:
        module.current_platform = platform


def _store_as_a_gpu(_configurator, *, num_layers):
    return None
