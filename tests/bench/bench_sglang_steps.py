"""What the hooks add to one step of the scheduler, against the same calls unhooked.

    python tests/bench/bench_sglang_steps.py [--cold]

One step is a draft, a verify and a result, for 1, 8 and 64 requests. Prints microseconds
a step with the hooks less without, the spread over rounds, and the same difference of
two runs without (A/A).

A server runs much else between its hooks, whose code and data leave the caches: with
``--cold`` the forwards do so too, in time that does not count. That is nearer to what hooks cost
a server, and several times as much.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

STEPS, ROUNDS = 2000, 9
COLD_STEPS, COLD_BYTES = 40, 64 << 20


class Elsewhere:
    """What a server runs between its hooks: memory is copied, and Python code of all kinds runs."""

    def __init__(self) -> None:
        self.spent_s = 0.0
        self._from = np.ones(COLD_BYTES, dtype=np.uint8)
        self._to = np.empty_like(self._from)
        self._objects = [{str(i): [i] * 3} for i in range(20_000)]

    def run(self) -> None:
        """Once."""
        begin = time.perf_counter()
        np.copyto(self._to, self._from)
        json.loads(json.dumps(self._objects[:300]))
        sorted(self._objects, key=id)
        self.spent_s += time.perf_counter() - begin


class _Mode:
    def is_decode(self) -> bool:
        return False

    def is_extend(self) -> bool:
        return False

    def is_target_verify(self) -> bool:
        return True


def scheduler_loop(
    requests: int, tracer: Any, elsewhere: Elsewhere | None
) -> Callable[[int], None]:
    """A loop of so many steps; ``tracer`` None: unhooked."""
    output = SimpleNamespace(can_run_graph=True)
    forward_batch = SimpleNamespace(
        forward_mode=_Mode(),
        batch_size=requests,
        input_ids=SimpleNamespace(shape=(8 * requests,)),
    )
    reqs = [SimpleNamespace(rid=f"{i:032x}") for i in range(requests)]
    batch = SimpleNamespace(forward_mode=_Mode(), reqs=reqs, forward_iter=0)
    scheduler = SimpleNamespace(forward_ct=0)
    runners = [SimpleNamespace(is_draft_worker=d) for d in (True, False)]
    outcome = SimpleNamespace(
        num_correct_drafts_per_req_cpu=[3] * requests, num_non_draft_tokens_per_req=1
    )

    def forward(_runner: Any, _batch: Any) -> Any:
        if elsewhere is not None:
            elsewhere.run()
        return output

    def run_batch(scheduler: Any, batch: Any) -> Any:
        scheduler.forward_ct += 1
        batch.forward_iter = scheduler.forward_ct
        for runner in runners:
            hooked(runner, forward_batch)
        return output

    def hooked(runner: Any, batch: Any) -> Any:
        if tracer is None:
            return forward(runner, batch)
        return tracer.around_forward(forward, runner, batch)

    def loop(steps: int) -> None:
        for _ in range(steps):
            if tracer is None:
                run_batch(scheduler, batch)
            else:
                tracer.around_run_batch(run_batch, scheduler, batch)
                tracer.after_result(None, scheduler, batch, outcome)

    return loop


def us_a_step(loop: Callable[[int], None], elsewhere: Elsewhere | None) -> float:
    """Microseconds, without what is spent elsewhere."""
    steps = STEPS if elsewhere is None else COLD_STEPS
    begin, before = time.perf_counter(), elsewhere.spent_s if elsewhere else 0.0
    loop(steps)
    spent = elsewhere.spent_s - before if elsewhere else 0.0
    return (time.perf_counter() - begin - spent) / steps * 1e6


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cold", action="store_true", help="caches are emptied in between")
    elsewhere = Elsewhere() if parser.parse_args().cold else None
    with tempfile.TemporaryDirectory() as folder:
        os.environ["MEGATRACE_RUNTIME_DIR"] = f"{folder}/runtime"
        from megatrace.agent.host import HostAgent
        from megatrace.agent.nvtx import NvtxBridge
        from megatrace.ring.session import Session
        from megatrace.sglang.guard import Guard
        from megatrace.sglang.steps import StepTracer

        session = Session.create("bench")
        agent = HostAgent.from_env("bench", environ=session.environment)
        assert agent is not None
        tracer = StepTracer(agent, NvtxBridge.load(), Guard(print))
        print("requests  hooks us/step  spread  A/A us")
        for requests in (1, 8, 64):
            plain, hooked = (scheduler_loop(requests, t, elsewhere) for t in (None, tracer))
            added, again = [], []
            for _ in range(ROUNDS):
                first, with_hooks, second = (
                    us_a_step(x, elsewhere) for x in (plain, hooked, plain)
                )
                added.append(with_hooks - (first + second) / 2)
                again.append(second - first)
            spread = max(added) - min(added)
            print(
                f"{requests:8}  {statistics.median(added):13.1f}  {spread:6.1f}"
                f"  {statistics.median(again):+6.2f}"
            )
        agent.close()
        session.close(remove=True)


if __name__ == "__main__":
    main()
