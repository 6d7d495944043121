"""``megatrace report``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from megatrace.cli.asked import layers_asked
from megatrace.cli.bandwidth import bandwidth_option, given
from megatrace.cli.progress import Progress
from megatrace.cli.shown import command_of
from megatrace.collect.talk import Talk
from megatrace.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from megatrace.capture.reader import Capture


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
@click.option(
    "--html",
    type=click.Path(path_type=Path),
    metavar="OUT",
    help="Write one page of plots instead, for a browser without a network.",
)
@click.option("--force", is_flag=True, help="Overwrite OUT.")
@click.option("--layer", "layers", metavar="LIST", help="Launches of these layers alone: 0-3,7.")
@bandwidth_option("For the fraction of the floor, where the program said its bytes.")
@click.option("--strict", is_flag=True, help="Exit with 3 where the capture is incomplete.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
def command(
    file: Path,
    top: int,
    html: Path | None,
    force: bool,
    layers: str | None,
    bandwidth: float | None,
    strict: bool,
    as_json: bool,
) -> int:
    """Tables of FILE: launches, stalls by cause, events, prefetches, loss, clocks.

    The fraction of the floor is the time of the bytes that a launch must read, as the
    program said them, against the time it took.

    With --layer every table of launches is of those of these layers, and shares are of the
    time in them; loss, clocks and host steps stay those of the whole capture.

    With --html the same as plots, and who waited for whom: stalls by layer, launch times,
    prefetches, waits block by block, SMs, steps.
    """
    from megatrace.capture.reader import open_capture
    from megatrace.cli.console import warn_incomplete

    if html is not None and as_json:
        raise UsageError("--html and --json exclude each other", hint="give one of them")
    if html is not None:
        _check(html, force)
    chosen = layers_asked(layers)
    with open_capture(file) as capture:
        if html is None:
            said = _tables(capture, top, bandwidth, chosen, as_json)
        else:
            said = _page(capture, html, bandwidth, chosen, force)
        # Damage in a large file shows only once its lines are read.
        warn_incomplete(capture)
        complete = capture.complete
    sys.stdout.write(said)
    return int(ExitCode.INCOMPLETE if strict and not complete else ExitCode.OK)


def _tables(
    capture: Capture,
    top: int,
    bandwidth: float | None,
    layers: frozenset[int] | None,
    as_json: bool,
) -> str:
    from megatrace.analysis import to_text
    from megatrace.analysis.floors import reported

    report = reported(capture, given(bandwidth), layers=layers)
    return report.to_json() + "\n" if as_json else to_text(report, top=top)


def _check(output: Path, force: bool) -> None:
    """Refuse a bad name before any work is done."""
    from megatrace.export.output import check_output

    if not output.name.endswith((".html", ".htm")):
        raise UsageError(f"{output.name}: no name of a page", hint="name it *.html")
    check_output(output, force=force)


def _page(
    capture: Capture,
    output: Path,
    bandwidth: float | None,
    layers: frozenset[int] | None,
    force: bool,
) -> str:
    """Write the page; nothing goes to stdout."""
    from megatrace.export.html import export_html

    talk = Talk()
    progress = Progress(talk)
    progress.begin("reading")
    try:
        result = export_html(
            capture, output, force=force, command=command_of(capture), progress=progress,
            bandwidth=given(bandwidth), layers=layers,
        )  # fmt: skip
    finally:
        progress.end()
    talk.say(f"wrote {output}: {result.sentence()}")
    return ""
