"""What SGLang's megakernel binding asks of a GPU, answered without one."""

from __future__ import annotations

from types import SimpleNamespace

_ISA = "sglang.srt.kernel_plugins.nvidia.binding.device_isa"
_FREE, _TOTAL = 8 << 30, 16 << 30


def install(isa: str) -> None:
    """Pretend that there is a GPU of ``isa``; the model stays on the CPU."""
    import torch
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(_ISA, lambda: isa, HookType.REPLACE)
    properties = SimpleNamespace(multi_processor_count=132)
    torch.cuda.current_device = lambda: 0
    torch.cuda.get_device_properties = lambda _device: properties
    torch.cuda.is_current_stream_capturing = lambda: False
    torch.cuda.mem_get_info = lambda *_device: (_FREE, _TOTAL)
