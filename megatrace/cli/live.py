"""``megatrace live``."""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING

import click

from megatrace.documents import document
from megatrace.errors import UsageError

if TYPE_CHECKING:
    from megatrace.tui.live import LiveSource

_FIRST_S = 2.0
"""How long plain output waits for the first reading of a session that has just begun."""


@click.command("live")
@click.argument("session", required=False, default="")
@click.option("--once", is_flag=True, help="Print the overview as one table.")
@click.option("--json", "as_json", is_flag=True, help="The same as one JSON document on stdout.")
@click.option("--jsonl", is_flag=True, help="One JSON object a line, until the recording ends.")
@click.option(
    "--interval",
    type=click.FloatRange(0.25),
    default=1.0,
    show_default=True,
    metavar="S",
    help="Seconds between two lines of --jsonl, and the time each is of.",
)
def command(session: str, once: bool, as_json: bool, jsonl: bool, interval: float) -> int:
    """Watch a recording: layers, ranks, SMs; change its level, window and SMs.

    SESSION is a name that megatrace sessions lists; without one it is the newest, and after
    its end the next. Any number of viewers may watch; none disturbs it. ? lists the keys.
    Without a terminal it prints one table, as --once does: of all since the start.
    """
    if as_json and jsonl:
        raise UsageError("--json and --jsonl exclude each other", hint="give one of them")
    from megatrace.cli.terminal import draws, run_app
    from megatrace.tui.live import LiveSource

    if draws(once or as_json or jsonl):
        return run_app(LiveSource(session))
    source = LiveSource(session, window_s=interval if jsonl and not once else 0.0)
    try:
        return _stream(source, interval) if jsonl and not once else _once(source, as_json)
    finally:
        source.close()


def _once(source: LiveSource, as_json: bool) -> int:
    from megatrace.cli.console import print_json
    from megatrace.tui.text import to_dict, to_text

    name = first_reading(source)
    status, frame = source.poll()
    if as_json:
        print_json("live", {"session": name, "t_s": time.time(), **to_dict(status, frame)})
    else:
        sys.stdout.write(to_text(status, frame))
    return 0


def _stream(source: LiveSource, interval_s: float) -> int:
    from megatrace.tui.text import to_dict

    name = first_reading(source)
    due = time.monotonic()
    while source.name == name:
        status, frame = source.poll()
        if status.state == "ended":
            break
        body = {"session": name, "t_s": time.time(), **to_dict(status, frame)}
        sys.stdout.write(json.dumps(document("live", body)) + "\n")
        sys.stdout.flush()
        due = max(due + interval_s, time.monotonic())
        while time.monotonic() < due:
            time.sleep(min(0.25, max(0.0, due - time.monotonic())))
            source.poll()
    return 0


def first_reading(source: LiveSource) -> str:
    """Wait a little for tables; the session's name. Raises SessionNotFound."""
    from megatrace.errors import SessionNotFound

    deadline = time.monotonic() + _FIRST_S
    while True:
        frame = source.poll()[1]
        if not source.attached:
            raise SessionNotFound(
                f"no recording {source.name}" if source.name else "no recording runs on this host",
                hint="megatrace sessions lists them; megatrace record -- CMD starts one",
            )
        if frame is not None or time.monotonic() > deadline:
            return source.name
        time.sleep(0.05)
