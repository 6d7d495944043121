"""Every step of the scheduler and every forward of the model, as host spans.

A step is one ``Scheduler.run_batch``: with speculative decoding it holds a draft and a
verify forward. Its number is SGLang's ``forward_ct``, the same on every rank. Times are
those of the host: on a GPU a forward returns when its work is queued.

How many tokens a verify accepted is known when SGLang has its result on the host, with
overlapped scheduling one step later; such a step is written then, with all that is of it. So
a process that dies takes the spans of the last step or two with it, its requests among them;
kernels have their own records. No tensor is read here beyond its shape, so nothing waits for
the GPU.
"""

from __future__ import annotations

import operator
import time
from collections.abc import Callable
from typing import Any

from megatrace.agent.host import HOST_EVENT_IDS, HostAgent, HostRecord
from megatrace.agent.nvtx import NvtxBridge
from megatrace.agent.steps import step_signal
from megatrace.sglang.guard import Guard

RUN_BATCH = "sglang.srt.managers.scheduler.Scheduler.run_batch"
PROCESS_RESULT = "sglang.srt.managers.scheduler.Scheduler.process_batch_result"
FORWARD = "sglang.srt.model_executor.model_runner.ModelRunner.forward"

UNKNOWN = -1
TEXT_BYTES = 56
_WAITING = 64
"""Steps that may wait for their result; a pipeline holds a few, an aborted one leaks."""

_STEP = HOST_EVENT_IDS["step"]
_EXTEND = HOST_EVENT_IDS["extend"]
_DECODE = HOST_EVENT_IDS["decode"]
_DRAFT = HOST_EVENT_IDS["draft"]
_VERIFY = HOST_EVENT_IDS["verify"]
_FORWARD = HOST_EVENT_IDS["forward"]
_REQUEST = HOST_EVENT_IDS["request"]
_NAMES = {i: name for name, i in HOST_EVENT_IDS.items()}


class _Open:
    """A step being timed. ``inside`` is what stands in the ring before it.

    ``verify`` is one whose accept length is not known yet: begin and end in ns, requests, rows,
    graph.
    """

    __slots__ = ("batch", "begin_ns", "end_ns", "graph", "inside", "step", "tokens", "verify")

    def __init__(self, step: int, batch: int, tokens: int, begin_ns: int) -> None:
        self.step = step
        self.batch = batch
        self.tokens = tokens
        self.graph = 0
        self.inside: list[HostRecord] = []
        self.verify: tuple[int, int, int, int, int] | None = None
        self.begin_ns = begin_ns
        self.end_ns = 0


class StepTracer:
    """The three hooks of the scheduler's loop; none of them raises or changes a result.

    A hook is one function, with little in it: what it runs has left the caches since the step
    before, so that every call and every line of it costs many times what it costs in a loop
    (tests/bench/bench_sglang_steps.py --cold).
    """

    def __init__(self, agent: HostAgent, nvtx: NvtxBridge, guard: Guard) -> None:
        self._agent = agent
        self._nvtx = nvtx if nvtx.active else None
        self._guard = guard
        self._broken = guard.broken
        self._signal = step_signal()
        self._step: _Open | None = None
        self._last = 0
        self._stages: dict[Any, int] = {}
        self._waiting: dict[int, _Open] = {}

    def current(self) -> int:
        """Number of the step in progress, 0 outside of one."""
        return self._step.step if self._step is not None else 0

    def current_or_next(self) -> int:
        """Number of the step in progress, between two that of the next."""
        return self._last if self._step is not None else self._last + 1

    def around_run_batch(
        self, original: Callable[..., Any], scheduler: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """AROUND ``Scheduler.run_batch(batch, ...)``."""
        if RUN_BATCH in self._broken:
            return original(scheduler, *args, **kwargs)
        try:
            batch = args[0] if args else kwargs["batch"]
            requests = batch.reqs
            number = scheduler.forward_ct + 1  # run_batch counts before anything else
            begin_ns = time.monotonic_ns()
            step = _Open(number, len(requests), _tokens(batch, len(requests)), begin_ns)
            for index, request in enumerate(requests):
                text = str(request.rid).encode("utf-8", "replace")[:TEXT_BYTES]
                step.inside.append((_REQUEST, begin_ns, begin_ns, number, (index,), text))
        except Exception as error:
            self._guard.fail(RUN_BATCH, error)
            return original(scheduler, *args, **kwargs)
        self._step, self._last = step, number
        self._signal.emit(number)
        if self._nvtx is not None:
            self._nvtx.push("step", number)
        try:
            return original(scheduler, *args, **kwargs)
        finally:
            step.end_ns = time.monotonic_ns()
            if self._nvtx is not None:
                self._nvtx.pop()
            self._step = None
            if step.verify is None or PROCESS_RESULT in self._broken:
                self._write(step, UNKNOWN, RUN_BATCH)
            else:
                self._waiting[number] = step
                if len(self._waiting) > _WAITING:
                    self._give_up_oldest()

    def around_forward(
        self, original: Callable[..., Any], runner: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """AROUND ``ModelRunner.forward(forward_batch, ...)``, graph replays included."""
        if FORWARD in self._broken:
            return original(runner, *args, **kwargs)
        try:
            batch = args[0] if args else kwargs["forward_batch"]
            event = _DRAFT if runner.is_draft_worker else self._stage(batch.forward_mode)
            requests, rows = int(batch.batch_size), _rows(batch)
        except Exception as error:
            self._guard.fail(FORWARD, error)
            return original(runner, *args, **kwargs)
        if self._nvtx is not None:
            self._nvtx.push(_NAMES[event], self.current())
        begin_ns = time.monotonic_ns()
        try:
            output = original(runner, *args, **kwargs)
        finally:
            if self._nvtx is not None:
                self._nvtx.pop()
        end_ns = time.monotonic_ns()
        try:
            graph = 1 if output.can_run_graph else 0
            step = self._step
            if step is None:
                values = (requests, rows, graph, UNKNOWN)
                self._agent.spans([(event, begin_ns, end_ns, 0, values, b"")])
                return output
            if event != _DRAFT:
                # A step has the rows of its target forward, not of its draft.
                step.tokens, step.graph = rows, graph
            if event == _VERIFY:
                step.verify = (begin_ns, end_ns, requests, rows, graph)
            else:
                values = (requests, rows, graph, UNKNOWN)
                step.inside.append((event, begin_ns, end_ns, step.step, values, b""))
        except Exception as error:
            self._guard.fail(FORWARD, error)
        return output

    def after_result(
        self, result: Any, scheduler: Any, batch: Any, outcome: Any, *args: Any, **kwargs: Any
    ) -> None:
        """AFTER ``Scheduler.process_batch_result(batch, result)``: accept lengths are here."""
        if not self._waiting or PROCESS_RESULT in self._broken:
            return
        try:
            step = self._waiting.get(batch.forward_iter)
            if step is None:
                return
            # A list of the host, made by the scheduler from a tensor it had waited for.
            drafts = getattr(outcome, "num_correct_drafts_per_req_cpu", None)
            accepted = UNKNOWN
            if drafts is not None:
                rest = len(drafts) * outcome.num_non_draft_tokens_per_req
                accepted = operator.index(sum(drafts) + rest)
            del self._waiting[step.step]
        except Exception as error:
            self._guard.fail(PROCESS_RESULT, error)
            return
        self._write(step, accepted, PROCESS_RESULT)

    def flush(self) -> None:
        """Write the steps whose results never came, accept length unknown."""
        while self._waiting:
            self._give_up_oldest()

    def _give_up_oldest(self) -> None:
        try:
            step = self._waiting.pop(next(iter(self._waiting)))
        except (StopIteration, KeyError, RuntimeError):
            return  # another thread has, at exit
        self._write(step, UNKNOWN, RUN_BATCH)

    def _write(self, step: _Open, accepted: int, hook: str) -> None:
        """All of a step at once: a record alone costs a busy server several times as much."""
        records = step.inside
        try:
            if step.verify is not None:
                begin_ns, end_ns, requests, rows, graph = step.verify
                values = (requests, rows, graph, accepted)
                records.append((_VERIFY, begin_ns, end_ns, step.step, values, b""))
            values = (step.batch, step.tokens, step.graph, accepted)
            records.append((_STEP, step.begin_ns, step.end_ns, step.step, values, b""))
            self._agent.spans(records)
        except Exception as error:
            self._guard.fail(hook, error)

    def _stage(self, mode: Any) -> int:
        """The host event of a target forward in this mode."""
        event = self._stages.get(mode)
        if event is None:
            event = self._stages[mode] = _stage(mode)
        return event


def _stage(mode: Any) -> int:
    """The host event of a target forward; order matters, a verify is an extend to SGLang."""
    if mode.is_decode():
        return _DECODE
    if mode.is_target_verify():
        return _VERIFY
    if mode.is_extend():
        return _EXTEND
    return _FORWARD


def _tokens(batch: Any, requests: int) -> int:
    """Tokens of a step that is to begin: a target forward in it knows better."""
    return (batch.extend_num_tokens if batch.forward_mode.is_extend() else None) or requests


def _rows(batch: Any) -> int:
    """Rows of a forward, from shapes alone."""
    for name in ("input_ids", "positions", "input_embeds"):
        tensor = getattr(batch, name, None)
        if tensor is not None:
            return int(tensor.shape[0])
    return int(batch.batch_size)
