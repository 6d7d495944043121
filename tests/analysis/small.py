"""Small captures of which every answer is known: 2 cycles a ns, launches of whole us."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from megatrace.analysis import Trace, decode
from megatrace.capture.reader import open_capture
from tests.build import MS, Build, Launch, Rec, write

ROOT = Path(__file__).parents[2]
MUSE = ROOT / "tests" / "muse" / "h200.mtr"
BLOCKS = ROOT / "tests" / "muse" / "h200_blocks.mtr"
STREAM = ROOT / "examples" / "01_trace_a_kernel" / "h200.mtr"
GHZ = 2.0
US = 2000
"""Cycles."""
EVERY_US = 100
"""From the begin of a launch to that of the next."""

Records = Mapping[int, Sequence[Rec]]
"""By ring."""


def build(*launches: Records, lasts_us: Mapping[int, int] | int = 50, **facts: Any) -> Build:
    """A rank whose rings all take part in each launch; ``lasts_us`` of all, or by ring.

    Launch i is step 1, layer i, and begins at i * EVERY_US after the first.
    """
    made = Build(**{"ghz": GHZ, "layers": max(1, len(launches)), **facts})
    for number, records in enumerate(launches):
        at = MS + number * EVERY_US * 1000
        for ring in range(made.rings):
            us = lasts_us if isinstance(lasts_us, int) else lasts_us.get(ring, 50)
            body = list(records.get(ring, ()))
            made.add(ring, Launch(number, at, at + 1000 * us, records=body, layer=number))
    # Clocks are fitted over launches: some that nobody looks at make them certain.
    for number in range(len(launches), len(launches) + 3):
        at = MS + number * EVERY_US * 1000
        for ring in range(made.rings):
            made.add(ring, Launch(number, at, at + 50_000, step=9, layer=0))
    return made


def trace_of(folder: Path, *builds: Build, steps: Iterable[int] | None = (1,)) -> Trace:
    """The decoded steps of a capture of ``builds``."""
    path = write(folder / "small.mtr", *builds)
    with open_capture(path) as capture:
        return decode(capture, steps=None if steps is None else list(steps))


def real(path: Path) -> Trace:
    """A committed capture, decoded."""
    with open_capture(path, strict=True) as capture:
        return decode(capture)
