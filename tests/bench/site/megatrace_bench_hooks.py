"""A SGLang plugin of bench_sglang.py: megatrace's hooks of every step, out and in again.

While it is told to, it takes turns: STEPS steps of the scheduler with megatrace's hooks, as many
without, ORDER over and over. Without them the recorder is stopped too (SIGSTOP). It notes when
every step begins, in all turns alike, and writes that when it is told to end.

    MEGATRACE_BENCH_PAGE=FILE    eight bytes: 1 to take turns, 0 to end and write, as int32; the
                                 recorder's process id, as int32
    MEGATRACE_BENCH_SEEN=FILE    a JSON list a time: [turn, begin in ns] of each step
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import pkgutil
import signal
import struct
import time

STEPS = 16
RECORDED, PLAIN, AGAIN = range(3)
ORDER = (RECORDED, PLAIN, AGAIN, AGAIN, PLAIN, RECORDED)


def register() -> None:
    """Note what the functions are before any hook is applied, and again when all are."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    from megatrace.sglang.process import scheduler_arguments
    from megatrace.sglang.steps import FORWARD, PROCESS_RESULT, RUN_BATCH

    if scheduler_arguments() is None or "MEGATRACE_BENCH_PAGE" not in os.environ:
        return
    targets = (RUN_BATCH, PROCESS_RESULT, FORWARD)
    bare = {target: pkgutil.resolve_name(target) for target in targets}

    def ready(_result, *_args, **_kwargs) -> None:
        hooked = {target: pkgutil.resolve_name(target) for target in targets}
        unhooked = [target for target in targets if hooked[target] is bare[target]]
        if unhooked:
            print(f"not hooked, so nothing is measured: {unhooked}", flush=True)
            return
        Turns(RUN_BATCH, bare, hooked).use(RECORDED)

    HookRegistry.register("sglang.srt.managers.scheduler.Scheduler.__init__", ready, HookType.AFTER)


class Turns:
    """Stands before ``Scheduler.run_batch``, hooked or not, and chooses which."""

    def __init__(self, run_batch, bare, hooked) -> None:
        with open(os.environ["MEGATRACE_BENCH_PAGE"], "rb") as file:
            self._page = mmap.mmap(file.fileno(), 8, prot=mmap.PROT_READ)
        self._run_batch, self._bare, self._hooked = run_batch, bare, hooked
        self._recorder = 0
        self._next = None
        self._begun = []

    def use(self, turn) -> None:
        """Put the functions of a turn in place; stop the recorder or let it go on."""
        functions = dict(self._hooked if turn == RECORDED else self._bare)
        self._next = functions[self._run_batch]

        def run_batch(scheduler, *args, **kwargs):
            self._step()
            return self._next(scheduler, *args, **kwargs)

        functions[self._run_batch] = run_batch
        for target, function in functions.items():
            owner, name = target.rsplit(".", 1)
            setattr(pkgutil.resolve_name(owner), name, function)
        if self._recorder:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._recorder, signal.SIGCONT if turn == RECORDED else signal.SIGSTOP)

    def _step(self) -> None:
        turns, self._recorder = struct.unpack("ii", self._page[:])
        count = len(self._begun)
        if turns:
            if count % STEPS == 0:
                self.use(ORDER[count // STEPS % len(ORDER)])
            self._begun.append((count // STEPS, time.monotonic_ns()))
        elif count:
            self.use(RECORDED)
            with open(os.environ["MEGATRACE_BENCH_SEEN"], "a") as file:
                file.write(json.dumps(self._begun) + "\n")
            self._begun = []
