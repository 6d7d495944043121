"""Builds kernels: nvcc for a GPU, the host compiler for the host build, one cache."""

from megatrace.jit.build import Kernel, build, cache_dir, load
from megatrace.jit.compilers import HOST, Compiler, cuda_compiler, default_target, host_compiler

__all__ = [
    "HOST",
    "Compiler",
    "Kernel",
    "build",
    "cache_dir",
    "cuda_compiler",
    "default_target",
    "host_compiler",
    "load",
]
