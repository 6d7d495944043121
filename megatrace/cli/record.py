"""``megatrace record``."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import TYPE_CHECKING

import click

from megatrace.cli.console import flush_stdout, print_json, stdout_failed
from megatrace.errors import ExitCode, MegatraceError

if TYPE_CHECKING:
    from megatrace.collect.options import RecordOptions
    from megatrace.collect.summary import Summary
    from megatrace.collect.talk import Talk

_EPILOG = (
    "The exit code is CMD's own, 128+N where signal N ended it; 125 where megatrace failed, "
    "126 where CMD cannot be executed, 127 where there is none."
)


@click.command(
    "record",
    epilog=_EPILOG,
    context_settings={"allow_interspersed_args": False},
    options_metavar="[OPTIONS] --",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Capture to write, *.mtr; default megatrace-<program>-<UTC>-<pid>.mtr here.",
)
@click.option("--force", is_flag=True, help="Overwrite FILE.")
@click.option(
    "--every",
    default="auto",
    metavar="N|auto",
    show_default=True,
    help="Timeline on one step in N.",
)
@click.option(
    "--counters",
    default="32",
    metavar="N",
    show_default=True,
    help="Of the other steps, counters on one in N; the rest keep nothing.",
)
@click.option(
    "--level",
    type=click.Choice(["counters", "timeline"]),
    default="timeline",
    show_default=True,
    help="The most any step records.",
)
@click.option("--steps", metavar="A:B", help="Timeline only on steps A to B-1; A:+K is K steps.")
@click.option(
    "--burst", type=click.IntRange(0), default=0, metavar="K", help="Timeline on K steps first."
)
@click.option("--sms", metavar="LIST", help="Timeline only on these SMs: 0-3,7; the others count.")
@click.option("--json", "as_json", is_flag=True, help="One JSON summary on stdout at the end.")
@click.argument("cmd", nargs=-1, type=click.UNPROCESSED, required=True)
def command(
    output: Path | None,
    force: bool,
    every: str,
    counters: str,
    level: str,
    steps: str | None,
    burst: int,
    sms: str | None,
    as_json: bool,
    cmd: tuple[str, ...],
) -> int:
    """Run CMD and record its megakernels.

    CMD is a program, a path, or a dotted Python module: sglang.launch_server runs as
    python -m sglang.launch_server, with the Python of MEGATRACE_PYTHON or megatrace's own.
    It keeps stdin, stdout and stderr. Ctrl-C and SIGTERM end the recording in order;
    SIGUSR1 writes out everything so far.
    """
    from megatrace.collect.signals import held_signals
    from megatrace.collect.talk import Talk

    talk = Talk()
    try:
        with held_signals() as signals:
            from megatrace.collect.launch import exit_code
            from megatrace.collect.recorder import record
            from megatrace.collect.summary import tell

            options = _options(cmd, output, force, every, counters, level, steps, burst, sms)
            summary = record(options, talk, signals)
            tell(summary, talk)
            if as_json:
                _print(summary, talk)
            assert summary.child_status is not None
            return exit_code(summary.child_status)
    except MegatraceError as error:
        talk.error(str(error), error.hint)
        return _failed(error)
    except Exception:
        traceback.print_exc()
        return int(ExitCode.TOOL_FAILED)


def _print(summary: Summary, talk: Talk) -> None:
    """The summary on stdout; the child's code stands, whoever reads, and if nobody can."""
    try:
        print_json("record", summary.to_json())
        flush_stdout()
    except BrokenPipeError:
        flush_stdout()
    except OSError as error:
        full = stdout_failed(error)
        talk.error(str(full), full.hint)
    except MegatraceError as error:
        talk.error(str(error), error.hint)


def _options(
    cmd: tuple[str, ...],
    output: Path | None,
    force: bool,
    every: str,
    counters: str,
    level: str,
    steps: str | None,
    burst: int,
    sms: str | None,
) -> RecordOptions:
    from megatrace.collect.options import (
        LEVELS,
        RecordOptions,
        parse_counters,
        parse_every,
        parse_sms,
        parse_steps,
    )

    return RecordOptions(
        command=cmd,
        output=output,
        force=force,
        every_n=parse_every(every),
        counters_every=parse_counters(counters),
        level=LEVELS[level],
        window=parse_steps(steps) if steps else (0, 0),
        burst=burst,
        sms=parse_sms(sms) if sms else None,
    )


def _failed(error: MegatraceError) -> int:
    return int(max(error.exit_code, ExitCode.TOOL_FAILED))
