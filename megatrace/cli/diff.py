"""``megatrace diff``."""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from megatrace.cli.progress import Progress
from megatrace.collect.talk import Talk
from megatrace.errors import ExitCode, MegatraceError, UsageError

if TYPE_CHECKING:
    from megatrace.analysis.compare import Comparison
    from megatrace.analysis.measured import Side


@click.command("diff")
@click.argument("a", type=click.Path(path_type=Path))
@click.argument("b", type=click.Path(path_type=Path))
@click.option(
    "--fail-on",
    metavar="N%",
    help="Exit with 4 where launches of a layer, or of all, are slower in B by more than this, "
    "by the lower end of the interval; with 1 where that cannot be decided.",
)
@click.option(
    "--top",
    type=click.IntRange(1),
    default=20,
    show_default=True,
    metavar="N",
    help="Rows of each table; the JSON has all.",
)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, metavar="N",
              help="Of the bootstrap.")  # fmt: skip
@click.option("--strict", is_flag=True, help="Exit with 3 where a capture is incomplete.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
def command(
    a: Path, b: Path, fail_on: str | None, top: int, seed: int, strict: bool, as_json: bool
) -> int:
    """What changed from capture A to capture B, by layer and cause, and how surely.

    Medians of both, the change, and an interval that holds it: a bootstrap over whole
    steps. Launches get slower or faster; a class of a warp's time explains them, and there
    is more or less of it. Captures of the host build get no verdict.
    """
    from megatrace.analysis.compare import compare
    from megatrace.analysis.compare_text import compare_to_dict, compare_to_text
    from megatrace.analysis.resample import Bootstrap
    from megatrace.cli.console import print_json

    threshold = None if fail_on is None else parse_threshold(fail_on)
    sides = _measure(a), _measure(b)
    found = compare(*sides, Bootstrap(seed=seed))
    gate = None if threshold is None else _Gate.of(found, threshold)
    if as_json:
        print_json("diff", compare_to_dict(found) | {"gate": gate and asdict(gate)})
    else:
        sys.stdout.write(compare_to_text(found, top=top))
    if gate is not None and gate.say(found):
        return int(ExitCode.REGRESSED)
    incomplete = strict and not all(side.complete for side in sides)
    return int(ExitCode.INCOMPLETE if incomplete else ExitCode.OK)


@dataclass(frozen=True, slots=True)
class _Gate:
    threshold: float
    failed: tuple[str, ...]
    """The launches that are slower by more, in sentences."""
    undecided: str
    """Why it can neither pass nor fail; empty where it can."""
    hint: str = ""

    @classmethod
    def of(cls, found: Comparison, threshold: float) -> _Gate:
        """What is slower is a failure, whatever else is missing; else all must be decided."""
        from megatrace.analysis.compare_text import change_sentence, unjudged_sentence

        if found.a.cpu:
            why = "these captures are of a CPU, whose times get no verdict"
            return cls(threshold, (), why, "gate on captures of a GPU")
        if found.unlike:
            hint = "gate on captures of the same machine and the same work, recorded alike"
            return cls(threshold, (), "; ".join(found.unlike), hint)
        slower = found.regressions(threshold)
        if slower:
            failed = tuple(change_sentence(row, found.grown(row)) for row in slower)
            return cls(threshold, failed, "")
        if found.one_sided:
            hint = "gate on captures of the same layers"
            return cls(threshold, (), "; ".join(found.one_sided), hint)
        if found.unjudged:
            return cls(threshold, (), unjudged_sentence(found), "record more steps of both")
        return cls(threshold, (), "")

    def say(self, found: Comparison) -> bool:
        """One line, or one a failure; whether it failed. Raises where it decided nothing."""
        from megatrace.analysis.plain import many

        talk = Talk()
        limit = f"{100 * self.threshold:g} %"
        if self.undecided:
            raise MegatraceError(f"--fail-on {limit}: undecided: {self.undecided}", hint=self.hint)
        for sentence in self.failed:
            talk.error(f"slower by more than {limit}: {sentence}")
        if not self.failed:
            layers = many(len(found.layers), "layer")
            talk.say(f"passed: none of {layers} is slower by more than {limit}")
        return bool(self.failed)


def parse_threshold(text: str) -> float:
    """``2%`` as 0.02. Raises UsageError."""
    number, sign, rest = text.strip().partition("%")
    try:
        value = float(number) / 100
    except ValueError:
        value = -1.0
    # A bare 2 could be 2 or 200 %.
    if not sign or rest or not 0 <= value < float("inf"):
        raise UsageError(f"--fail-on {text}: no percentage", hint="write it as 2% or 0.5%")
    return value


def _measure(path: Path) -> Side:
    from megatrace.analysis.measured import measure
    from megatrace.capture.reader import open_capture
    from megatrace.cli.console import warn_incomplete

    progress = Progress(Talk())
    progress.begin(f"reading {path.name}")
    try:
        with open_capture(path) as capture:
            side = measure(capture, progress)
            progress.end()
            warn_incomplete(capture)
    finally:
        progress.end()
    return side
