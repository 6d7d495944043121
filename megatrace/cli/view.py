"""``megatrace view``."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from megatrace.errors import ExitCode


@click.command("view")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--once", is_flag=True, help="Print the overview as one table.")
@click.option("--strict", is_flag=True, help="Exit with 3 where the capture is incomplete.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
def command(file: Path, once: bool, strict: bool, as_json: bool) -> int:
    """Replay FILE in the terminal: layers, ranks, SMs, warps in time.

    ? lists the keys. Without a terminal it prints the overview, as --once does.
    """
    from megatrace.cli.terminal import draws, run_app
    from megatrace.tui.replay import CaptureSource

    source = CaptureSource(file)
    if draws(once or as_json):
        code = run_app(source)
        if source.error is not None:
            raise source.error
        return code
    from megatrace.cli.console import print_json, warn_incomplete
    from megatrace.tui.text import to_dict, to_text

    source.load()
    status, frame = source.poll()
    if as_json:
        print_json("view", to_dict(status, frame))
    else:
        sys.stdout.write(to_text(status, frame))
    assert source.capture is not None
    warn_incomplete(source.capture)
    complete = source.capture.complete
    source.close()
    return int(ExitCode.INCOMPLETE if strict and not complete else ExitCode.OK)
