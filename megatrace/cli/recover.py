"""``megatrace recover``."""

from __future__ import annotations

from pathlib import Path

import click


@click.command("recover")
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Capture to write; default FILE without .part.",
)
@click.option("--force", is_flag=True, help="Overwrite it.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
def command(file: Path, output: Path | None, force: bool, as_json: bool) -> None:
    """Rebuild a capture whose recorder was killed, or a damaged one.

    Keeps every sound batch of FILE, and what the rings of its session still hold where
    they are still on this host: a ring file stays there, a ring in a memfd (sessions tells)
    only while the program or its recorder runs. FILE itself is not changed.
    """
    from megatrace.collect.salvage import salvage
    from megatrace.collect.talk import Talk

    talk = Talk()
    found = salvage(file, output, force=force)
    for problem in found.problems:
        talk.warn(f"{file}: {problem}")
    for ring in found.rings_gone:
        talk.warn(
            f"{ring} was in a memfd that went with its last process, or cannot be read: "
            "what only it had is lost"
        )
    lost = "unknown how many" if found.lines_lost < 0 else f"{found.lines_lost:,}"
    talk.say(
        f"wrote {found.path}: {found.lines:,} lines, {found.ring_lines:,} of them "
        f"from the rings, {lost} lines lost, {found.lost_bytes:,} bytes unusable"
    )
    if found.program_runs:
        talk.say(f"the program of session {found.session} still runs, and nobody records it")
    elif found.session:
        talk.say("its rings are no longer needed: megatrace sessions --prune")
    talk.say(f"next: megatrace report {found.path}")
    if as_json:
        from megatrace.cli.console import print_json

        print_json(
            "recover",
            {
                "path": str(found.path),
                "lines": found.lines,
                "ring_lines": found.ring_lines,
                "lines_lost": found.lines_lost if found.lines_lost >= 0 else None,
                "lost_bytes": found.lost_bytes,
                "problems": list(found.problems),
                "session": found.session,
                "program_runs": found.program_runs,
                "rings_gone": list(found.rings_gone),
            },
        )
