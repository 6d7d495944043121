"""``megatrace export``."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from megatrace.cli.progress import Progress
from megatrace.collect.talk import Talk
from megatrace.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from megatrace.analysis import Trace
    from megatrace.capture.reader import Capture
    from megatrace.export import TableName

_PROBED_RINGS = 8
"""Warp rings of a rank that are looked at to choose a step of a large capture."""
_SMALL_LINES = 1 << 18
"""Of fewer lines all is decoded, and the step chosen from all of it as it is drawn."""
_MAX_STEPS = 1_000_000
_VIEWER = "https://ui.perfetto.dev"


@dataclass(frozen=True, slots=True)
class _Job:
    output: Path
    steps: range | None
    every: bool
    budget: int | None
    flows: bool
    table: TableName | None
    force: bool

    @property
    def perfetto(self) -> bool:
        """Whether it is a trace for Perfetto, not a table."""
        from megatrace.export.perfetto import SUFFIXES

        return self.output.name.endswith(SUFFIXES)


@click.command("export")
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    required=True,
    metavar="OUT",
    help="*.pftrace or *.pftrace.gz for Perfetto, *.csv or *.parquet for tables.",
)
@click.option("--step", type=click.IntRange(0), metavar="N", help="This step alone.")
@click.option("--steps", metavar="A:B", help="Steps A to B-1; A:+K is K steps.")
@click.option("--all", "every", is_flag=True, help="Every step with a timeline.")
@click.option(
    "--budget",
    type=click.IntRange(1),
    metavar="N",
    help="Slices at most, default 2,000,000; of tables rows, default all. Beyond it whole "
    "launches are left out; at least one launch is kept.",
)
@click.option("--no-flows", is_flag=True, help="No arrows from a signal to its waiter.")
@click.option(
    "--table",
    type=click.Choice(["records", "launches", "host"]),
    help="Which table, for CSV and Parquet; default records.",
)
@click.option("--force", is_flag=True, help="Overwrite OUT.")
@click.option("--strict", is_flag=True, help="Exit with 3 where the capture is incomplete.")
def command(
    file: Path,
    output: Path,
    step: int | None,
    steps: str | None,
    every: bool,
    budget: int | None,
    no_flows: bool,
    table: TableName | None,
    force: bool,
    strict: bool,
) -> int:
    """Write FILE for a viewer or as tables; the suffix of OUT says which.

    Without --step, --steps or --all it is one typical step, and of --table host every step.
    What is left out is said, and stands in the trace.
    """
    from megatrace.capture.reader import open_capture
    from megatrace.cli.console import warn_incomplete

    if (step is not None) + (steps is not None) + every > 1:
        raise UsageError("--step, --steps and --all exclude each other", hint="give one of them")
    job = _Job(output, _range(step, steps), every, budget, not no_flows, table, force)
    _check(job)
    with open_capture(file) as capture:
        _export(job, capture)
        warn_incomplete(capture)
        complete = capture.complete
    return int(ExitCode.INCOMPLETE if strict and not complete else ExitCode.OK)


def _range(step: int | None, steps: str | None) -> range | None:
    from megatrace.collect.options import parse_steps

    if step is not None:
        return range(step, step + 1)
    found = range(*parse_steps(steps)) if steps is not None else None
    if found is not None and len(found) > _MAX_STEPS:
        raise UsageError(f"--steps {steps}: more than {_MAX_STEPS:,} steps", hint="use --all")
    return found


def _check(job: _Job) -> None:
    """Refuse a bad name before any work is done."""
    from megatrace.export.output import check_output
    from megatrace.export.perfetto import SUFFIXES as PERFETTO
    from megatrace.export.tabular import SUFFIXES as TABLES

    if not job.output.name.endswith((*PERFETTO, *TABLES)):
        raise UsageError(
            f"{job.output.name}: no format has that suffix",
            hint=f"use {', '.join((*PERFETTO, *TABLES))}",
        )
    if job.perfetto and job.table is not None:
        raise UsageError(
            f"--table {job.table}: {job.output.name} is a trace for Perfetto, no table",
            hint="leave out --table, or name OUT *.csv or *.parquet",
        )
    check_output(job.output, force=job.force)


def _export(job: _Job, capture: Capture) -> None:
    talk = Talk()
    progress = Progress(talk)
    progress.begin("decoding")
    try:
        trace, left_out = _decode(job, capture)
        progress.begin("writing")
        write = _write_perfetto if job.perfetto else _write_table
        said = write(job, trace, left_out, capture, progress)
    finally:
        progress.end()
    talk.say(f"wrote {job.output}: {said}")
    if job.perfetto:
        talk.say(f"next: open it at {_VIEWER}")


def _write_perfetto(
    job: _Job, trace: Trace, left_out: tuple[str, ...], capture: Capture, progress: Progress
) -> str:
    from megatrace.cli.asked import sms_of
    from megatrace.export import PerfettoOptions, export_perfetto

    shown: Literal["one", "all"] = "all" if job.every or left_out else "one"
    options = PerfettoOptions(steps=shown, flows=job.flows)
    if job.budget is not None:
        options = replace(options, budget=job.budget)
    result = export_perfetto(
        trace,
        job.output,
        options,
        force=job.force,
        command=_command_of(capture),
        left_out=left_out,
        recorded=sms_of(capture),
        progress=progress,
    )
    return result.sentence()


def _write_table(
    job: _Job, trace: Trace, left_out: tuple[str, ...], capture: Capture, progress: Progress
) -> str:
    from megatrace.export import export_table

    result = export_table(
        trace,
        job.output,
        job.table or "records",
        budget=job.budget,
        force=job.force,
        command=_command_of(capture),
        progress=progress,
    )
    left_out += result.left_out
    parts = [f"{result.rows:,} rows of {result.table}", result.loss]
    if not result.rows and len(trace.host):
        parts.append(f"no kernel was traced: --table host has {len(trace.host):,} rows")
    if left_out:
        parts.append("left out: " + ", ".join(left_out))
    return "; ".join(parts)


def _decode(job: _Job, capture: Capture) -> tuple[Trace, tuple[str, ...]]:
    """The trace to show and, in phrases, what of the capture is not in it."""
    from megatrace.analysis import decode
    from megatrace.export.capture import steps_recorded
    from megatrace.export.select import ranges_text

    steps = job.steps
    small = len(capture.line_index()) <= _SMALL_LINES and job.perfetto
    if steps is None and not job.every and not small and job.table != "host":
        steps = _typical_step(capture)
    if steps is None:
        return decode(capture), ()
    trace = decode(capture, steps=steps)
    # Of a GPU's trace the host is drawn while the GPU's steps last, whatever step it says.
    of_host = job.table == "host" or not len(capture.line_index())
    if of_host:
        there = trace.host["step"]
        trace = replace(trace, host=trace.host[there.isin(steps)])
    if not len(trace.host if of_host else trace.launches):
        have = there[there > 0].tolist() if of_host else steps_recorded(capture)
        raise UsageError(
            f"{capture.path} has {'no host event' if of_host else 'no timeline'} of "
            f"{_steps_text(steps)}",
            hint=f"it has steps {ranges_text(have)}" if have else "it has none of any step",
        )
    return trace, (f"all but {_steps_text(steps)}",)


def _typical_step(capture: Capture) -> range | None:
    """The step of median duration, from a few warp rings of each rank; None without any."""
    from megatrace.analysis import decode
    from megatrace.export.select import select

    rings = max((facts.rings for facts in capture.rings.values()), default=1)
    probed = {ring * rings // _PROBED_RINGS for ring in range(_PROBED_RINGS)}
    probe = decode(capture, rings=probed)
    steps = select(probe.launches, probe.records, "one", 1 << 62).steps
    return range(steps[0], steps[0] + 1) if steps else None


def _steps_text(steps: range) -> str:
    return f"step {steps[0]}" if len(steps) == 1 else f"steps {steps[0]} to {steps[-1]}"


def _command_of(capture: Capture) -> str:
    opening = next(iter(capture.facts("capture")), None)
    words = opening.fields.get("command") if opening else None
    return " ".join(map(str, words)) if isinstance(words, list) else ""
