"""``megatrace``: the verbs, and the only place where an error becomes an exit code.

A verb's module is imported when the verb runs. Its command returns its exit code, or
None for 0.
"""

from __future__ import annotations

import difflib
import errno
import importlib
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

import click

from megatrace import __version__
from megatrace.cli.console import flush_stdout, stdout_failed
from megatrace.collect.talk import Talk
from megatrace.errors import ExitCode, MegatraceError

_BROKEN_PIPE = 141
_INTERRUPTED = 130

VERBS: dict[str, str] = {
    "record": "Run a program and record its megakernels.",
    "live": "Watch a recording in the terminal, and steer it.",
    "steer": "Change what a recording keeps, from a script.",
    "view": "Replay a capture in the terminal, or in Perfetto.",
    "report": "Tables of a capture: time, stalls, loss.",
    "tables": "One table in full: stalls, prefetches, waits, critical path.",
    "diff": "What got slower from one capture to another, and how surely.",
    "export": "Write a capture as a Perfetto trace, CSV or Parquet.",
    "bench": "Measure a running server: tokens/s, accept length, accuracy.",
    "info": "What a capture holds: ranks, loss, sizes, environment.",
    "recover": "Rebuild the capture of a recorder that was killed.",
    "sessions": "List the recordings of this host; --prune removes dead ones.",
    "doctor": "Check what recording needs here, with the fix for each.",
    "include-dir": "Print the folder of the CUDA headers, for nvcc -I.",
}
"""Verb -> one line of help; its module is ``megatrace.cli.<verb>``."""


class LazyGroup(click.Group):
    """A group that imports a verb only to run it or to print its own help."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The verbs, in the order of use."""
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the verb's module; its ``command`` is the verb."""
        if cmd_name not in VERBS:
            return None
        module = importlib.import_module(f"megatrace.cli.{cmd_name.replace('-', '_')}")
        command: click.Command = module.command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The verb of ``args``; a word that is none is told which one it resembles."""
        word = args[0]
        if word not in VERBS and not word.startswith("-"):
            like = difflib.get_close_matches(word, VERBS, n=1)
            ctx.fail(f"no verb {word!r}" + (f": did you mean {like[0]}?" if like else ""))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of verbs without importing them."""
        with formatter.section("Verbs"):
            formatter.write_dl(list(VERBS.items()))


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    options_metavar="[--version]",
    subcommand_metavar="VERB ...",
    epilog="megatrace VERB --help says more. A JSON document says its schema and version: where a "
    "field goes or changes its meaning the version does, where one is new it does not.",
)
@click.version_option(__version__, message="megatrace %(version)s")
def cli() -> None:
    """Record GPU megakernels warp by warp, and read where their time goes."""


def run(args: Sequence[str] | None = None) -> int:
    """The exit code of ``megatrace args``; prints what went wrong on stderr."""
    words = list(sys.argv[1:] if args is None else args)
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - it lives as long as the program
    try:
        code = _invoke(words)
        return code if flush_stdout() else _BROKEN_PIPE
    except click.exceptions.NoArgsIsHelpError as error:  # a group alone, as megatrace alone
        click.echo(error.format_message())
        return int(ExitCode.USAGE) if flush_stdout() else _BROKEN_PIPE
    except click.UsageError as error:
        Talk().error(error.format_message(), _usage_hint(error))
        # A wrapper's own 2 would read as its child's.
        recording = bool(words) and words[0] == "record"
        return int(ExitCode.TOOL_FAILED if recording else ExitCode.USAGE)
    except click.ClickException as error:
        Talk().error(error.format_message())
        return int(ExitCode.ERROR)
    except MegatraceError as error:
        Talk().error(str(error), error.hint)
        return int(error.exit_code)
    except BrokenPipeError:
        flush_stdout()
        return _BROKEN_PIPE
    except (click.Abort, KeyboardInterrupt):
        return _INTERRUPTED
    except OSError as error:
        return _failed(error)


def _invoke(words: list[str]) -> int:
    """Run the verb; its exit code."""
    if not words:
        with cli.make_context("megatrace", words, resilient_parsing=True) as context:
            click.echo(cli.get_help(context))
        return int(ExitCode.USAGE)
    try:
        # Not cli.main(): that turns a broken pipe into a plain 1.
        with cli.make_context("megatrace", words) as context:
            result = cli.invoke(context)
    except click.exceptions.Exit as exit_:
        return exit_.exit_code
    return result if isinstance(result, int) else int(ExitCode.OK)


def _failed(error: OSError) -> int:
    """Say which file failed. Only stdout fills up without a name: others are caught below."""
    if error.filename is None and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
        full = stdout_failed(error)
        Talk().error(str(full), full.hint)
    else:
        where = f"{error.filename}: " if error.filename else ""
        Talk().error(f"{where}{error.strerror or error}")
    return int(ExitCode.ERROR)


def main() -> NoReturn:
    """Entry point of the ``megatrace`` program."""
    sys.exit(run())


def _usage_hint(error: click.UsageError) -> str:
    path = error.ctx.command_path if error.ctx else "megatrace"
    return f"{path} --help"
