"""The entry point ``megatrace`` of SGLang's plugin group ``sglang.srt.plugins``.

SGLang calls :func:`register` in every process it starts. Without ``MEGATRACE_SESSION``
that is all that happens. Each process with a session writes an ``attach`` fact::

    process, rank, tp_rank, pp_rank, dp_rank, gpu_id, pid
    state      registered | attached | failed
    attached   ["Scheduler.run_batch", ...]
    missed     {"ModelRunner.forward": "AttributeError: ..."}
    nvtx       on | no tool attached | no nvtx package | ...
    sglang, megatrace    versions

A later fact of the same process replaces an earlier one. A scheduler with a megakernel writes a
``megakernel`` fact too, see :mod:`megatrace.sglang.found`.
"""

from __future__ import annotations

import atexit
import logging
import os
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from megatrace.agent.host import RECORDS, HostAgent
from megatrace.agent.nvtx import NvtxBridge
from megatrace.agent.steps import step_signal
from megatrace.sglang import found, steps, window
from megatrace.sglang.attach import Attachment, Hook, attach
from megatrace.sglang.guard import Guard, reason
from megatrace.sglang.process import ProcessIdentity, Role, identify

_LOG = logging.getLogger("megatrace.sglang")

READY = "sglang.srt.managers.scheduler.Scheduler.__init__"
_FACTS_ONLY = 256
"""Records of a process that writes facts alone."""


def register() -> None:
    """Attach to this process of the server. Never raises; a failure is logged."""
    try:
        identity = identify()
        scheduler = identity.role in (Role.SCHEDULER, Role.OTHER)
        agent = HostAgent.from_env(
            identity.role,
            rank=identity.rank,
            meta=identity.facts(),
            records=RECORDS if scheduler else _FACTS_ONLY,
        )
        if agent is None:
            return
        plugin = _Plugin(agent, identity)
        atexit.register(plugin.close)
        # Hooking imports the module hooked: only where the model runs.
        plugin.attach() if scheduler else plugin.tell("attached")
    except Exception as error:
        _LOG.warning("megatrace: nothing of this process is recorded: %s", reason(error))


class _Plugin:
    """One process of the server: its agent, its hooks, and what to say of them."""

    def __init__(self, agent: HostAgent, identity: ProcessIdentity) -> None:
        self._agent = agent
        self._identity = identity
        self._nvtx = NvtxBridge.load()
        self._guard = Guard(self._failed)
        self._attachment = Attachment()
        self._tracer = steps.StepTracer(agent, self._nvtx, self._guard)

    def attach(self) -> None:
        """Register the hooks of a scheduler."""
        tracer = self._tracer
        windows = window.WindowHooks(self._agent, self._guard, tracer.current_or_next)
        kernels = found.FoundKernels(self._agent, self._guard)
        try:
            self._attachment = attach(
                (
                    Hook(READY, "after", self._ready),
                    Hook(steps.RUN_BATCH, "around", tracer.around_run_batch),
                    Hook(steps.PROCESS_RESULT, "after", tracer.after_result),
                    Hook(steps.FORWARD, "around", tracer.around_forward),
                    Hook(found.FIND_SPEC, "after", kernels.after_find_spec),
                    Hook(window.START, "after", windows.after_start),
                    Hook(window.STOP, "around", windows.around_stop),
                    Hook(window.STAGED_START, "after", windows.after_staged_start),
                    Hook(window.STAGED_STOP, "around", windows.around_staged_stop),
                )
            )
        except Exception as error:
            self._attachment.miss("sglang.HookRegistry", reason(error))
            self.tell("failed")
        else:
            self.tell("registered")

    def tell(self, state: str) -> None:
        """Write the ``attach`` fact."""
        self._agent.fact(
            "attach",
            {
                "process": self._identity.role,
                **{k: v for k, v in self._identity.facts().items() if k != "role"},
                "pid": os.getpid(),
                "state": state,
                "attached": self._attachment.attached,
                "missed": self._attachment.missed,
                "nvtx": self._nvtx.state,
                "sglang": _version("sglang"),
                "megatrace": _version("megatrace"),
            },
        )

    def close(self) -> None:
        """Write what waits and close the ring; at exit, so it must not raise."""
        try:
            self._tracer.flush()
            self._agent.close()
        except Exception as error:
            _LOG.warning("megatrace: the ring was not closed: %s", reason(error))

    def _ready(self, result: Any, scheduler: Any, *args: Any, **kwargs: Any) -> None:
        """AFTER ``Scheduler.__init__``: SGLang has applied every hook and made its streams."""
        try:
            self._attachment.verify()
            step_signal().stream = _forward_stream(scheduler)
            self.tell("attached")
        except Exception as error:
            self._guard.fail(READY, error)

    def _failed(self, target: str, why: str) -> None:
        self._attachment.miss(target, why)
        self.tell("attached")


def _forward_stream(scheduler: Any) -> int:
    """Handle of the stream that forwards run on; 0 on a CPU."""
    stream = scheduler.forward_stream if scheduler.enable_overlap else scheduler.schedule_stream
    return int(getattr(stream, "cuda_stream", 0))


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "unknown"
