"""``megatrace report``."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from megatrace.errors import ExitCode


@click.command("report")
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--top",
    type=click.IntRange(1),
    default=40,
    show_default=True,
    metavar="N",
    help="Rows of the long tables; the JSON has all.",
)
@click.option("--strict", is_flag=True, help="Exit with 3 where the capture is incomplete.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
def command(file: Path, top: int, strict: bool, as_json: bool) -> int:
    """Tables of FILE: launches, stalls by cause, events, prefetches, loss, clocks."""
    from megatrace.analysis import summarise, to_text
    from megatrace.capture.reader import open_capture
    from megatrace.cli.console import warn_incomplete

    with open_capture(file) as capture:
        report = summarise(capture)
        # Damage in a large file shows only once its lines are read.
        warn_incomplete(capture)
        complete = capture.complete
    sys.stdout.write(report.to_json() + "\n" if as_json else to_text(report, top=top))
    return int(ExitCode.INCOMPLETE if strict and not complete else ExitCode.OK)
