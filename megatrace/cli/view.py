"""``megatrace view``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from megatrace.cli.bandwidth import bandwidth_option
from megatrace.cli.shown import Shown, shown_options
from megatrace.errors import ExitCode, UsageError


@click.command("view")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--once", is_flag=True, help="Print the overview as one table.")
@click.option("--strict", is_flag=True, help="Exit with 3 where the capture is incomplete.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
@bandwidth_option("For the fraction of the floor, where the program said its bytes.")
@click.option("--perfetto", is_flag=True, help="Serve Perfetto's viewer with FILE, offline.")
@shown_options()
@click.option("--port", type=click.IntRange(0, 65535), metavar="P", help="Port; default any.")
@click.option("--no-browser", is_flag=True, help="Do not open a browser, print the link alone.")
def command(
    file: Path,
    once: bool,
    strict: bool,
    as_json: bool,
    bandwidth: float | None,
    perfetto: bool,
    **asked: Any,
) -> int:
    """Replay FILE in the terminal: layers, ranks, SMs, warps in time.

    ? lists the keys. Without a terminal it prints the overview, as --once does.

    With --perfetto it serves Perfetto's viewer on 127.0.0.1 with one typical step, or those
    of --step, --steps or --all, until ctrl-C. The link it prints opens once.
    """
    if perfetto and once:
        raise UsageError("--perfetto and --once exclude each other", hint="give one of them")
    if perfetto and bandwidth is not None:
        raise UsageError("Perfetto's viewer shows no floor", hint="leave out --bandwidth")
    if perfetto:
        return _exit_code(_perfetto(file, as_json, **asked), strict=strict)
    for name, value in asked.items():
        if value is not None and value is not False:
            option = "all" if name == "every" else name.replace("_", "-")
            raise UsageError(f"--{option} is for Perfetto's viewer", hint="add --perfetto")
    return _replay(file, bandwidth, once=once, strict=strict, as_json=as_json)


def _exit_code(complete: bool, *, strict: bool) -> int:
    return int(ExitCode.INCOMPLETE if strict and not complete else ExitCode.OK)


def _perfetto(
    file: Path, as_json: bool, *, port: int | None, no_browser: bool, **shown: Any
) -> bool:
    from megatrace.cli.offline import Offline, view_offline

    return view_offline(file, Offline(Shown.asked(**shown), port or 0, not no_browser, as_json))


def _replay(file: Path, bandwidth: float | None, *, once: bool, strict: bool, as_json: bool) -> int:
    from megatrace.cli.terminal import draws, run_app
    from megatrace.tui.replay import CaptureSource

    source = CaptureSource(file, bandwidth=bandwidth)
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
    return _exit_code(complete, strict=strict)
