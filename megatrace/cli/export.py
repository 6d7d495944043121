"""``megatrace export``."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

import click

from megatrace.cli.progress import Progress
from megatrace.cli.shown import Shown, command_of, decode_asked, shown_options, write_trace
from megatrace.collect.talk import Talk
from megatrace.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from megatrace.analysis import Trace
    from megatrace.capture.reader import Capture
    from megatrace.export import ExportResult, TableName
    from megatrace.export.tabular import TableResult

_VIEWER = "https://ui.perfetto.dev"


@dataclass(frozen=True, slots=True)
class _Job:
    output: Path
    shown: Shown
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
@shown_options("Slices at most, default 2,000,000; of tables rows, default all.")
@click.option(
    "--table",
    type=click.Choice(["records", "launches", "host"]),
    help="Which table, for CSV and Parquet; default records.",
)
@click.option("--force", is_flag=True, help="Overwrite OUT.")
@click.option("--strict", is_flag=True, help="Exit with 3 where the capture is incomplete.")
@click.option("--json", "as_json", is_flag=True, help="What was written, as one JSON document.")
def command(
    file: Path,
    output: Path,
    step: int | None,
    steps: str | None,
    every: bool,
    budget: int | None,
    no_flows: bool,
    rank: str | None,
    table: TableName | None,
    force: bool,
    strict: bool,
    as_json: bool,
) -> int:
    """Write FILE for a viewer or as tables; the suffix of OUT says which.

    Without --step, --steps or --all it is one typical step, and of --table host every step.
    What is left out is said, and stands in the trace.
    """
    from megatrace.capture.reader import open_capture
    from megatrace.cli.console import print_json, warn_incomplete

    shown = Shown.asked(step, steps, every, budget, no_flows, rank)
    job = _Job(output, shown, table, force)
    _check(job)
    with open_capture(file) as capture:
        written = _export(job, capture)
        warn_incomplete(capture)
        complete = capture.complete
    if as_json:
        print_json("export", {**written.body, "complete": complete})
    return int(ExitCode.INCOMPLETE if strict and not complete else ExitCode.OK)


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


@dataclass(frozen=True, slots=True)
class _Written:
    """What was written: a sentence for people, the same as a JSON body."""

    sentence: str
    body: dict[str, object]

    @classmethod
    def of(
        cls, sentence: str, kind: str, result: ExportResult | TableResult, **more: object
    ) -> Self:
        """``more`` goes before what ``result`` says."""
        body = {"format": kind, **asdict(result), **more}
        return cls(sentence, {"path": str(body.pop("path")), **body})


def _export(job: _Job, capture: Capture) -> _Written:
    talk = Talk()
    progress = Progress(talk)
    progress.begin("decoding")
    try:
        trace, left_out = decode_asked(job.shown, capture, table=job.table, perfetto=job.perfetto)
        progress.begin("writing")
        write = _write_perfetto if job.perfetto else _write_table
        written = write(job, trace, left_out, capture, progress)
    finally:
        progress.end()
    talk.say(f"wrote {job.output}: {written.sentence}")
    if job.perfetto:
        talk.say(f"next: open it at {_VIEWER}")
    return written


def _write_perfetto(
    job: _Job, trace: Trace, left_out: tuple[str, ...], capture: Capture, progress: Progress
) -> _Written:
    result = write_trace(job.shown, trace, left_out, capture, job.output, progress, force=job.force)
    return _Written.of(result.sentence(), "perfetto", result)


def _write_table(
    job: _Job, trace: Trace, left_out: tuple[str, ...], capture: Capture, progress: Progress
) -> _Written:
    from megatrace.cli.asked import sms_of
    from megatrace.export import export_table

    result = export_table(
        trace,
        job.output,
        job.table or "records",
        budget=job.shown.budget,
        force=job.force,
        command=command_of(capture),
        progress=progress,
    )
    left_out += result.left_out
    parts = [f"{result.rows:,} rows of {result.table}", result.loss]
    parts += [sms] if (sms := sms_of(capture)) else []
    if not result.rows and len(trace.host):
        parts.append(f"no kernel was traced: --table host has {len(trace.host):,} rows")
    if left_out:
        parts.append("left out: " + ", ".join(left_out))
    kind = job.output.suffix.removeprefix(".")
    return _Written.of("; ".join(parts), kind, result, left_out=left_out)
