"""``record``: start a program, move what it traces into a capture, end in order."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from megatrace.capture.layout import SUFFIX
from megatrace.collect.environment import GpuQuery, gather
from megatrace.collect.launch import Child, Program, redacted, resolve
from megatrace.collect.options import RecordOptions, default_name
from megatrace.collect.publish import Publisher
from megatrace.collect.pump import MAX_LINES, Pump, any_alive
from megatrace.collect.sampling import CounterPace
from megatrace.collect.signals import Signals, Taken
from megatrace.collect.sink import Sink
from megatrace.collect.status import Status, StatusLine
from megatrace.collect.steering import Steering
from megatrace.collect.summary import Summary, process_reports
from megatrace.collect.talk import Talk
from megatrace.collect.viewers import Viewers
from megatrace.errors import RecordError, UsageError
from megatrace.ring.handover import Receiver
from megatrace.ring.session import Session
from megatrace.schema.processes import rank_text

DRAIN_S = 5.0
"""From the signal, or the child's end, to a finished file."""

_SCAN_EVERY_S = 0.05
_PUBLISH_EVERY_S = 0.25
_KEEP_EVERY_S = 1.0
_LAST_PASS_S = 1.0
_SLEEP_MIN_S, _SLEEP_MAX_S = 0.001, 0.02


def record(options: RecordOptions, talk: Talk, signals: Signals) -> Summary:
    """Run ``options.command`` under a recorder and return how it went.

    ``signals`` are held by the caller. The summary comes when the child has ended, with
    its status. Raises RecordError (also ProgramNotFound, ProgramNotExecutable) or
    SessionError where nothing could be started, UsageError for an output that is no
    ``*.mtr``; then there is no child and no file.
    """
    if sys.platform != "linux":
        raise RecordError(
            f"record needs Linux, this is {sys.platform}",
            hint="captures can be read here: megatrace report FILE",
        )
    program = resolve(options.command)
    path = _output(options, program)
    sink = Sink(path, force=options.force)
    try:
        session = Session.create(command=redacted(program.argv))
    except BaseException:
        sink.abandon()
        raise
    recording = Recording(options, talk, session, sink, signals)
    try:
        return recording.run(program)
    finally:
        recording.close()


class Recording:
    """One child and the session it writes to, from start to a finished file."""

    def __init__(
        self, options: RecordOptions, talk: Talk, session: Session, sink: Sink, signals: Signals
    ) -> None:
        """Nothing is started yet."""
        self._options = options
        self._talk = talk
        self._session = session
        self._sink = sink
        self._signals = signals
        self._steering = Steering(options)
        self._pump = Pump(session.path, sink, self._steering, Receiver(session.path))
        self._viewers = Viewers(session.path, sink.path, self._pump, self._steering)
        self._publisher = Publisher(session.path)
        self._counter_pace = CounterPace()
        self._gpus = GpuQuery()
        self._status = StatusLine(talk)
        self._begin_s = time.monotonic()
        self._due_s = dict.fromkeys(("scan", "publish", "keep"), 0.0)
        self._sleep_s = _SLEEP_MIN_S
        self._stops = 0
        self._deadline_s = float("inf")
        self._told: set[str] = set()
        self._undrained = False

    def run(self, program: Program) -> Summary:
        """Start the child, follow it to its end, finish the file."""
        self._write_opening(program)
        try:
            child = Child.start(program, {**os.environ, **self._session.environment})
        except BaseException:
            self._sink.abandon()
            raise
        self._undrained = True
        what = " ".join(program.argv[:3]) + " ..." * (len(program.argv) > 3)
        self._talk.say(
            f"recording {what if program.as_module else program.name} (pid {child.pid}) "
            f"-> {self._sink.path} (Ctrl-C stops)"
        )
        try:
            self._follow(child)
            self._drain_rest(child)
            summary = self._finish(child)
        except Exception as error:
            if child.poll() is None:  # said later, it would be said after hours of silence
                self._talk.error(
                    f"the recording broke off, and the program goes on: "
                    f"{type(error).__name__}: {error}",
                    f"megatrace recover {self._sink.part}",
                )
            raise
        finally:
            self._status.end()
            self._wait_for(child)
        self._undrained = False
        return replace(summary, child_status=child.status)

    def close(self) -> None:
        """Give everything back. The rings go too, unless an error left them undrained."""
        self._gpus.close()
        self._publisher.close()
        self._pump.close()
        self._session.close(remove=not self._undrained)

    def _write_opening(self, program: Program) -> None:
        options = self._options
        opening: dict[str, Any] = {
            "environment": gather(),
            "command": redacted(program.argv),
            "started_ns": time.time_ns(),
            "started_mono_ns": time.monotonic_ns(),
            "session": str(self._session.path),
            "recorder_pid": os.getpid(),
            "options": {
                "every_n": options.every_n or "auto",
                "counters_every": options.counters_every,
                "level": options.level,
                "steps": list(options.window),
                "burst": options.burst,
                "sms": sorted(options.sms) if options.sms is not None else "all",
            },
        }
        self._viewers.opening = opening
        self._sink.meta("capture", **opening)

    def _follow(self, child: Child) -> None:
        """Drain while the child runs, at most DRAIN_S longer than a signal."""
        while child.poll() is None and self._stops < 2 and time.monotonic() < self._deadline_s:
            self._turn()
            taken = self._signals.wait(self._sleep_s)
            if taken is not None:
                self._take(taken, child)

    def _drain_rest(self, child: Child) -> None:
        """Drain what processes that outlive the child still write."""
        if self._deadline_s == float("inf"):
            self._deadline_s = time.monotonic() + DRAIN_S
        while self._stops < 2 and time.monotonic() < self._deadline_s:
            moved = self._turn()
            if not moved and child.status is not None and not any_alive(self._pump.sources):
                break
            taken = self._signals.wait(self._sleep_s)
            if taken is not None:
                self._take(taken, child)

    def _turn(self) -> int:
        """One pass over everything that is due; how many lines and host records came."""
        now = time.monotonic()
        if self._is_due("scan", now, _SCAN_EVERY_S):
            self._pump.scan()
            for change in self._viewers.turn():
                self._talk.say(f"a viewer asked for {change}")
            self._steering.steer(self._pump.sources, now)
            self._tell_news()
        lines_before = self._pump.lines_read
        moved = self._pump.drain()
        lines = self._pump.lines_read - lines_before
        if self._is_due("publish", now, _PUBLISH_EVERY_S):
            self._pump.retire()
            self._publish()
            self._sink.flush()
        if self._is_due("keep", now, _KEEP_EVERY_S):
            self._keep()
        if self._status.due(now - self._begin_s):
            self._status.show(self._state(now))
        # Lines come in bursts that fill a ring; host records trickle, and can wait.
        if lines >= MAX_LINES // 4:
            self._sleep_s = 0.0
        elif lines:
            self._sleep_s = _SLEEP_MIN_S
        else:
            self._sleep_s = min(_SLEEP_MAX_S, max(_SLEEP_MIN_S, 2 * self._sleep_s))
        return moved

    def _tell_news(self) -> None:
        """Say at once what is not recorded: the end of a long run is too late."""
        for name, why in self._pump.refused.items():
            if name not in self._told:
                self._told.add(name)
                self._talk.warn(f"{name} is not recorded: {why}")
        failure = self._sink.failure
        if failure is not None and "failure" not in self._told:
            self._told.add("failure")
            self._steering.stop(self._pump.sources)
            self._talk.error(f"{failure}; the program goes on", failure.hint)

    def _is_due(self, what: str, now_s: float, every_s: float) -> bool:
        if now_s < self._due_s[what]:
            return False
        self._due_s[what] = now_s + every_s
        return True

    def _publish(self) -> None:
        if not self._pump.sources:
            return
        self._publisher.publish(
            self._pump.sources,
            self._sink.size_bytes,
            self._pump.clocks.errors_ns(),
            self._steering.every_n,
            self._viewers.note(),
        )
        if self._publisher.failure and "page" not in self._told:
            self._told.add("page")
            self._talk.warn(f"megatrace live has no tables to show: {self._publisher.failure}")

    def _keep(self) -> None:
        """Once a second: counters where they are due, and facts that come late."""
        if self._counter_pace.due(time.monotonic()):
            self._write_counters()
        gpus = self._gpus.poll()
        if gpus is not None:
            self._sink.fact(0, "gpus", "recorder", {"gpus": gpus})

    def _write_counters(self) -> None:
        before = self._sink.size_bytes
        self._pump.counters()
        self._counter_pace.wrote(self._sink.size_bytes - before, time.monotonic())

    def _take(self, taken: Taken, child: Child) -> None:
        if not taken.stops:
            self._write_counters()
            self._sink.flush()
            self._talk.say(f"checkpoint: {self._sink.part} holds everything so far")
            return
        self._stops += 1
        passed = not taken.by_terminal and child.send(taken.number)
        where = f"passed on to pid {child.pid}, " if passed else ""
        if self._stops == 1:
            self._deadline_s = time.monotonic() + DRAIN_S
            self._talk.say(f"{taken.name}: {where}finishing within {DRAIN_S:.0f} s")
        elif self._stops == 2:
            self._talk.say(f"{taken.name}: {where}the drain is abandoned")

    def _finish(self, child: Child) -> Summary:
        abandoned = self._stops >= 2
        self._steering.stop(self._pump.sources)
        now = time.monotonic()
        self._pump.finish(until_s=now if abandoned else max(now + _LAST_PASS_S, self._deadline_s))
        self._viewers.finish()
        self._publish()
        complete = self._write_end(child, now, abandoned)
        if complete and child.poll() is None:
            self._talk.say(f"{self._sink.path} is written")
        failure = self._sink.failure
        return Summary(
            path=self._sink.path if complete else self._sink.part,
            complete=complete,
            size_bytes=self._sink.size_bytes,
            elapsed_s=now - self._begin_s,
            totals=self._pump.totals,
            name=child.program.name,
            command=tuple(redacted(child.program.argv)),
            child_pid=child.pid,
            child_status=child.status,
            every_n=self._steering.every_n,
            clock_error_ns=self._pump.clocks.errors_ns(),
            processes=process_reports(self._pump.sources),
            traced_ranks=tuple(sorted({s.rank for s in self._pump.sources if s.traced})),
            refused=dict(self._pump.refused),
            memfds={s.name: s.why_memfd for s in self._pump.sources if s.why_memfd},
            failure=str(failure) if failure else "",
            hint=failure.hint if failure else "",
            abandoned=abandoned,
        )

    def _write_end(self, child: Child, now_s: float, abandoned: bool) -> bool:
        """Complete the file; False where it stays a ``.part``."""
        self._sink.meta("child", command=redacted(child.program.argv), status=child.status)
        totals = self._pump.totals
        return self._sink.finish(
            elapsed_s=round(now_s - self._begin_s, 3),
            ranks=totals.ranks,
            traced_processes=totals.traced_processes,
            records=totals.records,
            lines_lost=totals.lines_lost,
            host_spans=totals.host_spans,
            host_records_lost=totals.host_records_lost,
            every_n={rank_text(rank): n for rank, n in self._steering.every_n.items()},
            abandoned=abandoned,
        )

    def _wait_for(self, child: Child) -> None:
        """Wait for the child's status; signals go on to it."""
        if child.poll() is None:
            self._talk.say(f"waiting for {child.program.name} (pid {child.pid})")
        while child.poll() is None:
            taken = self._signals.wait(_KEEP_EVERY_S)
            if taken is not None and taken.stops and not taken.by_terminal:
                child.send(taken.number)

    def _state(self, now_s: float) -> Status:
        totals = self._pump.totals
        return Status(
            elapsed_s=now_s - self._begin_s,
            ranks_live=totals.ranks_live,
            ranks=totals.ranks,
            records=totals.records,
            lines_lost=totals.lines_lost,
            size_bytes=self._sink.size_bytes,
            every_n=max(self._steering.every_n.values(), default=1),
        )


def _output(options: RecordOptions, program: Program) -> Path:
    name = default_name(program.name, os.getpid())
    path = options.output
    if path is None:
        return Path(name)
    if path.is_dir():
        return path / name
    if path.suffix != SUFFIX:
        capture = path.with_name(f"{path.name.partition('.')[0] or 'run'}{SUFFIX}")
        raise UsageError(
            f"-o {path}: a recording is a *{SUFFIX} file",
            hint=f"-o {capture}, and then: megatrace export {capture} -o {_viewed(path)}",
        )
    return path


def _viewed(path: Path) -> Path:
    """A name that ``export`` takes: ``path`` itself where it looks like one."""
    takes = (".pftrace", ".pftrace.gz", ".csv", ".csv.gz", ".parquet")
    return path if path.name.endswith(takes) else path.with_suffix(".pftrace.gz")
