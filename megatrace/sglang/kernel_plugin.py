"""The entry point ``nvidia_megakernel`` of SGLang's plugin group ``sglang.srt.plugins``.

SGLang calls :func:`register` in every process it starts. It names the spec of the one model
that the megakernel covers; nothing else happens without ``--enable-nvidia-megakernel``.
"""

from __future__ import annotations

import os
from typing import Any

from megatrace.paths import SESSION_ENV
from megatrace.sglang.attach import Hook, attach
from megatrace.sglang.process import scheduler_arguments

ARCHITECTURE = "MuseSparkForConditionalGeneration"
SPEC = "megatrace.sglang.spec:SPEC"


def register() -> None:
    """Register the spec, and in a scheduler that wants it the hooks it needs.

    Raises ValueError where another package has registered one for the same model; SGLang logs
    that and keeps the first.
    """
    from sglang.kernels.plugin_kernels.nvidia import spec

    spec.register(architecture=ARCHITECTURE, path=SPEC)
    arguments = scheduler_arguments()
    if arguments is not None and getattr(arguments, "enable_nvidia_megakernel", False):
        _hook(arguments)


def _hook(arguments: Any) -> None:
    from megatrace.sglang import megakernel, muse_model
    from megatrace.sglang.plugin import READY

    hooks = [Hook(muse_model.BF16_LOADED, "around", muse_model.keep_bf16)]
    if getattr(arguments, "quantization", None):
        hooks.append(Hook(muse_model.NVFP4_LOADED, "around", muse_model.keep_nvfp4))
    if SESSION_ENV in os.environ:
        hooks.append(Hook(READY, "after", megakernel.after_scheduler))
    missed = attach(hooks).missed
    if missed:
        raise RuntimeError(f"this SGLang lacks what the megakernel hooks: {missed}")
