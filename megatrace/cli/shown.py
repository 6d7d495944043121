"""What the verbs share that draw a capture for Perfetto: which steps, and how many slices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from megatrace.errors import UsageError

if TYPE_CHECKING:
    from megatrace.analysis import Trace
    from megatrace.capture.reader import Capture
    from megatrace.export import ExportResult, TableName
    from megatrace.export.perfetto import Progress

_SMALL_LINES = 1 << 18
"""Of fewer lines all is decoded, and the step chosen from all of it as it is drawn."""
_MAX_STEPS = 1_000_000

Command = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Shown:
    """What was asked for; ``steps`` is None for one typical step, or ``every`` one."""

    steps: range | None
    every: bool
    budget: int | None
    flows: bool
    rank: str | None = None

    @classmethod
    def asked(
        cls,
        step: int | None,
        steps: str | None,
        every: bool,
        budget: int | None,
        no_flows: bool,
        rank: str | None = None,
    ) -> Shown:
        """From the values of :func:`shown_options`. Raises UsageError where they disagree."""
        if (step is not None) + (steps is not None) + every > 1:
            raise UsageError(
                "--step, --steps and --all exclude each other", hint="give one of them"
            )
        return cls(_range(step, steps), every, budget, not no_flows, rank)


def shown_options(
    budget_of: str = "Slices at most, default 2,000,000.",
) -> Callable[[Command], Command]:
    """Options ``--step``, ``--steps``, ``--all``, ``--rank``, ``--budget`` and ``--no-flows``."""
    options = [
        click.option("--step", type=click.IntRange(0), metavar="N", help="This step alone."),
        click.option("--steps", metavar="A:B", help="Steps A to B-1; A:+K is K steps."),
        click.option("--all", "every", is_flag=True, help="Every step with a timeline."),
        click.option("--rank", metavar="R", help="This rank alone; 0#2 is its second process."),
        click.option(
            "--budget",
            type=click.IntRange(1),
            metavar="N",
            help=f"{budget_of} Beyond it whole launches are left out; at least one launch is kept.",
        ),
        click.option("--no-flows", is_flag=True, help="No arrows from a signal to its waiter."),
    ]

    def add(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return add


def decode_asked(
    shown: Shown, capture: Capture, *, table: TableName | None = None, perfetto: bool = True
) -> tuple[Trace, tuple[str, ...]]:
    """The trace to show and, in phrases, what of the capture is not in it.

    Raises UsageError for steps or a rank that the capture does not have, and what decoding
    raises.
    """
    from megatrace.analysis import decode
    from megatrace.analysis.plain import ranges_text
    from megatrace.export.capture import steps_recorded

    steps = shown.steps
    small = len(capture.line_index()) <= _SMALL_LINES and perfetto and shown.rank is None
    ranks, others = _one_rank(shown.rank, capture)
    if steps is None and not shown.every and not small and table != "host":
        if ranks is None:
            ranks, others = main_process(capture)
        steps = typical_step(capture, ranks)
    if steps is None:
        return decode(capture, ranks=ranks), tuple(others)
    trace = decode(capture, ranks=ranks, steps=steps)
    # Of a GPU's trace the host is drawn while the GPU's steps last, whatever step it says.
    of_host = table == "host" or not len(capture.line_index())
    if of_host:
        there = trace.host["step"]
        trace = replace(trace, host=trace.host[there.isin(steps)])
    if not len(trace.host if of_host else trace.launches):
        have = there[there > 0].tolist() if of_host else steps_recorded(capture, ranks)
        raise UsageError(
            f"{capture.path} has {'no host event' if of_host else 'no timeline'} of "
            f"{_steps_text(steps)}",
            hint=f"it has steps {ranges_text(have)}" if have else "it has none of any step",
        )
    return trace, (*others, f"all but {_steps_text(steps)}")


def write_trace(
    shown: Shown,
    trace: Trace,
    left_out: tuple[str, ...],
    capture: Capture,
    output: Path,
    progress: Progress | None = None,
    *,
    force: bool = False,
) -> ExportResult:
    """Write what :func:`decode_asked` gave to ``output``. Raises what the export raises."""
    from megatrace.cli.asked import sms_of
    from megatrace.export import PerfettoOptions, export_perfetto

    steps: Literal["one", "all"] = "all" if shown.every or left_out else "one"
    options = PerfettoOptions(steps=steps, flows=shown.flows)
    if shown.budget is not None:
        options = replace(options, budget=shown.budget)
    return export_perfetto(
        trace,
        output,
        options,
        force=force,
        command=command_of(capture),
        left_out=left_out,
        recorded=sms_of(capture),
        progress=progress,
    )


def _one_rank(text: str | None, capture: Capture) -> tuple[list[int] | None, list[str]]:
    """The number of the rank asked for, and a phrase for the others; None: of all there are."""
    from megatrace.cli.asked import rank_asked
    from megatrace.schema.processes import rank_text

    number = rank_asked(text, capture)
    if number is None:
        return None, []
    others = {row.rank for row in capture.facts("ring")} - {number}
    return [number], [f"all but rank {rank_text(number)}"] if others else []


def typical_step(capture: Capture, ranks: list[int] | None = None) -> range | None:
    """The step of median duration, from a few warp rings of each rank; None without any."""
    from megatrace.analysis import decode
    from megatrace.analysis.rank import probed_rings
    from megatrace.export.select import select

    probe = decode(capture, ranks=ranks, rings=probed_rings(capture, ranks))
    steps = select(probe.launches, probe.records, "one", 1 << 62).steps
    return range(steps[0], steps[0] + 1) if steps else None


def main_process(capture: Capture) -> tuple[list[int] | None, list[str]]:
    """Ranks of the process with most lines, and phrases for the others; None: of all there are."""
    from megatrace.export.select import one_process

    rank = capture.line_index().rank
    mine, others = one_process(rank)
    return (sorted(set(rank[mine].tolist())), others) if others else (None, [])


def command_of(capture: Capture) -> str:
    """The command that was recorded; empty where the capture does not say."""
    opening = next(iter(capture.facts("capture")), None)
    words = opening.fields.get("command") if opening else None
    return " ".join(map(str, words)) if isinstance(words, list) else ""


def _range(step: int | None, steps: str | None) -> range | None:
    from megatrace.collect.options import parse_steps

    if step is not None:
        return range(step, step + 1)
    found = range(*parse_steps(steps)) if steps is not None else None
    if found is not None and len(found) > _MAX_STEPS:
        raise UsageError(f"--steps {steps}: more than {_MAX_STEPS:,} steps", hint="use --all")
    return found


def _steps_text(steps: range) -> str:
    return f"step {steps[0]}" if len(steps) == 1 else f"steps {steps[0]} to {steps[-1]}"
