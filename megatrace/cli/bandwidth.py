"""``--bandwidth``: what the memory of the recorded GPU delivers."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from megatrace.analysis.traffic import Bandwidth

_RATE = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*([kMGT]?)B/s", re.ASCII)
_TIMES = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}


def _rate(context: click.Context, option: click.Parameter, text: str | None) -> float | None:
    """``4.2TB/s`` as bytes a second; powers of a thousand."""
    if text is None:
        return None
    found = _RATE.fullmatch(text.strip())
    rate = float(found[1]) * _TIMES[found[2]] if found else 0.0
    if rate <= 0:
        raise click.BadParameter(f"{text!r} is no bandwidth; write it as 4.2TB/s")
    return rate


def bandwidth_option(for_what: str) -> Callable[[Any], Any]:
    """The option of a verb; ``for_what``: what it is for."""
    return click.option(
        "--bandwidth",
        callback=_rate,
        metavar="RATE",
        help=f"{for_what} What a copy on the GPU delivers, as 4.2TB/s; without it, what the "
        "recorded program measured.",
    )


def given(rate: float | None) -> Bandwidth | None:
    """The bandwidth of the option."""
    from megatrace.analysis.traffic import Bandwidth

    return None if rate is None else Bandwidth(rate)
