"""``megatrace bench``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from megatrace.bench.run import Result

_MANY_STEPS = 1.25


@click.group("bench")
def command() -> None:
    """Measure a running SGLang server, one request at a time."""


@command.command("gsm8k")
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    required=True,
    metavar="FILE",
    help="GSM8K's test.jsonl.",
)
@click.option("--url", default="http://127.0.0.1:30000", show_default=True, help="The server.")
@click.option("--model", metavar="NAME", help="Refuse a server of another model.")
@click.option("--limit", type=click.IntRange(1), metavar="N", help="Ask N problems, not all.")
@click.option(
    "--shots", type=click.IntRange(0), default=5, show_default=True, help="Solved ones shown first."
)
@click.option(
    "--max-tokens", type=click.IntRange(1), default=512, show_default=True, help="Of an answer."
)
@click.option("--temperature", type=click.FloatRange(0), default=0.0, show_default=True)
@click.option(
    "--warmups", type=click.IntRange(0), default=1, show_default=True, help="Answers not counted."
)
@click.option(
    "--timeout",
    type=click.FloatRange(0, min_open=True),
    default=120.0,
    show_default=True,
    metavar="S",
    help="The longest silence of the server.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
def gsm8k(
    data: Path,
    url: str,
    model: str | None,
    limit: int | None,
    shots: int,
    max_tokens: int,
    temperature: float,
    warmups: int,
    timeout: float,
    as_json: bool,
) -> int:
    """Word problems at batch 1: tokens a second, accept length, accuracy.

    Tokens a second are those a step gives (the accept length, or 1 without a draft) over the
    median step; the wall's are beside it. The first --shots problems of FILE are shown solved
    and not asked.
    """
    from megatrace.bench.client import Server
    from megatrace.bench.gsm8k import read_problems
    from megatrace.bench.run import Plan, run
    from megatrace.cli.console import print_json
    from megatrace.cli.progress import Progress
    from megatrace.collect.talk import Talk
    from megatrace.errors import ExitCode, UsageError

    plan = Plan(shots, limit, max_tokens, temperature, warmups)
    problems = read_problems(data)
    plan.split(problems)
    server, talk = Server(url, timeout_s=timeout), Talk()
    if model is not None and not server.serves(model):
        raise UsageError(
            f"{server.url} serves {server.model()}, not {model}",
            hint="leave --model out to take what it serves",
        )
    progress = Progress(talk)
    progress.begin("asking")
    try:
        result = run(server, problems, plan, progress)
    finally:
        progress.end()
    if result.steps_an_event > _MANY_STEPS:
        talk.warn(
            f"the server streams {result.steps_an_event:.1f} steps at a time: the median step is "
            "of their means (--stream-interval 1 gives single ones)"
        )
    asked = {"shots": shots, "max_tokens": max_tokens, "temperature": temperature}
    if as_json:
        print_json("bench.gsm8k", {"url": server.url, **asked, **result.facts()})
    else:
        _print(result)
    return int(ExitCode.OK)


def _print(result: Result) -> None:
    from megatrace.cli.console import print_table

    def number(value: float | None, pattern: str) -> str:
        return "-" if value is None else pattern.format(value)

    asked = len(result.answers)
    rows = [
        ("model", result.model),
        ("tokens/s", number(result.tokens_per_s, "{:.1f}")),
        ("tokens/s, wall", number(result.wall_tokens_per_s, "{:.1f}")),
        ("median step", number(result.step_ms, "{:.3f} ms")),
        ("accept length", number(result.accept_length, "{:.2f}")),
        ("accuracy", f"{result.accuracy:.1%} ({result.correct} of {asked})"),
        ("without a number", str(result.without_number)),
        ("first token", number(result.first_ms, "{:.1f} ms")),
        ("tokens", str(result.tokens)),
    ]
    print_table(("FIGURE", "VALUE"), rows)
