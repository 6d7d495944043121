"""A SGLang plugin of bench_server.py: both paths of a verify in one process, and a switch.

SGLang asks ``plan()`` while it captures a graph and never again. So every shape of the target's
graphs is captured once a path, by SGLang's own runner over its own buffers, weights and pools;
the page says which of them a replay takes. Without graphs the page is looked at step by step.

    MEGATRACE_BENCH_PAGE=FILE    two bytes: the path (PATHS), the mode (RUN, SPANS, COMPARE)
    MEGATRACE_BENCH_SEEN=FILE    what was measured, a JSON object a line

SPANS waits for each verify, which costs the wall time its overlap; COMPARE runs every path on
each verify's own inputs, SGLang's last, whose keys and values stay: there a fourth graph stands
in for it, one that notes beside it which experts were chosen.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import mmap
import os
import time
from importlib.metadata import PackageNotFoundError, version

PATHS = ("sglang", "untraced", "traced", "counted")
OWN, UNTRACED, TRACED, COUNTED = range(4)
RUN, SPANS, COMPARE = range(3)
LIKELY = 8

_RUNNER = "sglang.srt.model_executor.runner"
_BACKEND = "sglang.srt.model_executor.runner_backend.full_cuda_graph_backend"
_MEGAKERNEL = "megatrace.sglang.megakernel.MuseMegakernel"
_EXPERTS = "sglang.srt.layers.muse_spark."


def register() -> None:
    """Hook the scheduler; no other process runs the model."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    from megatrace.sglang.process import scheduler_arguments

    if scheduler_arguments() is None or "MEGATRACE_BENCH_PAGE" not in os.environ:
        return
    switch = Switch()
    for target, hook, kind in (
        ("sglang.srt.managers.scheduler.Scheduler.__init__", switch.ready, HookType.AFTER),
        (f"{_MEGAKERNEL}.plan", switch.plan, HookType.AROUND),
        (f"{_MEGAKERNEL}.forward", switch.forward, HookType.AROUND),
        ("sglang.srt.model_executor.model_runner.ModelRunner.forward", switch.eager, "around"),
        (f"{_RUNNER}.decode_cuda_graph_runner.DecodeCudaGraphRunner.capture_one_shape",
         switch.capture, "around"),
        (f"{_RUNNER}.decode_cuda_graph_runner.DecodeCudaGraphRunner._resolve_lora_variant",
         switch.variant, HookType.AFTER),
        (f"{_BACKEND}.FullCudaGraphBackend.replay", switch.replay, HookType.AROUND),
        (f"{_EXPERTS}muse_spark_bf16_moe.MuseSpark1xBf16Experts.forward", switch.experts, "around"),
        (f"{_EXPERTS}muse_spark_fp4_moe.MuseSpark1xFp4Experts.forward", switch.experts, "around"),
    ):  # fmt: skip
        HookRegistry.register(target, hook, HookType(kind))


class Switch:
    """The hooks, and what they measure."""

    def __init__(self) -> None:
        with open(os.environ["MEGATRACE_BENCH_PAGE"], "rb") as file:
            self._page = mmap.mmap(file.fileno(), 2, prot=mmap.PROT_READ)
        self._seen = open(os.environ["MEGATRACE_BENCH_SEEN"], "a", buffering=1)  # noqa: SIM115
        self._capturing = None
        self._events = {}
        self._graphs = []
        self._in_graph = None
        self._hit = {}

    @property
    def path(self) -> int:
        """The path to take now."""
        return self._page[0] if self._capturing is None else self._capturing

    @property
    def mode(self) -> int:
        """What to do beside it; nothing while graphs are made."""
        return self._page[1] if self._capturing is None else RUN

    def tell(self, kind: str, **what: object) -> None:
        """One line for the bench."""
        self._seen.write(json.dumps({"kind": kind, **what}) + "\n")

    def ready(self, _result, scheduler, *_args, **_kwargs) -> None:
        """AFTER ``Scheduler.__init__``: what the figures are of."""
        import torch

        runner = scheduler.tp_worker.model_runner
        cuda = torch.cuda.is_available() and runner.device == "cuda"
        names = ("sglang", "torch", "triton", "sglang-kernel", "transformers")
        self.tell(
            "about",
            device=torch.cuda.get_device_name() if cuda else "cpu",
            graphs=self._graphs,
            span=(
                "host, around the forward"
                if not self._graphs
                else "events in the graph"
                if self._in_graph
                else "events around the replay"
            ),
            attention=type(runner.attn_backend).__name__,
            flashinfer=importlib.util.find_spec("flashinfer") is not None,
            versions={name: _version(name) for name in names},
        )

    # -- graphs --------------------------------------------------------------------------

    def capture(self, original, runner, size, forward, stream_idx=None, label=None, attention=None):
        """AROUND ``capture_one_shape``: the same shape once a path."""
        if runner.model_runner.is_draft_worker or label is not None:
            return original(runner, size, forward, stream_idx, label, attention)
        if self._in_graph is None:
            self._in_graph = _events_in_graphs()
            hooks = runner.model_runner
            hooks.capture_head_hooks.append(self._head)
            hooks.capture_tail_hooks.append(self._tail)
        try:
            # SGLang wants the megakernel in the first graph that it looks at.
            for path in (TRACED, UNTRACED, OWN, COUNTED):
                self._capturing = path
                original(runner, size, forward, stream_idx, PATHS[path], attention)
                self._graphs.append(f"{PATHS[path]} of batch {size}")
        finally:
            self._capturing = None

    def variant(self, result, runner, _batch):
        """AFTER ``_resolve_lora_variant``: names the graph to replay."""
        return result if runner.model_runner.is_draft_worker else PATHS[self.path]

    def replay(self, original, backend, key, batch, **kwargs):
        """AROUND ``FullCudaGraphBackend.replay``."""
        runner = backend._cuda_graph_runner
        if self.mode == RUN or runner.model_runner.is_draft_worker:
            return original(backend, key, batch, **kwargs)
        if self.mode == COMPARE:
            outs = {}
            for path in (UNTRACED, TRACED, COUNTED):
                at = dataclasses.replace(key, variant_label=PATHS[path])
                outs[path] = original(backend, at, batch, **kwargs)
                if path != COUNTED:
                    outs[path] = _copy(outs[path])
            outs[OWN] = outs[COUNTED]
            self._compare(outs)
            return outs[OWN]
        return self._timed(original, backend, key, batch, kwargs)

    def _timed(self, original, backend, key, batch, kwargs):
        import torch

        head, tail = self._events.get((key.size, key.variant_label), (None, None))
        if head is None:
            head, tail = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            head.record()
            out = original(backend, key, batch, **kwargs)
            tail.record()
        else:
            out = original(backend, key, batch, **kwargs)
        tail.synchronize()
        self.tell("span", path=key.variant_label, us=1e3 * head.elapsed_time(tail))
        return out

    def _head(self, _runner, batch) -> None:
        import torch

        if self._in_graph and self._capturing is not None and _captures():
            pair = [torch.cuda.Event(enable_timing=True, external=True) for _ in range(2)]
            self._events[int(batch.batch_size), PATHS[self._capturing]] = tuple(pair)
            pair[0].record()

    def _tail(self, _runner, _out, batch, _tokens) -> None:
        if self._in_graph and self._capturing is not None and _captures():
            self._events[int(batch.batch_size), PATHS[self._capturing]][1].record()

    # -- without graphs ------------------------------------------------------------------

    def plan(self, original, built, *args, **kwargs):
        """AROUND ``MuseMegakernel.plan``: the plugin on or off, traced or not."""
        path = TRACED if self.mode == COMPARE else self.path
        built.enabled = path in (UNTRACED, TRACED)
        levels = built.__dict__.setdefault("_bench_levels", ("off", built.level))
        built.level = levels[path == TRACED]
        return original(built, *args, **kwargs)

    def forward(self, original, built, step, own, *args, **kwargs):
        """AROUND ``MuseMegakernel.forward``: both on the same inputs where that is asked for."""
        out = original(built, step, own, *args, **kwargs)
        if self.mode != COMPARE:
            return out
        outs = {TRACED: _copy(out)}
        levels = built._bench_levels
        built.level = levels[0]
        outs[UNTRACED] = _copy(original(built, step, own, *args, **kwargs))
        outs[OWN] = own(*args, **kwargs)
        self._compare(outs)
        return outs[OWN]

    def eager(self, original, runner, batch, *args, **kwargs):
        """AROUND ``ModelRunner.forward``: on a CPU it returns when the work is done."""
        begin = time.perf_counter()
        out = original(runner, batch, *args, **kwargs)
        us = 1e6 * (time.perf_counter() - begin)
        of_target = runner.device == "cpu" and not runner.is_draft_worker
        mode = batch.forward_mode
        if of_target and self.mode == SPANS and (mode.is_decode() or mode.is_target_verify()):
            self.tell("span", path=PATHS[self.path], us=us)
        return out

    def experts(self, original, module, hidden, scores, ids, *args, **kwargs):
        """AROUND ``forward`` of a layer's experts: which of them its rows go to."""
        import torch

        eager = self._capturing is None and not self._graphs and self.mode == COMPARE
        if self._capturing == COUNTED or eager:
            hit = self._hit.get(module)
            if hit is None:
                hit = torch.zeros(module.num_experts, dtype=torch.int32, device=ids.device)
                self._hit[module] = hit
            hit.zero_()
            hit.index_fill_(0, ids.reshape(-1).long(), 1)
        return original(module, hidden, scores, ids, *args, **kwargs)

    # -- answers -------------------------------------------------------------------------

    def _compare(self, outs) -> None:
        import torch

        self.tell("experts", distinct=[int(hit.sum()) for hit in self._hit.values()])
        own = outs[OWN]
        logits = own.next_token_logits.float()
        likely = logits.log_softmax(-1).topk(LIKELY, dim=-1)
        for path in (UNTRACED, TRACED):
            here = outs[path].next_token_logits.float()
            gap = here.log_softmax(-1).gather(-1, likely.indices) - likely.values
            taps = None
            if own.hidden_states is not None:
                taps = _l2(outs[path].hidden_states, own.hidden_states)
            self.tell(
                "compare",
                path=PATHS[path],
                rows=int(logits.shape[0]),
                same_token=int((here.argmax(-1) == logits.argmax(-1)).sum()),
                logits_l2=_l2(here, logits),
                likely_apart=float(gap.abs().max()),
                taps_l2=taps,
                finite=bool(torch.isfinite(here).all()),
            )


def _copy(out):
    hidden = out.hidden_states
    return dataclasses.replace(
        out,
        next_token_logits=out.next_token_logits.clone(),
        hidden_states=None if hidden is None else hidden.clone(),
    )


def _l2(here, there) -> float:
    here, there = here.float(), there.float()
    return float((here - there).norm() / there.norm())


def _captures() -> bool:
    import torch

    return torch.cuda.is_current_stream_capturing()


def _events_in_graphs() -> bool:
    """Whether events recorded inside a graph time it: tried on a graph of one addition."""
    try:
        import torch

        head, tail = (torch.cuda.Event(enable_timing=True, external=True) for _ in range(2))
        x, graph = torch.zeros(1, device="cuda"), torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            head.record()
            x.add_(1)
            tail.record()
        graph.replay()
        tail.synchronize()
        return head.elapsed_time(tail) > 0
    except Exception as error:
        print(f"no events inside of graphs here: {error}", flush=True)
        return False


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "-"
