"""Builds the kernel of this folder, runs it many times and checks its answers.

    megatrace record -o run.mtr -- python examples/01_trace_a_kernel/run.py

Runs on the GPU where there is one (and an nvcc), else in the host build of the same source.
"""

from __future__ import annotations

import argparse
import ctypes
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from events import STREAM

from megatrace.agent.kernel import KernelAgent, RingSize
from megatrace.jit import HOST, Kernel, build, default_target, load

HERE = Path(__file__).parent
ROLES = ("loader", *["consumer"] * 11)
LEVELS = ("off", "counters", "timeline")


class Config(ctypes.Structure):
    """example::Config of host.cuh."""

    _fields_ = [
        (name, ctypes.c_uint32)
        for name in ("blocks", "tiles", "launches", "buffers", "level", "all")
    ]


@dataclass(frozen=True)
class Shape:
    """How much work: the host build does less of it."""

    tile_bytes: int
    tiles: int
    launches: int
    buffers: int
    steps: int
    lines: int


GPU = Shape(tile_bytes=32768, tiles=96, launches=12, buffers=6, steps=200, lines=512)
CPU = Shape(tile_bytes=1024, tiles=16, launches=3, buffers=1, steps=8, lines=128)


class Stream:
    """The chain of launches; every call raises RuntimeError with the kernel's words."""

    def __init__(self, library: ctypes.CDLL, config: Config, params: ctypes.Structure) -> None:
        self._library = library
        library.stream_stream.restype = ctypes.c_void_p
        self._handle = ctypes.c_void_p()
        self._call("create", ctypes.byref(config), ctypes.byref(params), ctypes.byref(self._handle))

    @property
    def stream(self) -> int:
        return self._library.stream_stream(self._handle) or 0

    def replay(self) -> None:
        self._call("replay", self._handle)

    def synchronize(self) -> None:
        self._call("synchronize", self._handle)

    def worst_error(self) -> float:
        error = ctypes.c_double()
        self._call("worst_error", self._handle, ctypes.byref(error))
        return error.value

    def close(self) -> None:
        self._library.stream_destroy(self._handle)

    def _call(self, name: str, *args: object) -> None:
        if getattr(self._library, f"stream_{name}")(*args):
            raise RuntimeError(self._library.megatrace_last_error().decode())


def sm_count(library: ctypes.CDLL) -> int:
    count = ctypes.c_uint32()
    if library.stream_blocks(ctypes.byref(count)):
        raise RuntimeError(library.megatrace_last_error().decode())
    return count.value


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", help="host, or a chip such as sm_90a (default: what is here)")
    parser.add_argument("--steps", type=int, help="replays of the chain")
    parser.add_argument("--launches", type=int, help="launches of a replay")
    parser.add_argument("--blocks", type=int, default=0, help="0: one an SM")
    parser.add_argument("--level", choices=LEVELS, default="timeline")
    parser.add_argument("--all", action="store_true", help="every try of a wait, not only stalls")
    return parser.parse_args()


def main() -> int:
    args = arguments()
    target = args.target or default_target()
    shape = CPU if target == HOST else GPU
    launches, steps = args.launches or shape.launches, args.steps or shape.steps
    defines = {"MEGATRACE_TILE_BYTES": str(shape.tile_bytes)}
    print(f"building the kernel for {target}, if it is not in the cache", flush=True)
    library = load(build(Kernel(HERE / "kernel.cu", (STREAM,), defines), target), STREAM)
    library.megatrace_last_error.restype = ctypes.c_char_p
    blocks = args.blocks or sm_count(library)
    print(f"stream on {target}: {blocks} blocks, {launches} launches a step, {steps} steps")
    agent = KernelAgent.start(
        STREAM,
        blocks=blocks,
        roles=ROLES,
        kernels=("stream",),
        device="cpu" if target == HOST else "cuda",
        size=RingSize(lines=shape.lines, layers=launches),
    )
    level = LEVELS.index(args.level)
    config = Config(blocks, shape.tiles, launches, shape.buffers, level, args.all)
    with agent:
        chain = Stream(library, config, agent.params)
        for _ in range(steps):
            begin_ns = time.monotonic_ns()
            agent.begin_step(chain.stream)
            chain.replay()
            chain.synchronize()
            agent.span("step", begin_ns, time.monotonic_ns(), (-1, -1, int(target != HOST), -1))
        error = chain.worst_error()
        chain.close()
    print(f"worst relative error {error:.1e}")
    return int(not error < 1e-5)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
