"""Runs counted.cu step by step for a recorder: what it counted itself goes to a file.

megatrace record --every 2 -o run.mtr -- python tests/kernels/counted.py host SUMS.npy
"""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

import numpy as np

from megatrace.agent.kernel import IdleAgent, KernelAgent, RingSize
from megatrace.jit import HOST, Kernel, build, load
from megatrace.schema import CAUSES, Cause, Event, EventTable, Kind

BLOCKS, WARPS, ROUNDS, STEPS = 12, 4, 20, 6
COUNTED = EventTable(
    "counted",
    (
        Event(16, "data", Kind.STALL, "Nothing there.", cause=Cause.DATA),
        Event(17, "space", Kind.STALL, "No room.", cause=Cause.SPACE),
        Event(18, "input", Kind.STALL, "Another block.", cause=Cause.INPUT),
        Event(19, "peer", Kind.STALL, "Another GPU.", cause=Cause.PEER),
        Event(20, "work", Kind.SPAN, "Some."),
    ),
)


def start(target: str, blocks: int, layers: int) -> tuple[ctypes.CDLL, KernelAgent | IdleAgent]:
    """The kernel, built for ``target``, and its agent."""
    source = Path(__file__).with_name("counted.cu")
    library = load(build(Kernel(source, (COUNTED,)), target), COUNTED)
    library.megatrace_last_error.restype = ctypes.c_char_p
    agent = KernelAgent.start(
        COUNTED,
        blocks=blocks,
        roles=("feeder", *["waiter"] * (WARPS - 1)),
        kernels=("counted",),
        device="cpu" if target == HOST else "cuda",
        size=RingSize(layers=layers),
    )
    return library, agent


def main() -> int:
    target, path = sys.argv[1:]
    library, agent = start(target, BLOCKS, layers=1)
    sums = np.zeros((STEPS, BLOCKS, WARPS, len(CAUSES), 2), np.uint64)
    with agent:
        for step in range(STEPS):
            agent.begin_step()
            out = sums[step].ctypes.data_as(ctypes.c_void_p)
            if library.counted_run(ctypes.byref(agent.params), 0, 0, BLOCKS, ROUNDS, out):
                print(library.megatrace_last_error().decode(), file=sys.stderr)
                return 1
    np.save(path, sums)
    return 0


if __name__ == "__main__":
    sys.exit(main())
