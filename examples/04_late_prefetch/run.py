"""Runs a layer whose second phase's weights are asked for late, or in time, and checks it.

    megatrace record -o late.mtr -- python examples/04_late_prefetch/run.py --variant before
    megatrace record -o early.mtr -- python examples/04_late_prefetch/run.py --variant after

Runs on the GPU where there is one (and an nvcc), else in the host build of the same source.
"""

from __future__ import annotations

import argparse
import ctypes
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from events import LAYER

from megatrace.agent.kernel import KernelAgent, RingSize
from megatrace.jit import HOST, Kernel, build, default_target, load

SOURCE = Path(__file__).with_name("kernel.cu")
ROLES = ("loader", *["worker"] * 4)


class Config(ctypes.Structure):
    """example::Config of host.cuh."""

    _fields_ = [(name, ctypes.c_uint32) for name in ("blocks", "up_tiles", "layers", "early")]


@dataclass(frozen=True)
class Shape:
    """How much work: the host build does less of it."""

    tile_bytes: int
    up_tiles: int
    layers: int
    steps: int


GPU = Shape(tile_bytes=16384, up_tiles=24, layers=4, steps=40)
CPU = Shape(tile_bytes=1024, up_tiles=8, layers=3, steps=6)


class Step:
    """The layers of a step; every call raises RuntimeError with the kernel's words."""

    def __init__(self, library: ctypes.CDLL, config: Config, params: ctypes.Structure) -> None:
        self._library = library
        library.layer_stream.restype = ctypes.c_void_p
        self._handle = ctypes.c_void_p()
        self._call("create", ctypes.byref(config), ctypes.byref(params), ctypes.byref(self._handle))

    @property
    def stream(self) -> int:
        return self._library.layer_stream(self._handle) or 0

    def run(self) -> None:
        self._call("replay", self._handle)
        self._call("synchronize", self._handle)

    def worst_error(self) -> float:
        error = ctypes.c_double()
        self._call("worst_error", self._handle, ctypes.byref(error))
        return error.value

    def close(self) -> None:
        self._library.layer_destroy(self._handle)

    def _call(self, name: str, *args: object) -> None:
        if getattr(self._library, f"layer_{name}")(*args):
            raise RuntimeError(self._library.megatrace_last_error().decode())


def sm_count(library: ctypes.CDLL) -> int:
    count = ctypes.c_uint32()
    if library.layer_blocks(ctypes.byref(count)):
        raise RuntimeError(library.megatrace_last_error().decode())
    return count.value


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--variant", choices=("before", "after"), default="before")
    parser.add_argument("--steps", type=int, help="how often the layers run")
    parser.add_argument("--target", help="host, or a chip such as sm_90a (default: what is here)")
    return parser.parse_args()


def main() -> int:
    args = arguments()
    target = args.target or default_target()
    shape = CPU if target == HOST else GPU
    steps = args.steps or shape.steps
    print(f"building the kernel for {target}, if it is not in the cache", flush=True)
    defines = {"MEGATRACE_TILE_BYTES": str(shape.tile_bytes)}
    library = load(build(Kernel(SOURCE, (LAYER,), defines), target), LAYER)
    library.megatrace_last_error.restype = ctypes.c_char_p
    blocks = sm_count(library)
    print(f"{args.variant} on {target}: {blocks} blocks, {shape.layers} layers, {steps} steps")
    agent = KernelAgent.start(
        LAYER,
        blocks=blocks,
        roles=ROLES,
        kernels=("layer",),
        device="cpu" if target == HOST else "cuda",
        size=RingSize(lines=256, layers=shape.layers),
    )
    with agent:
        config = Config(blocks, shape.up_tiles, shape.layers, args.variant == "after")
        step = Step(library, config, agent.params)
        for _ in range(steps):
            begin_ns = time.monotonic_ns()
            agent.begin_step(step.stream)
            step.run()
            agent.span("step", begin_ns, time.monotonic_ns(), (-1, -1, int(target != HOST), -1))
        error = step.worst_error()
        step.close()
    print(f"worst relative error {error:.1e}")
    return int(not error < 1e-5)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
