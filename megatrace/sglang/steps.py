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


class Span:
    """A span being timed. ``batch`` in requests, ``tokens`` in rows, ``graph`` 0 or 1.

    Of a step, ``inside`` is what stands in the ring before it.
    """

    __slots__ = (
        *("batch", "begin_ns", "end_ns", "event", "graph"),
        *("inside", "step", "tokens", "verify"),
    )

    def __init__(self, event: int, step: int, batch: int, tokens: int) -> None:
        self.event = event
        self.step = step
        self.batch = batch
        self.tokens = tokens
        self.graph = 0
        self.inside: list[HostRecord] = []
        self.verify: Span | None = None
        self.end_ns = 0
        self.begin_ns = time.monotonic_ns()

    def record(self, accepted: int) -> HostRecord:
        """What the ring has of it."""
        values = (self.batch, self.tokens, self.graph, accepted)
        return (self.event, self.begin_ns, self.end_ns, self.step, values, b"")


class StepTracer:
    """The three hooks of the scheduler's loop; none of them raises or changes a result."""

    def __init__(self, agent: HostAgent, nvtx: NvtxBridge, guard: Guard) -> None:
        self._agent = agent
        self._nvtx = nvtx if nvtx.active else None
        self._guard = guard
        self._signal = step_signal()
        self._step: Span | None = None
        self._last = 0
        self._waiting: dict[int, Span] = {}

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
        span = self._guarded(RUN_BATCH, self._open_step, scheduler, args, kwargs)
        if span is None:
            return original(scheduler, *args, **kwargs)
        self._step, self._last = span, span.step
        self._signal.emit(span.step)
        if self._nvtx is not None:
            self._nvtx.push("step", span.step)
        try:
            return original(scheduler, *args, **kwargs)
        finally:
            if self._nvtx is not None:
                self._nvtx.pop()
            self._step = None
            self._guarded(RUN_BATCH, self._close_step, span)

    def around_forward(
        self, original: Callable[..., Any], runner: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """AROUND ``ModelRunner.forward(forward_batch, ...)``, graph replays included."""
        span = self._guarded(FORWARD, self._open_forward, runner, args, kwargs)
        if span is None:
            return original(runner, *args, **kwargs)
        if self._nvtx is not None:
            self._nvtx.push(_NAMES[span.event], span.step)
        try:
            output = original(runner, *args, **kwargs)
        finally:
            if self._nvtx is not None:
                self._nvtx.pop()
        self._guarded(FORWARD, self._close_forward, span, output)
        return output

    def after_result(
        self, result: Any, scheduler: Any, batch: Any, outcome: Any, *args: Any, **kwargs: Any
    ) -> None:
        """AFTER ``Scheduler.process_batch_result(batch, result)``: accept lengths are here."""
        if self._waiting:
            self._guarded(PROCESS_RESULT, self._settle, batch, outcome)

    def flush(self) -> None:
        """Write the steps whose results never came, accept length unknown."""
        while self._waiting:
            self._write(self._waiting.pop(next(iter(self._waiting))), UNKNOWN)

    def _guarded(self, target: str, call: Callable[..., Any], *args: Any) -> Any:
        if target in self._guard.broken:
            return None
        try:
            return call(*args)
        except Exception as error:
            self._guard.fail(target, error)
            return None

    def _open_step(self, scheduler: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Span:
        batch = args[0] if args else kwargs["batch"]
        step = scheduler.forward_ct + 1  # run_batch counts before anything else
        rows = batch.extend_num_tokens if batch.forward_mode.is_extend() else None
        requests = batch.reqs
        span = Span(_STEP, step, len(requests), rows or len(requests))
        for index, request in enumerate(requests):
            text = str(request.rid).encode("utf-8", "replace")[:TEXT_BYTES]
            span.inside.append((_REQUEST, span.begin_ns, span.begin_ns, step, (index,), text))
        return span

    def _close_step(self, span: Span) -> None:
        span.end_ns = time.monotonic_ns()
        if span.verify is None or PROCESS_RESULT in self._guard.broken:
            self._write(span, UNKNOWN)
            return
        self._waiting[span.step] = span
        if len(self._waiting) > _WAITING:
            self._write(self._waiting.pop(next(iter(self._waiting))), UNKNOWN)

    def _open_forward(self, runner: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Span:
        batch = args[0] if args else kwargs["forward_batch"]
        event = _DRAFT if runner.is_draft_worker else _stage(batch.forward_mode)
        return Span(event, self.current(), int(batch.batch_size), _rows(batch))

    def _close_forward(self, span: Span, output: Any) -> None:
        span.end_ns = time.monotonic_ns()
        span.graph = int(bool(output.can_run_graph))
        step = self._step
        if step is None:
            self._write(span, UNKNOWN)
            return
        if span.event != _DRAFT:
            # A step has the rows of its target forward, not of its draft.
            step.tokens, step.graph = span.tokens, span.graph
        if span.event == _VERIFY:
            step.verify = span
        else:
            step.inside.append(span.record(UNKNOWN))

    def _settle(self, batch: Any, outcome: Any) -> None:
        if batch.forward_iter not in self._waiting:
            return
        # A list of the host, made by the scheduler from a tensor it had waited for.
        drafts = getattr(outcome, "num_correct_drafts_per_req_cpu", None)
        accepted = UNKNOWN
        if drafts is not None:
            accepted = sum(drafts) + len(drafts) * outcome.num_non_draft_tokens_per_req
        self._write(self._waiting.pop(batch.forward_iter), accepted)

    def _write(self, span: Span, accepted: int) -> None:
        """All of a step at once: a record alone costs a busy server several times as much."""
        records = span.inside
        if span.verify is not None:
            records.append(span.verify.record(accepted))
        records.append(span.record(accepted))
        self._agent.spans(records)


def _stage(mode: Any) -> int:
    """The host event of a target forward; order matters, a verify is an extend to SGLang."""
    if mode.is_decode():
        return _DECODE
    if mode.is_target_verify():
        return _VERIFY
    if mode.is_extend():
        return _EXTEND
    return _FORWARD


def _rows(batch: Any) -> int:
    """Rows of a forward, from shapes alone."""
    for name in ("input_ids", "positions", "input_embeds"):
        tensor = getattr(batch, name, None)
        if tensor is not None:
            return int(tensor.shape[0])
    return int(batch.batch_size)
