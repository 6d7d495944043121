"""A test-only SGLang plugin: DFLASH and the megakernel on the CPU, and faults on demand.

Environment:
    MEGATRACE_SHIM_DFLASH=1       let DFLASH run with --device cpu
    MEGATRACE_SHIM_GPU=sm_90      what SGLang finds when it looks for a GPU for a megakernel
    MEGATRACE_SHIM_MARLIN=1       let NVFP4 experts run there with --moe-runner-backend marlin
    MEGATRACE_SHIM_FP8=1          let the pools hold keys and values in e4m3
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
    if os.environ.get("MEGATRACE_SHIM_MARLIN"):
        from megatrace_cpu_shim import marlin

        marlin.install()
    if os.environ.get("MEGATRACE_SHIM_FP8"):
        from megatrace_cpu_shim import fp8

        fp8.install()
    fault = os.environ.get("MEGATRACE_SHIM_FAULT")
    if fault:
        _break(fault)


def _break(name: str) -> None:
    from megatrace.sglang.steps import StepTracer

    def broken(*_args, **_kwargs):
        raise RuntimeError("a fault on demand")

    assert callable(getattr(StepTracer, name))
    setattr(StepTracer, name, broken)
