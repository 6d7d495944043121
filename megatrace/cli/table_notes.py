"""What ``megatrace tables`` says beside a table, and why it refuses a part that is not there."""

from __future__ import annotations

from collections.abc import Collection, Container
from typing import TYPE_CHECKING

from megatrace.errors import UsageError

if TYPE_CHECKING:
    import pandas as pd

    from megatrace.analysis.traffic import Traffic
    from megatrace.capture.reader import Capture
    from megatrace.collect.talk import Talk


def refuse_absent(
    capture: Capture,
    frame: pd.DataFrame,
    rank: int | None,
    steps: range | None,
    launch: int | None,
    layers: Collection[int] | None,
    *,
    host: bool,
) -> None:
    """Raise UsageError for steps, a launch_no or one of ``layers`` that ``rank`` does not have.

    ``frame`` is the table: whose rows are of a layer, that layer is there. ``rank`` None: that no
    rank has. ``host``: steps that its host alone tells of are there.
    """
    if len(frame):
        steps = launch = None
        layers = set(layers) - set(frame["layer"].tolist()) if layers else None
    if steps is None and launch is None and not layers:
        return
    from megatrace.analysis.trace import load

    loaded = load(capture, None if rank is None else [rank])
    launches = [one.scan.launches for one in loaded.ranks]
    if steps is not None:
        there = {step for of in launches for step in set(of.step.tolist())}
        there |= set(loaded.host["step"].tolist()) if host else set()
        last = f" to {steps[-1]}" if steps[-1] > steps.start else ""
        kind = "step" if host else "timeline of step"
        _refuse(capture, there, steps, f"{kind} {steps.start}{last}", "steps")
    if launch is not None:
        there = {number for of in loaded.numbers for number in set(of.tolist())}
        _refuse(capture, there, [launch], f"launch_no {launch}", "launch_no")
    if layers:
        there = {number for of in launches for number in set(of.layer.tolist())}
        for layer in sorted(layers):
            _refuse(capture, there, [layer], f"layer {layer}", "layers")


def _refuse(
    capture: Capture, there: set[int], wanted: Container[int], what: str, kind: str
) -> None:
    from megatrace.analysis.plain import ranges_text

    # Not by walking what is wanted: a range of steps may be as long as one likes.
    if there and not any(one in wanted for one in there):
        raise UsageError(
            f"{capture.path} has no {what}", hint=f"it has {kind} {ranges_text(sorted(there))}"
        )


def say_sms(talk: Talk, capture: Capture) -> None:
    """That only some SMs were recorded, where that is so."""
    from megatrace.cli.asked import sms_of

    if sms := sms_of(capture):
        talk.say(sms)


def say_floor(talk: Talk, traffic: Traffic, frame: pd.DataFrame) -> None:
    """What the floor is of, or why there is no fraction."""
    from megatrace.analysis.floor_text import bounds_text
    from megatrace.analysis.floors import part_recorded

    if (rate := traffic.shown) is not None:
        talk.say(f"floor at {rate}")
    elif traffic.why_not:
        talk.say(f"no fraction: {traffic.why_not}")
    for bound in bounds_text(part_recorded(frame), traffic.left_out):
        talk.say(bound)


def say_whose(talk: Talk, capture: Capture, path: pd.DataFrame, what: str, *, of_all: bool) -> None:
    """Which step of which rank a path is of, where it may have been of others.

    ``what`` is "" for the step of its rows; ``of_all``: no rank was asked for.
    """
    from megatrace.analysis.numbers import numbers_of
    from megatrace.analysis.plain import ranges_text
    from megatrace.analysis.summary import ranks_of
    from megatrace.schema.processes import rank_text

    mine = sorted(set(numbers_of(path).tolist()))
    steps = set(path["step"].tolist())
    what = what or f"step{'s' * (len(steps) > 1)} {ranges_text(steps)}"
    whose = ", ".join(map(rank_text, mine))
    others = [rank_text(one) for one in ranks_of(capture) if one not in mine]
    if of_all and others:
        talk.say(f"the path is of {what} of rank {whose} alone; --rank {others[0]} is of another")


def say_unknown(talk: Talk, capture: Capture, path: pd.DataFrame) -> None:
    """How much of a path nobody can follow, where SMs are missing or warps say no publish."""
    from megatrace.cli.asked import sms_of

    unknown, whole = (path[name].sum() / 1e3 for name in ("from_unknown_ns", "dur_ns"))
    sms = sms_of(capture)
    if sms or unknown:
        talk.say(
            f"{f'{sms}: ' * bool(sms)}{unknown:,.1f} of {whole:,.1f} us of the path wait for a "
            "publish that was not recorded, and what led to it is not known"
        )
