"""What a recording says when it is over."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from megatrace.collect.launch import describe_exit
from megatrace.collect.pump import Totals
from megatrace.collect.source import Source
from megatrace.collect.talk import Talk
from megatrace.schema.processes import process_of, rank_of, rank_text
from megatrace.sizes import size_text

ATTACHED, SILENT = "attached", "silent"
_NAMED = 4
"""Further processes of a rank that are named one by one."""


@dataclass(frozen=True, slots=True)
class ProcessReport:
    """One traced process as it told of itself.

    ``state`` is the word of its last ``attach`` fact (attached, registered, failed), or
    silent where it made a ring and never said a thing.
    """

    process: str
    rank: int
    pid: int
    state: str
    attached: tuple[str, ...] = ()
    missed: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Summary:
    """The end of a recording."""

    path: Path
    """The capture; its ``.part`` file where it could not be completed."""
    complete: bool
    size_bytes: int
    elapsed_s: float
    totals: Totals
    name: str
    """The program's short name."""
    command: tuple[str, ...]
    child_pid: int
    child_status: int | None
    """As Child.status; None: it still ran when the file was finished."""
    every_n: Mapping[int, int]
    clock_error_ns: Mapping[int, float]
    processes: tuple[ProcessReport, ...]
    traced_ranks: tuple[int, ...]
    """Numbers of :mod:`megatrace.schema.processes`, as every rank here."""
    refused: Mapping[str, str]
    memfds: Mapping[str, str] = field(default_factory=dict)
    """Rings whose memory was a memfd -> why."""
    failure: str = ""
    hint: str = ""
    abandoned: bool = False

    @property
    def host_only(self) -> bool:
        """Whether there are host spans and no kernel has a ring."""
        return not self.traced_ranks and bool(self.totals.host_spans)

    @property
    def failed_alone(self) -> bool:
        """Whether the program failed before anything in it attached."""
        return bool(self.child_status) and not self.totals.processes

    def to_json(self) -> dict[str, object]:
        """The body of ``record --json``."""
        return {
            "path": str(self.path),
            "complete": self.complete,
            "size_bytes": self.size_bytes,
            "elapsed_s": round(self.elapsed_s, 3),
            **asdict(self.totals),
            "command": list(self.command),
            "child_status": self.child_status,
            "every_n": {rank_text(rank): n for rank, n in self.every_n.items()},
            "clock_error_ns": {rank_text(rank): ns for rank, ns in self.clock_error_ns.items()},
            "attach": [
                {
                    **asdict(p),
                    "rank": rank_of(p.rank),
                    "process_of_rank": process_of(p.rank),
                    "attached": list(p.attached),
                    "missed": dict(p.missed),
                }
                for p in self.processes
            ],
            "traced_ranks": sorted({rank_of(rank) for rank in self.traced_ranks}),
            "refused": dict(self.refused),
            "memfds": dict(self.memfds),
            "failure": self.failure,
            "abandoned": self.abandoned,
        }


def process_reports(sources: Iterable[Source]) -> tuple[ProcessReport, ...]:
    """What each process with a host ring said of itself, by process and rank."""
    found = []
    for source in sources:
        fact = source.facts.get("attach")
        if fact is None and source.traced:
            continue  # a kernel's ring is its own proof
        fact = fact or {}
        missed = fact.get("missed")
        found.append(
            ProcessReport(
                process=str(fact.get("process") or source.process),
                rank=source.rank,
                pid=int(source.ring.header["pid"]),
                state=str(fact.get("state", ATTACHED if fact else SILENT)),
                attached=tuple(map(str, _list(fact.get("attached")))),
                missed={str(k): str(v) for k, v in missed.items()}
                if isinstance(missed, dict)
                else {},
            )
        )
    return tuple(sorted(found, key=lambda p: (p.process, p.rank, p.pid)))


def tell(summary: Summary, talk: Talk) -> None:
    """Say ``summary``: the program's end, what attached, what was written, what next."""
    if summary.child_status:
        talk.say(f"{summary.name} {describe_exit(summary.child_status)}")
    for line in attached_lines(summary.processes):
        talk.say(line)
    for line in warnings(summary):
        talk.warn(line)
    for line in memfd_lines(summary.memfds):
        talk.say(line)
    if summary.host_only:
        talk.say(
            "note: no kernel has a ring, so there are host spans alone: is the megakernel "
            "switched on, and built with a tracer?"
        )
    if summary.failure:
        talk.error(summary.failure, summary.hint)
    talk.say(written_line(summary))
    path = shlex.quote(str(summary.path))
    if not summary.complete:
        talk.say(f"next: megatrace recover {path}")
    elif summary.totals.lines or summary.totals.host_spans:
        stem = shlex.quote(str(summary.path.with_suffix("")) + ".pftrace.gz")
        talk.say(f"next: megatrace report {path} | megatrace export {path} -o {stem}")
    elif summary.totals.ranks:
        talk.say(f"next: megatrace report {path}")
    elif summary.failed_alone:
        talk.say(f"next: read what {summary.name} said above, then record it again")
    else:
        talk.say("next: megatrace doctor")


def written_line(summary: Summary) -> str:
    """``wrote run.mtr: 8 ranks, 3,104,221 records in 120,331 lines, 0 lines lost, ...``.

    Without a kernel's ring ``wrote run.mtr: 675 host spans, ...``.
    """
    totals = summary.totals
    parts = []
    if not summary.host_only:
        ranks = f"{totals.ranks} rank{'s' * (totals.ranks != 1)}"
        if totals.traced_processes > totals.ranks:
            ranks += f" in {totals.traced_processes} processes"
        parts = [
            ranks,
            f"{totals.records:,} records in {totals.lines:,} lines",
            f"{totals.lines_lost:,} lines lost",
        ]
    if totals.host_spans:
        parts.append(f"{totals.host_spans:,} host span{'s' * (totals.host_spans != 1)}")
    if totals.host_records_lost:
        parts.append(f"{totals.host_records_lost:,} host records lost")
    if totals.lines_dropped:
        parts.append(f"{totals.lines_dropped:,} lines not written")
    if summary.abandoned:
        parts.append("drain abandoned")
    errors = [ns for ns in summary.clock_error_ns.values() if math.isfinite(ns)]
    if totals.ranks or errors:
        parts.append(f"host clock ±{max(errors) / 1000:.1f} us" if errors else "host clock unknown")
    parts.append(size_text(summary.size_bytes))
    verb = "wrote" if summary.complete else "incomplete:"
    return f"{verb} {summary.path}: {', '.join(parts)}"


def attached_lines(processes: Sequence[ProcessReport]) -> list[str]:
    """One line for the processes of one kind that attached to the same targets."""
    groups: dict[tuple[str, tuple[str, ...]], list[int]] = {}
    for report in processes:
        if report.state == ATTACHED:
            groups.setdefault((report.process, report.attached), []).append(report.rank)
    return [
        f"{_who(name, ranks)}: attached to {', '.join(targets) if targets else 'the process alone'}"
        for (name, targets), ranks in groups.items()
    ]


def memfd_lines(memfds: Mapping[str, str]) -> list[str]:
    """``note: 8 rings were in a memfd: /dev/shm has 3.2 MiB free, ...``."""
    if not memfds:
        return []
    many = f"{len(memfds)} ring{'s were' if len(memfds) > 1 else ' was'}"
    more = " ..." if len(set(memfds.values())) > 1 else ""
    return [f"note: {many} in a memfd, not a file: {next(iter(memfds.values()))}{more}"]


def warnings(summary: Summary) -> list[str]:
    """What is missing from the recording, each with the next step where there is one."""
    lines = [f"{name} was not recorded: {why}" for name, why in summary.refused.items()]
    missed: dict[tuple[str, str, str], list[int]] = {}
    states: dict[tuple[str, str], list[int]] = {}
    for report in summary.processes:
        for target, why in report.missed.items():
            missed.setdefault((report.process, target, why), []).append(report.rank)
        if report.state != ATTACHED:
            states.setdefault((report.process, report.state), []).append(report.rank)
    for (name, target, why), ranks in missed.items():
        lines.append(f"{_who(name, ranks)}: not attached to {target}: {why}")
    for (name, state), ranks in states.items():
        lines.append(f"{_who(name, ranks)}: {_STATES.get(state, f'says {state}')}")
    if summary.failed_alone:
        lines.append(f"no process had attached when {summary.name} ended: nothing was recorded")
    elif not summary.totals.processes:
        lines.append(
            "no process attached, so nothing was recorded: is megatrace installed in the "
            "program's own Python, and does its kernel have a tracer? megatrace doctor checks"
        )
    elif not summary.traced_ranks and not summary.host_only:
        lines.append(
            "no kernel has a ring, and no host span came, so nothing was recorded: is the "
            "megakernel switched on, and built with a tracer?"
        )
    if summary.child_status is None:
        lines.append(f"{summary.name} (pid {summary.child_pid}) still runs")
    return lines


_STATES = {
    SILENT: "made a ring and never attached; its log says why",
    "registered": "registered its hooks and never came up",
    "failed": "failed to attach; its log says why",
}


def _who(process: str, ranks: Sequence[int]) -> str:
    if process in ("main", "detokenizer"):
        return process
    numbers = sorted(set(ranks))
    if len(numbers) == 1:
        return f"{process} of rank {rank_text(numbers[0])}"
    alone = sorted({rank_of(number) for number in numbers})
    if len(numbers) - len(alone) > _NAMED:
        noun = "rank" if len(alone) == 1 else "ranks"
        return f"{process} of {noun} {_ranges(alone)} in {len(numbers)} processes"
    return f"{process} of ranks {_ranges(numbers)}"


def _ranges(numbers: Sequence[int]) -> str:
    """``0-3,5``; ``0#2-3#2`` of their second processes."""
    parts: list[str] = []
    first = last = numbers[0]
    for number in [*numbers[1:], None]:
        if number == last + 1 and process_of(number) == process_of(last):
            last = number
            continue
        one = first == last
        parts.append(rank_text(first) + ("" if one else f"-{rank_text(last)}"))
        if number is not None:
            first = last = number
    return ",".join(parts)


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
