"""A test-only SGLang plugin: DFLASH and the megakernel on the CPU, and faults on demand.

Environment:
    MEGATRACE_SHIM_DFLASH=1       let DFLASH run with --device cpu
    MEGATRACE_SHIM_GPU=sm_90      what SGLang finds when it looks for a GPU for a megakernel
    MEGATRACE_SHIM_FAULT=NAME     make one method of megatrace's own hooks raise
"""

from __future__ import annotations

import os


def register() -> None:
    """Do what the environment asks for."""
    if os.environ.get("MEGATRACE_SHIM_DFLASH"):
        from megatrace_cpu_shim import dflash

        dflash.install()
    isa = os.environ.get("MEGATRACE_SHIM_GPU")
    if isa:
        from megatrace_cpu_shim import gpu

        gpu.install(isa)
    fault = os.environ.get("MEGATRACE_SHIM_FAULT")
    if fault:
        _break(fault)


def _break(name: str) -> None:
    from megatrace.sglang.steps import StepTracer

    def broken(*_args, **_kwargs):
        raise RuntimeError("a fault on demand")

    assert callable(getattr(StepTracer, name))
    setattr(StepTracer, name, broken)
