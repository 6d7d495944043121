"""The agent beside a traced kernel: makes its ring, says its steps, obeys the recorder.

::

    agent = KernelAgent.start(STREAM, blocks=132, roles=ROLES, kernels=("stream",), device="cuda")
    launch(..., agent.params)            # the last argument of the kernel
    for _ in range(steps):
        agent.begin_step(stream)         # before each replay
        graph.replay()
    agent.close()

Outside a session (``MEGATRACE_SESSION`` is not set) ``start`` returns an agent that does
nothing, with parameters that switch the tracer off.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from megatrace.agent.copies import COPY_S
from megatrace.agent.cuda import Cuda
from megatrace.agent.decision import Decision
from megatrace.agent.memory import CudaMemory, HostMemory, TraceMemory, TraceParams
from megatrace.agent.numa import preferred_node
from megatrace.agent.probe import ClockProbe
from megatrace.agent.steps import capture_window, step_signal
from megatrace.agent.tell import session_or_none
from megatrace.errors import RingError, UsageError
from megatrace.ring.control import ALL_SMS, Control, read_ack, read_control, write_ack
from megatrace.ring.file import UNPINNED_FACT, RingFile, RingSpec
from megatrace.ring.host import HostWriter
from megatrace.ring.session import Session
from megatrace.schema import HOST, EventTable
from megatrace.schema.layout import (
    CONTROL_RESTS,
    CONTROL_SOME_SMS,
    LAYER_MASK,
    LEVEL_COUNTERS,
    LEVEL_OFF,
)

_CLOCK_SAMPLE = next(event.id for event in HOST if event.name == "clock_sample")
_TICK_S = 0.25
_CLOCK_S = 1.0
_ADOPT_S = 1.0
_READ_S = 0.002
_FIRST_SAMPLES = 3
_QUIET_S = 1.0
"""So long after a step that rests, launches count again: the host may say no more steps."""


@dataclass(frozen=True, slots=True)
class RingSize:
    """``lines`` (128 bytes) a warp, a power of two; ``layers`` of sums.

    Raises UsageError for another number of lines, and for more layers than a launch can name.
    """

    lines: int = 256
    layers: int = 1

    def __post_init__(self) -> None:
        """Refuse a ring that a kernel would write beside."""
        if self.lines < 2 or self.lines & (self.lines - 1):
            raise UsageError(
                f"ring: {self.lines} lines a warp", hint="use a power of two from 2 on"
            )
        if not 1 <= self.layers <= LAYER_MASK:
            raise UsageError(f"ring: {self.layers} layers", hint=f"use 1 to {LAYER_MASK}")


class KernelAgent:
    """One ring and the thread that tends it. Use :meth:`start`."""

    def __init__(self, ring: RingFile, memory: TraceMemory, probe: ClockProbe | None) -> None:
        """Take over ``ring`` and ``memory``; ``probe`` None: the host's own clock."""
        self.params: TraceParams = memory.params
        """What the kernel takes as its last argument."""
        self.stream = 0
        """Handle of the stream the kernels run on, for steps that a plugin says; 0: its own."""
        self._ring = ring
        self._memory = memory
        self._probe = probe
        self._host = HostWriter(ring)
        self._decision = Decision()
        self._step = 0
        self._timeline_steps = 0
        self._sms = 0
        self._hooked = False
        self._rests = False
        self._said_s = 0.0
        self._pid = os.getpid()
        self._control = Control(level=LEVEL_OFF)
        self._lock = threading.Lock()
        self._stop = threading.Event()
        if memory.unpinned:
            self.fact(UNPINNED_FACT, {"why": memory.unpinned})
        for _ in range(_FIRST_SAMPLES):  # some get no answer, and a program may be over soon
            self._sample_clock()
        self._wait_for_recorder()
        self.begin_step(memory.stream, hooked=False)
        self._thread = threading.Thread(target=self._tend, name="megatrace-agent", daemon=True)
        self._thread.start()
        step_signal().subscribe(self.on_step)

    @classmethod
    def start(
        cls,
        table: EventTable,
        *,
        blocks: int,
        roles: Sequence[str],
        kernels: Sequence[str],
        device: str,
        rank: int = 0,
        size: RingSize = RingSize(),
    ) -> KernelAgent | IdleAgent:
        """The agent of this process and ``rank``.

        ``roles`` names the warps of a block, ``kernels`` the kernel ids from 0, ``device``
        is ``cuda`` or ``cpu`` (the host build). Where there is no memory for a ring or the
        driver refuses it says so on stderr and returns an agent that does nothing: a profiler
        does not end the program. Raises SessionError where the session is not this user's,
        UsageError where there would be no warp.
        """
        if blocks < 1 or not roles:
            raise UsageError(
                f"agent: {blocks} blocks of {len(roles)} warps",
                hint="blocks is that of the grid, roles has a name for each warp of a block",
            )
        session = session_or_none()
        if session is None:
            return IdleAgent()
        with contextlib.ExitStack() as undo:
            try:
                cuda = Cuda() if device == "cuda" else None
                names = tuple(roles), tuple(kernels)
                ring = _create(session, table, blocks, *names, rank, size, cuda)
                undo.callback(_discard, ring)
                memory = CudaMemory(ring, cuda) if cuda else HostMemory(ring)
                undo.callback(memory.abandon)
                probe = ClockProbe(cuda) if cuda else None
                if probe is not None:
                    undo.callback(_quietly, probe.close)
                agent = cls(ring, memory, probe)
            except (RingError, OSError, MemoryError, RuntimeError) as error:  # the last: no thread
                return _not_recorded(error)
            undo.pop_all()
        return agent

    def begin_step(self, stream: int = 0, *, step: int | None = None, hooked: bool = True) -> None:
        """Before the launches of a step: writes its id and level, ordered on ``stream``.

        ``step`` counts up by itself where it is not given.
        """
        if os.getpid() != self._pid:
            return  # a forked child: the ring and the lock are its parent's
        with self._lock:
            self._begin_step(stream, step, hooked=hooked)

    def _begin_step(self, stream: int, step: int | None, *, hooked: bool) -> None:
        now = time.monotonic()
        if hooked:
            self._said_s = now
        quiet = self._rests and now - self._said_s > _QUIET_S
        if self._stop.is_set() or (self._hooked and not hooked and not quiet):
            return
        self._hooked = self._hooked or hooked
        self._step = self._step + hooked if step is None else step
        control = self._wishes()
        ack = read_ack(self._ring)
        level = self._decision.level(
            control,
            self._step,
            begun=self._timeline_steps if hooked else None,
            window_open=capture_window().is_open,
        )
        self._timeline_steps += level > 1 and hooked
        if control.sm_mask != self._sms:
            self._sms = control.sm_mask
            self._memory.write_sms(control.sm_words, stream)
        flags = CONTROL_SOME_SMS if self._sms != ALL_SMS and level != LEVEL_OFF else 0
        # A host that says no steps, or no more, counts in all launches.
        self._rests = level == LEVEL_COUNTERS and hooked and self._decision.rests(control)
        if self._rests:
            flags |= CONTROL_RESTS
        self._memory.write_step(self._step, level | flags, stream)
        if not hooked:
            self._memory.settle()  # or it might overtake a step's own write on another stream
        write_ack(
            self._ring,
            replace(
                ack,
                seq=control.seq,
                level=level,
                step=self._step,
                timeline_steps=self._timeline_steps,
                host_records=self._host.written,
            ),
        )

    def _wishes(self) -> Control:
        """What the recorder asks for; the last we know where it died while writing."""
        with contextlib.suppress(RingError):
            self._control = read_control(self._ring, timeout_s=_READ_S)
        return self._control

    def on_step(self, step: int) -> None:
        """What ``step_signal()`` calls where a framework's plugin says the steps.

        The write is ordered on :attr:`stream`, or on that of ``step_signal()``.
        """
        self.begin_step(self.stream or step_signal().stream, step=step)

    def span(self, event: str, begin_ns: int, end_ns: int, values: Sequence[int] = ()) -> None:
        """Write a host span (a name of ``megatrace.schema.HOST``) of the step in progress."""
        number = next(e.id for e in HOST if e.name == event)
        self._host.append(number, begin_ns, end_ns, self._step, values)

    def fact(self, name: str, value: dict[str, object]) -> None:
        """Write a fact for the capture: anything JSON can say."""
        self._host.append_fact(name, value)

    def close(self) -> None:
        """Last sums and clock sample, tracer off, ring unpinned; in a forked child nothing.

        Work that still runs on the device is waited for. Raises RingError where the driver
        refuses; the ring is closed all the same.
        """
        if os.getpid() != self._pid:
            return
        with self._lock:  # after a step that is being said, and before any other
            if self._stop.is_set():
                return
            self._stop.set()
        step_signal().unsubscribe(self.on_step)
        self._thread.join()
        try:
            self._sample_clock()
            if self._probe is not None:
                self._probe.close()
            self._memory.close()
        finally:
            self._host.close()
            _discard(self._ring)

    def __enter__(self) -> KernelAgent:
        """Return itself; closes on exit."""
        return self

    def __exit__(self, *exc: object) -> None:
        """Close."""
        self.close()

    def _wait_for_recorder(self) -> None:
        """Give it a moment to find the ring, so that the first step is recorded too."""
        give_up = time.monotonic() + _ADOPT_S
        while read_control(self._ring).seq == 0 and time.monotonic() < give_up:
            time.sleep(0.005)

    def _tend(self) -> None:
        """Sums and lines home, clock samples, and for hosts that say no steps: the wishes."""
        now = time.monotonic()
        tick_due, clock_due = now + _TICK_S, now + _CLOCK_S
        try:
            self._memory.enter_thread()
            while not self._stop.wait(COPY_S if self._memory.unpinned else _TICK_S):
                self._memory.publish_lines()
                now = time.monotonic()
                if self._memory.unpinned and now < tick_due:
                    continue
                tick_due = now + _TICK_S
                self._memory.publish_sums()
                if now >= clock_due:
                    clock_due += _CLOCK_S
                    self._sample_clock()
                self.begin_step(self._memory.stream, hooked=False)
        except RingError as error:  # the device has failed; the program will say so itself
            with contextlib.suppress(RingError):
                self.fact("agent", {"stopped": str(error)})

    def _sample_clock(self) -> None:
        if self._probe is None:
            now = time.monotonic_ns()
            self._host.append(_CLOCK_SAMPLE, now, time.monotonic_ns(), self._step, (now,))
            return
        sample = self._probe.sample()
        if sample is not None:
            self._host.append(
                _CLOCK_SAMPLE,
                sample.before_ns,
                sample.after_ns,
                self._step,
                (sample.globaltimer_ns,),
            )


def _create(
    session: Session,
    table: EventTable,
    blocks: int,
    roles: tuple[str, ...],
    kernels: tuple[str, ...],
    rank: int,
    size: RingSize,
    cuda: Cuda | None,
) -> RingFile:
    node = cuda.numa_node() if cuda else None
    spec = RingSpec(
        rank=rank,
        blocks=blocks,
        warps=len(roles),
        lines=size.lines,
        layers=size.layers,
        host_capacity=4096,
        device=int(cuda is not None),
        table_hash=table.hash,
        meta={
            "table": table.to_json(),
            "roles": list(roles),
            "kernels": list(kernels),
            "numa_node": node,
            "pid": os.getpid(),
        },
    )
    with preferred_node(node):
        return session.create_ring_of_process(f"rank{rank:04d}", spec)


def _quietly(close: Callable[[], None]) -> None:
    with contextlib.suppress(RingError):
        close()


def _discard(ring: RingFile) -> None:
    ring.mark_closed()
    ring.close()


def _not_recorded(error: Exception) -> IdleAgent:
    hint = f" ({error.hint})" if isinstance(error, RingError) and error.hint else ""
    sys.stderr.write(f"megatrace: this process's kernels are not recorded: {error}{hint}\n")
    return IdleAgent()


class IdleAgent:
    """Nobody records: every call does nothing, ``params`` switch the tracer off."""

    params = TraceParams()

    def begin_step(self, stream: int = 0, *, step: int | None = None) -> None:
        """Do nothing."""

    def span(self, event: str, begin_ns: int, end_ns: int, values: Sequence[int] = ()) -> None:
        """Do nothing."""

    def fact(self, name: str, value: dict[str, object]) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""

    def __enter__(self) -> IdleAgent:
        """Return itself."""
        return self

    def __exit__(self, *exc: object) -> None:
        """Do nothing."""
