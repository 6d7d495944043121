"""Runs hang.cu in this process: meant to end badly, and to be legible from outside."""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

from megatrace.agent.kernel import KernelAgent
from megatrace.jit import HOST, Kernel, build, load
from megatrace.schema import Cause, Event, EventTable, Kind

HANG = EventTable(
    "hang",
    (
        Event(16, "work", Kind.SPAN, "The whole launch."),
        Event(18, "never", Kind.WAIT, "A word nobody writes.", cause=Cause.INPUT, edge="word"),
    ),
)


FORMS = ("one body", "bodies", "calls")


def main() -> int:
    target, form, *step = sys.argv[1:]
    library = load(build(Kernel(Path(__file__).with_name("hang.cu"), (HANG,)), target), HANG)
    library.megatrace_last_error.restype = ctypes.c_char_p
    agent = KernelAgent.start(
        HANG,
        blocks=2,
        roles=("idle", "waiter"),
        kernels=("hang",),
        device="cpu" if target == HOST else "cuda",
    )
    for number in range(1, (int(step[0]) if step else 1) + 1):
        agent.begin_step(step=number)
    failed = library.hang_run(ctypes.byref(agent.params), FORMS.index(form))
    print(library.megatrace_last_error().decode(), flush=True)
    os._exit(3 if failed else 0)  # a trapped context cannot be closed in order


if __name__ == "__main__":
    main()
