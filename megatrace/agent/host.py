"""What the traced process itself says: spans of its steps, facts, the capture window.

A process writes one ring file without lines, host records only. Nothing here needs a
GPU, and nothing waits for the recorder.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from megatrace.agent.steps import capture_window
from megatrace.agent.tell import session_or_none
from megatrace.ring.control import Control, read_ack, read_control, write_ack
from megatrace.ring.file import RingFile, RingSpec
from megatrace.ring.host import HostRecord as HostRecord
from megatrace.ring.host import HostWriter
from megatrace.schema import HOST

HOST_EVENT_IDS: dict[str, int] = {event.name: event.id for event in HOST}

RECORDS = 1 << 15
"""Host records a ring holds: 4 MiB, about 15 s of a busy decode server."""


class HostAgent:
    """The host half of the agent: one per process and role; closed, it does nothing.

    Times are nanoseconds of CLOCK_MONOTONIC (``time.monotonic_ns()``). Spans are kept whatever
    level the recorder asks for: they cost a busy server some tens of microseconds a step.
    """

    def __init__(self, ring: RingFile) -> None:
        self._ring = ring
        self._writer = HostWriter(ring)
        self.spans: Callable[[Iterable[HostRecord]], None] = self._writer.append_all
        """Write several records side by side: each is what :meth:`span` takes, in its order."""
        self._pid = os.getpid()
        self._window_begin_ns = 0
        self._window_step = 0
        self._closed = False

    @classmethod
    def from_env(
        cls,
        process: str = "process",
        *,
        rank: int = 0,
        meta: Mapping[str, object] | None = None,
        records: int = RECORDS,
        environ: Mapping[str, str] = os.environ,
    ) -> HostAgent | None:
        """The agent of the session in ``MEGATRACE_SESSION``; None where that is not set or gone.

        ``process`` names the ring file, ``<process>-<pid>.host.ring``, and stands in the
        ring's meta beside ``meta``. ``records`` is how many host records the ring holds,
        128 bytes each, a power of two. Raises SessionError where the session is open to
        others, RingError where the ring cannot be made.
        """
        session = session_or_none(environ)
        if session is None:
            return None
        spec = RingSpec(
            rank=rank,
            blocks=0,
            warps=0,
            lines=0,
            layers=0,
            host_capacity=records,
            device=0,
            table_hash=0,
            meta={"process": process, "pid": os.getpid(), **(meta or {})},
        )
        return cls(session.create_ring_of_process(process, spec, kind=".host"))

    @property
    def path(self) -> Path:
        """The ring file."""
        return self._ring.path

    def span(
        self,
        event_id: int,
        begin_ns: int,
        end_ns: int,
        step: int = 0,
        values: Sequence[int] = (),
        text: bytes = b"",
    ) -> None:
        """Write one host record: an id of ``megatrace.schema.HOST``, at most 4 values, 56 bytes."""
        self._writer.append(event_id, begin_ns, end_ns, step, values, text)

    def fact(self, name: str, value: dict[str, object]) -> None:
        """Write a fact: anything JSON can say, once or rarely."""
        self._writer.append_fact(name, value)

    def control(self) -> Control:
        """What the recorder asks for now: level, cadence, window."""
        return read_control(self._ring)

    @property
    def window_open(self) -> bool:
        """Whether a capture window is open."""
        return self._window_begin_ns != 0

    def set_window(self, is_open: bool, step: int = 0) -> None:
        """Open or close the capture window; a second call of the same kind does nothing.

        The recorder sees it in the ring's ack at once; on close a ``window`` span says
        from when to when, and its step is that of the opening.
        """
        if self._closed or is_open == self.window_open:
            return
        capture_window().is_open = is_open
        now = time.monotonic_ns()
        if is_open:
            self._window_begin_ns, self._window_step = now, step
        else:
            self.span(HOST_EVENT_IDS["window"], self._window_begin_ns, now, self._window_step)
            self._window_begin_ns = 0
        self._write_ack(step)

    def close(self) -> None:
        """Close the window and the ring; in a forked child it leaves the parent's ring alone."""
        if self._closed or os.getpid() != self._pid:
            return
        self.set_window(False)
        self._closed = True
        self._writer.close()
        self._ring.mark_closed()
        self._ring.close()

    def _write_ack(self, step: int) -> None:
        now = read_ack(self._ring)
        write_ack(self._ring, replace(now, step=step, window_open=int(self.window_open)))
