"""``megatrace steer``."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from megatrace.cli.console import print_json, print_table
from megatrace.errors import MegatraceError, SessionError, UsageError

if TYPE_CHECKING:
    from megatrace.tui.live import LiveSource

_ANSWER_S = 10.0
"""A recorder looks for wishes many times a second; but it may be writing to a slow disk."""
_LOOK_S = 0.1

_EXAMPLES = """\b
Examples:
  megatrace steer --level counters
  megatrace steer --burst 8 -o slow.mtr && megatrace report slow.mtr
"""


@click.command("steer", epilog=_EXAMPLES)
@click.argument("session", required=False, default="")
@click.option(
    "--level",
    type=click.Choice(["off", "counters", "timeline"]),
    help="The most any step records.",
)
@click.option("--every", metavar="N|auto", help="Timeline on one step in N.")
@click.option("--counters", metavar="N", help="Of the other steps, counters on one in N.")
@click.option("--steps", metavar="A:B|all", help="Timeline only on steps A to B-1; A:+K is K.")
@click.option("--sms", metavar="LIST|all", help="Timeline only on these SMs: 0-3,7.")
@click.option(
    "--burst",
    type=click.IntRange(1),
    metavar="K",
    help="Timeline on the next K steps, in a capture of their own; waits for it.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="Where the burst goes, *.mtr; default: beside the recording's file.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
def command(
    session: str,
    level: str | None,
    every: str | None,
    counters: str | None,
    steps: str | None,
    sms: str | None,
    burst: int | None,
    output: Path | None,
    as_json: bool,
) -> int:
    """Change what a running recording keeps, or print what it keeps now.

    SESSION is a name that megatrace sessions lists; without one it is the newest. The program
    goes on as it was. What megatrace live asks by keys, a script asks here.
    """
    if output is not None and burst is None:
        raise UsageError("-o is for a burst", hint="add --burst K")
    if output is not None and output.suffix != ".mtr":
        raise UsageError(f"{output} is not named *.mtr", hint=f"-o {output.stem}.mtr")
    wanted = {
        "level": level,
        "every": every,
        "counters": counters,
        "steps": steps,
        "sms": sms,
        "burst": burst,
    }
    asks = {key: str(value) for key, value in wanted.items() if value is not None}
    if output is not None:
        asks["output"] = str(output.absolute())
    _check(asks)
    from megatrace.cli.live import first_reading
    from megatrace.tui.live import LiveSource

    source = LiveSource(session)
    try:
        name = first_reading(source)
        if not source.note:
            raise SessionError(
                f"no process of {name} has attached yet", hint="steer it once one has"
            )
        done = _ask(source, name, asks) if asks else {}
        now = dict(source.note.get("asked", {}))
    finally:
        source.close()
    if as_json:
        print_json("steer", {"session": name, "asked": now, "burst": done})
    elif done:
        click.echo(done["path"])
    elif not asks:
        print_table(("WHAT", "NOW"), list(now.items()))
    return 0


def _check(asks: dict[str, str]) -> None:
    """Raise UsageError where the recorder would refuse: here it is a usage error."""
    from megatrace.collect.options import parse_counters, parse_every, parse_sms, parse_steps

    parsers = {
        "every": parse_every,
        "counters": parse_counters,
        "steps": parse_steps,
        "sms": parse_sms,
    }
    for key, parse in parsers.items():
        if key in asks and not (asks[key] == "all" and key in ("steps", "sms")):
            parse(asks[key])


def _ask(source: LiveSource, name: str, asks: dict[str, str]) -> dict[str, Any]:
    """Send ``asks`` and say the answer; the burst that is done, {} where none was asked for."""
    from megatrace.collect.talk import Talk

    wish = source.ask(**asks)
    answers = _wait(source, name, source.answers, time.monotonic() + _ANSWER_S)
    if not answers:
        raise SessionError(
            f"the recorder of {name} does not answer", hint="megatrace live shows how it is"
        )
    (answer,) = answers
    if not answer.ok:
        raise MegatraceError(answer.text)
    Talk().say(answer.text)

    def finished() -> dict[str, Any]:
        burst = dict(source.note.get("burst", {}))
        return burst if burst.get("wish") == wish and burst.get("state") != "running" else {}

    if "burst" not in asks:
        return {}
    done: dict[str, Any] = _wait(source, name, finished)
    if done["state"] != "done":
        raise MegatraceError(f"{done['path']}: {done['text']}")
    Talk().say(done["text"])
    return done


def _wait(
    source: LiveSource, name: str, found: Callable[[], Any], give_up_s: float | None = None
) -> Any:
    """What ``found`` says first, or at ``give_up_s``. Raises SessionError where ``name`` ends."""
    while True:
        source.poll()
        result = found()  # the last page of a recording that has just ended says it too
        if result or (give_up_s is not None and time.monotonic() > give_up_s):
            return result
        if not source.attached or source.name != name:
            raise SessionError(f"{name} ended", hint="its capture holds what it kept until then")
        time.sleep(_LOOK_S)
