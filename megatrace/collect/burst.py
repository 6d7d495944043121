"""A burst: every step for a while, in a capture file of its own beside the large one."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megatrace.capture.writer import CaptureWriter
from megatrace.collect.source import Source
from megatrace.errors import RecordError
from megatrace.ring.control import Ack
from megatrace.schema.layout import ARG_MASK, TIME_BITS

PATIENCE_S = 30.0
"""From the wish to the last step; after that the file holds what there was."""
_SETTLE_S = 0.5
"""What a step's last lines may take once the next has begun, or the program is idle."""

_HEADER = 1


@dataclass(slots=True)
class _Ring:
    """One ring file in the burst. Step ids are of 31 bits, as headers hold them."""

    goal: int
    """``timeline_steps`` of the agent that end the burst."""
    lost_before: NDArray[np.int64]
    step: NDArray[np.int64]
    """Step whose lines each warp's ring is in; -1: not yet at a launch."""
    lines: int = 0
    lost_in_all: int = 0
    last_step: int = -1
    """The last step that is kept; -1: the burst still runs."""
    since_s: float = field(default=0.0)


class Burst:
    """The lines of some steps, on their way into ``path``.

    Attributes:
        wish: the id of the wish that asked for it.
        path: the file, under this name once it is whole.
        steps: asked for.
        state: ``running``, ``done`` or ``failed``.
        text: how it went.
    """

    def __init__(self, path: Path, steps: int, opening: Mapping[str, Any], wish: str) -> None:
        """Open the file, with the facts of the large one. Raises RecordError."""
        self.wish = wish
        self.path = path
        self.steps = steps
        self.state = "running"
        self.text = f"{steps} steps"
        self._writer = CaptureWriter(path)
        self._rings: dict[str, _Ring] = {}
        self._sources: dict[str, Source] = {}
        self._begin_s = time.monotonic()
        try:
            self._writer.write_meta("capture", **{**opening, "joined": True})
        except RecordError:
            self._writer.abandon()
            raise

    @property
    def stepped(self) -> bool:
        """Whether all agents have begun their steps: no more need be asked for."""
        return all(mine.last_step >= 0 for mine in self._rings.values())

    def join(self, source: Source, ack: Ack, clock: NDArray[Any]) -> None:
        """Follow ``source``, whose agent last said ``ack``.

        ``clock`` are host records of its last clock samples: a burst is too short for any.
        """
        self._rings[source.name] = _Ring(
            goal=ack.timeline_steps + self.steps,
            lost_before=source.lost_per_ring.copy(),
            step=np.full(source.ring.rings, -1, np.int64),
        )
        self._sources[source.name] = source
        self._do(lambda: self._writer.write_meta("ring", source.rank, **source.describe()))
        self.host(source, clock)

    def lines(self, source: Source, ring: NDArray[np.uint32], lines: NDArray[np.uint32]) -> None:
        """Take what was drained: whole launches, from the first header that comes."""
        mine = self._rings.get(source.name)
        if mine is None or self.state != "running":
            return
        keep = self._wanted(mine, ring, lines)
        if not keep.any():
            return
        mine.lines += int(keep.sum())
        self._do(
            lambda: self._writer.write_lines(
                source.rank, ring[keep], lines[keep], time.monotonic_ns()
            )
        )

    def host(self, source: Source, records: NDArray[Any]) -> None:
        """Take the host records of any source: steps, and the samples that tie the clocks."""
        if records.size and self.state == "running":
            self._do(lambda: self._writer.write_host(source.rank, records))

    def turn(self, acks: Mapping[str, Ack]) -> None:
        """Look how far the agents are; ends the burst when all have done their steps."""
        if self.state != "running":
            return
        now = time.monotonic()
        waited = now - self._begin_s > PATIENCE_S
        for name, mine in self._rings.items():
            source = self._sources[name]
            ack = acks.get(name)
            if mine.last_step < 0 and (
                waited or source.ended or ack is None or ack.timeline_steps >= mine.goal
            ):
                mine.last_step = ack.step & ARG_MASK if ack is not None else ARG_MASK
                mine.since_s = now
        if all(m.last_step >= 0 and now - m.since_s >= _SETTLE_S for m in self._rings.values()):
            self.finish()

    def finish(self) -> None:
        """Complete the file."""
        if self.state != "running":
            return
        for name, mine in self._rings.items():
            self._write_loss(self._sources[name], mine)
        lines = sum(mine.lines for mine in self._rings.values())
        self._do(lambda: self._writer.finish(elapsed_s=round(time.monotonic() - self._begin_s, 3)))
        if self.state == "running":
            self.state = "done" if lines else "failed"
            self.text = f"{lines:,} lines" if lines else "no timeline came in time"

    def _wanted(
        self, mine: _Ring, ring: NDArray[np.uint32], lines: NDArray[np.uint32]
    ) -> NDArray[np.bool_]:
        """Lines of launches that began since, of steps that are not too late."""
        order = np.argsort(ring, kind="stable")
        at, sorted_lines = ring[order].astype(np.int64), lines[order]
        head = sorted_lines[:, 1] >> TIME_BITS == _HEADER
        first = np.append(True, at[1:] != at[:-1])
        opens = np.flatnonzero(head | first)
        step = np.where(
            head[opens], (sorted_lines[opens, 3] & ARG_MASK).astype(np.int64), mine.step[at[opens]]
        )
        run = np.zeros(len(at), np.int64)
        run[opens] = 1
        of_line = step[np.cumsum(run) - 1]
        mine.step[at] = of_line  # the last of a ring wins
        keep = np.zeros(len(at), bool)
        keep[order] = of_line >= 0
        if mine.last_step >= 0:
            keep[order] &= of_line <= mine.last_step
        return keep

    def _write_loss(self, source: Source, mine: _Ring) -> None:
        lost = source.lost_per_ring - mine.lost_before
        rings = {str(ring): int(lost[ring]) for ring in np.nonzero(lost)[0].tolist()}
        body = {"name": source.name, "read": mine.lines, "lost": int(lost.sum()), "rings": rings}
        self._do(lambda: self._writer.write_meta("loss", source.rank, **body))

    def _do(self, write: Any) -> None:
        if self.state == "failed":
            return
        try:
            write()
        except RecordError as error:
            self.state, self.text = "failed", str(error)
            self._writer.abandon()


def burst_path(capture: Path, given: str, number: int) -> Path:
    """Where a burst goes: ``given``, else beside ``capture`` with a number."""
    if given:
        return Path(given)
    stem = capture.name.removesuffix(capture.suffix)
    while True:
        path = capture.with_name(f"{stem}-burst{number}{capture.suffix}")
        if not path.exists():
            return path
        number += 1


def describe(bursts: Sequence[Burst]) -> dict[str, object]:
    """The last burst, for the note of the aggregate page; {} without one."""
    if not bursts:
        return {}
    last = bursts[-1]
    return {
        "wish": last.wish, "path": str(last.path.absolute()), "steps": last.steps,
        "state": last.state, "text": last.text,
    }  # fmt: skip
