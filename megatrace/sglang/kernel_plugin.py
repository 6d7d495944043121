"""The entry point ``nvidia_megakernel`` of SGLang's plugin group ``sglang.srt.plugins``.

SGLang calls :func:`register` in every process it starts. It names the spec of the one model
that the megakernel covers; nothing else happens without ``--enable-nvidia-megakernel``.

SGLang wants this name of every package with a megakernel, and calls the last of them that it
finds. Where that is this one it calls the others: a package that was installed for its
megakernel keeps it.
"""

from __future__ import annotations

import logging
from importlib.metadata import EntryPoint, entry_points

from megatrace.sglang.attach import Hook, attach
from megatrace.sglang.guard import reason
from megatrace.sglang.process import scheduler_arguments

_LOG = logging.getLogger("megatrace.sglang")

GROUP, NAME = "sglang.srt.plugins", "nvidia_megakernel"
ARCHITECTURE = "MuseSparkForConditionalGeneration"
SPEC = "megatrace.sglang.spec:SPEC"


def register() -> None:
    """Register the spec, and in a scheduler that wants it the hooks it needs.

    Raises ValueError where another package has registered one for the same model; SGLang logs
    that and keeps the first.
    """
    from sglang.kernels.plugin_kernels.nvidia import spec

    for point in _others():
        _call(point)
    spec.register(architecture=ARCHITECTURE, path=SPEC)
    arguments = scheduler_arguments()
    if arguments is not None and getattr(arguments, "enable_nvidia_megakernel", False):
        _hook()


def _others() -> list[EntryPoint]:
    """What other packages declare under the same name."""
    own = f"{__name__}:register"
    return [point for point in entry_points(group=GROUP, name=NAME) if point.value != own]


def _call(point: EntryPoint) -> None:
    """As SGLang would have: a plugin that fails is logged and skipped."""
    try:
        point.load()()
    except Exception as error:
        _LOG.error("megatrace: the megakernel plugin %s failed: %s", point.value, reason(error))


def _hook() -> None:
    from megatrace.sglang import muse_model, one_copy, weights

    hooks = [
        Hook(muse_model.BF16_LOADED, "around", muse_model.keep_bf16),
        # Whatever --quantization says: a checkpoint may say for itself that it is NVFP4.
        Hook(muse_model.NVFP4_LOADED, "around", muse_model.keep_nvfp4),
        Hook(weights.BEGIN, "around", weights.around_begin),
    ]
    if one_copy.wanted():
        hooks += [Hook(name, "around", one_copy.around_forward) for name in one_copy.FORWARDS]
    missed = attach(hooks).missed
    if missed:
        raise RuntimeError(f"this SGLang lacks what the megakernel hooks: {missed}")
