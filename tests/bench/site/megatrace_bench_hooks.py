"""A SGLang plugin of bench_sglang.py: megatrace's hooks of every step, out and in again.

MEGATRACE_BENCH_PAGE=FILE    two bytes: wanted, done (0: the functions as SGLang has them,
                             1: as hooked)
"""

from __future__ import annotations

import mmap
import os
import pkgutil
import threading
import time

LOOK_S = 0.02


def register() -> None:
    """Note what the functions are before any hook is applied, and watch the page."""
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
        threading.Thread(target=_watch, args=((bare, hooked),), daemon=True).start()

    HookRegistry.register("sglang.srt.managers.scheduler.Scheduler.__init__", ready, HookType.AFTER)


def _watch(functions) -> None:
    with open(os.environ["MEGATRACE_BENCH_PAGE"], "r+b") as file:
        page = mmap.mmap(file.fileno(), 2)
    while True:
        if page[0] != page[1]:
            for target, function in functions[page[0]].items():
                owner, name = target.rsplit(".", 1)
                setattr(pkgutil.resolve_name(owner), name, function)
            page[1] = page[0]
        time.sleep(LOOK_S)
