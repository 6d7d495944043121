"""``megatrace sessions``."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from megatrace.cli.console import print_json, print_table

if TYPE_CHECKING:
    from megatrace.ring.session import SessionInfo


@click.command("sessions")
@click.option("--prune", is_flag=True, help="Remove those that nobody holds.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
def command(prune: bool, as_json: bool) -> None:
    """List the recordings of this host and user.

    A session is "live" while its recorder runs, "orphan" while only the program does, and
    else "dead". What a dead one holds was not drained: recover its capture, then prune.
    Rings in a memfd go with the last process that holds them: recover while the program runs.
    """
    from megatrace.collect.talk import Talk
    from megatrace.ring.session import list_sessions
    from megatrace.ring.session import prune as prune_sessions

    removed = prune_sessions() if prune else []
    found = list_sessions()
    if as_json:
        print_json(
            "sessions",
            {
                "removed": list(removed),
                "sessions": [
                    {
                        "name": s.name,
                        "path": str(s.path),
                        "live": s.live,
                        "recorded": s.recorded,
                        "rings": list(s.rings),
                        "memfds": list(s.memfds),
                        "started": s.started,
                        "command": list(s.command),
                    }
                    for s in found
                ],
            },
        )
        return
    talk = Talk()
    for name in removed:
        talk.say(f"removed {name}")
    if not found:
        talk.say("no sessions; megatrace record -- CMD starts one")
        return
    print_table(
        ("SESSION", "STATE", "RINGS", "STARTED", "COMMAND"),
        [(s.name, _state(s), _rings(s), _when(s.started), " ".join(s.command)[:80]) for s in found],
    )
    if any(not s.live for s in found):
        talk.say("dead sessions: megatrace recover FILE.mtr.part, then megatrace sessions --prune")


def _rings(session: SessionInfo) -> str:
    """``8``, or ``8, 6 in a memfd``."""
    many = str(len(session.rings))
    return f"{many}, {len(session.memfds)} in a memfd" if session.memfds else many


def _state(session: SessionInfo) -> str:
    if session.recorded:
        return "live"
    return "orphan" if session.live else "dead"


def _when(started_s: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(started_s)) if started_s else "-"
