"""A capture, step by step or as a whole."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from megatrace.errors import MegatraceError
from megatrace.schema.processes import process_of, rank_of, rank_text
from megatrace.tui.frames import LaunchFloors, floors_of, frame_of, places_of
from megatrace.tui.model import Frame, RankState, Status
from megatrace.tui.reading import CPU_NOTE, LEVELS

if TYPE_CHECKING:
    from megatrace.analysis.floors import KeptLaunches
    from megatrace.analysis.report import HostStepRow
    from megatrace.analysis.traffic import Traffic
    from megatrace.capture.reader import Capture
    from megatrace.tui.flat import EventSum, Flat, StepOf
    from megatrace.tui.lanes import Lanes

TINY_NOTE = "tiny: fewer than {} launches a layer; medians say little"
_FEW = 3
_NAMED = 4
"""Ranks of a step that are named, where not all have it."""


@dataclass(slots=True)
class _Loaded:
    """What the reading thread leaves."""

    flat: Flat | None = None
    capture: Capture | None = None
    hosts: tuple[HostStepRow, ...] = ()
    steps_run: int = 0
    counters: bool = False
    floors: LaunchFloors | None = None
    no_floor: str = ""
    """Why not; "" where nobody asked."""
    bounds: tuple[str, ...] = ()
    """On which side of the floors the true ones lie."""
    share: float = 0.0
    error: MegatraceError | None = None


class CaptureSource:
    """A capture that a thread reads; :meth:`poll` says how far it is.

    Attributes:
        step: the step that is shown; None: all.
    """

    steers = False

    def __init__(self, path: Path, *, bandwidth: float | None = None) -> None:
        """Read ``path``, from the first :meth:`poll` on.

        ``bandwidth`` (bytes a second) is for the fraction of the floor; None: as the capture
        says.
        """
        self.path = path
        self._bandwidth = bandwidth
        self.name = path.name
        self.step: StepOf | None = None
        self._loaded = _Loaded()
        self._thread: threading.Thread | None = None
        self._looked = False
        self._shown: object = None
        self._frame: Frame | None = None
        self._base: Status | None = None

    @property
    def error(self) -> MegatraceError | None:
        """Why it cannot be read; None."""
        return self._loaded.error

    @property
    def capture(self) -> Capture | None:
        """The file, once it is read."""
        return self._loaded.capture

    @property
    def flat(self) -> Flat | None:
        """All of it, once it is read."""
        return self._loaded.flat

    @property
    def steps(self) -> tuple[StepOf, ...]:
        """Steps with a timeline."""
        flat = self._loaded.flat
        return flat.steps if flat is not None else ()

    @property
    def events(self) -> Sequence[EventSum]:
        """Sums of every event, of the whole capture."""
        flat = self._loaded.flat
        return flat.events if flat is not None else ()

    def poll(self) -> tuple[Status, Frame | None]:
        """How it stands. The same objects again where nothing has changed."""
        loaded = self._loaded
        if self._thread is None:
            # Not at the first look: that is for a screen that is about to be painted.
            if self._looked:
                self._thread = threading.Thread(target=self._read, daemon=True)
                self._thread.start()
            self._looked = True
        if loaded.error is not None:
            why = str(loaded.error).removeprefix(f"{self.path}: ")
            return Status(str(self.path), "failed", why, notes=(loaded.error.hint,)), None
        if loaded.flat is None:
            return Status(str(self.path), "loading", f"reading, {100 * loaded.share:.0f} %"), None
        if self._base is None:
            self._base = self._status(loaded)
        shown = (self.step, id(loaded.flat), id(loaded.floors), loaded.no_floor)
        if self._shown != shown:
            self._shown = shown
            self._base = self._status(loaded)
            self._frame = frame_of(loaded.flat, self.step, loaded.floors)
        return replace(self._base, span=self._span()), self._frame

    def load(self) -> None:
        """Read it all, here and now. Raises MegatraceError."""
        self._thread = threading.current_thread()
        self._read()
        if self._loaded.error is not None:
            raise self._loaded.error

    def turn(self, by: int, rank: int | None = None) -> None:
        """Show the step ``by`` further on; before the first and after the last are all.

        ``rank``: of the steps that it has.
        """
        flat = self._loaded.flat
        mine = [s for s in self.steps if rank is None or (flat and rank in flat.ranks_in(s))]
        steps: list[StepOf | None] = [None, *mine]
        at = steps.index(self.step) if self.step in steps else 0
        self.step = steps[(at + by) % len(steps)]

    def lanes(
        self, rank: int, layer: tuple[str, int], *, sm: int | None = None, role: str = ""
    ) -> Lanes | None:
        """Warps of one launch of the step that is shown: those on ``sm``, or of ``role``."""
        from megatrace.tui.launch import lanes_of, role_lanes_of

        flat, capture = self._loaded.flat, self._loaded.capture
        if flat is None or capture is None:
            return None
        if sm is not None:
            return lanes_of(capture, flat, rank, layer, self.step, sm=sm)
        return role_lanes_of(capture, flat, rank, layer, self.step, role=role)

    def layer_places(self, frame: Frame, layer: tuple[str, int]) -> Frame:
        """``frame`` with the places of one layer alone."""
        flat = self._loaded.flat
        if flat is None:
            return frame
        places, stalled, busy = places_of(flat, self.step, flat.layers.index(layer))
        return replace(frame, places=places, place_stalled=stalled, place_busy=busy)

    def close(self) -> None:
        """Let go of the file."""
        if self._loaded.capture is not None:
            self._loaded.capture.close()

    def _read(self) -> None:
        try:
            # pandas comes with these: not before something is on the screen.
            from megatrace.analysis.floors import KeptLaunches, why_not
            from megatrace.analysis.server import host_step_rows, steps_run
            from megatrace.analysis.traffic import Bandwidth, Traffic
            from megatrace.capture.reader import open_capture
            from megatrace.tui.flat import load

            capture = open_capture(self.path)
            given = self._bandwidth
            traffic = Traffic.of(capture, None if given is None else Bandwidth(given))
            why = why_not(capture, traffic)
            kept = None if why else KeptLaunches(traffic)
            flat = load(capture, self._progress, kept)
            self._loaded.hosts = host_step_rows(capture)
            self._loaded.steps_run = steps_run(capture)
            self._loaded.counters = bool(len(capture.counters().slot))
            self._loaded.capture = capture
            self._loaded.flat = flat
            if kept is not None:  # the tables stand by then
                self._add_floors(flat, kept, traffic)
            elif traffic.said or given is not None:
                self._loaded.no_floor = why
        except MegatraceError as error:
            self._loaded.error = error

    def _add_floors(self, flat: Flat, kept: KeptLaunches, traffic: Traffic) -> None:
        """Of the launches that the reading kept, where the capture says bytes."""
        import pandas as pd

        from megatrace.analysis.floor_text import bounds_text
        from megatrace.analysis.floors import part_recorded

        frames = list(kept.frames())
        if any((frame["fraction"] >= 0).any() for frame in frames):
            part = part_recorded(pd.concat(frames))
            self._loaded.bounds = tuple(bounds_text(part, traffic.left_out))
        self._loaded.floors = floors_of(flat, frames)

    def _progress(self, share: float) -> None:
        self._loaded.share = share

    def _span(self) -> str:
        flat, shown = self._loaded.flat, self.step
        if shown is None or flat is None:
            many = len(self.steps)
            return f"all {many:,} steps" if many != 1 else "its one step"
        text = f"step {shown.step}" if shown.step > 0 else "launches without a step id"
        return text + _of_whom(flat, shown)

    def _status(self, loaded: _Loaded) -> Status:
        flat, capture = loaded.flat, loaded.capture
        assert flat is not None
        assert capture is not None
        steps = [row for row in loaded.hosts if row.event == "step"]
        took = capture.end.fields.get("elapsed_s") if capture.end else None
        seen = loaded.steps_run
        accept = [r.accept_length for r in loaded.hosts if r.accept_length is not None]
        rate = 1000 / steps[0].median_ms if steps and steps[0].median_ms > 0 else None
        level = capture.options.get("level")
        loss = flat.loss.sentence()
        errors = [e for e in flat.clock_error_ns if e == e]
        return Status(
            title=str(self.path),
            state="replay",
            text="complete" if capture.complete else "INCOMPLETE",
            device=flat.device,
            steps_per_s=rate,
            accept_length=accept[0] if accept else None,
            level=LEVELS.get(level, "") if isinstance(level, int) else "",
            sampling=f"{len(flat.steps):,} of {seen:,} steps" if seen else "",
            loss="loss unknown" if loss == "unknown" else loss,
            lossy=loss != "nothing lost",
            clock_error_ns=max(errors, default=None),
            file_bytes=capture.size_bytes,
            ranks=tuple(self._rank(flat, at) for at in range(len(flat.ranks))),
            notes=(
                *_notes(
                    capture,
                    flat,
                    took,
                    counters=loaded.counters,
                    no_floor=loaded.no_floor,
                    bounded=bool(loaded.bounds),
                ),
                *loaded.bounds,
                *([flat.sms] if flat.sms and loaded.bounds else []),
            ),
        )

    def _rank(self, flat: Flat, at: int) -> RankState:
        error = flat.clock_error_ns[at]
        seen, lost = flat.lines[at]
        of = rank_of(flat.ranks[at]), process_of(flat.ranks[at])
        hosts = [row for row in self._loaded.hosts if row.event == "step"]
        mine = [row for row in hosts if (row.rank, row.process) == of]
        rate = 1000 / mine[0].median_ms if mine and mine[0].median_ms > 0 else None
        return RankState(
            rank=flat.ranks[at],
            steps_per_s=rate,
            lines_read=seen,
            lines_lost=lost,
            clock_error_ns=None if error != error else error,
        )


def _notes(
    capture: Capture, flat: Flat, took: object, *, counters: bool, no_floor: str, bounded: bool
) -> list[str]:
    """What the reader must know of this capture before its numbers.

    ``bounded``: bounds of the floor follow, which say how much was recorded.
    """
    notes = [f"incomplete: {problem}" for problem in flat.problems[:3]]
    if not capture.complete and not notes:
        why = "recovered after its recorder was killed" if capture.recovered else "cut short"
        notes.append(f"incomplete: {why}; what it lacks is unknown")
    if flat.sms and not bounded:
        notes.append(flat.sms)
    if not flat.ranks:
        notes.append("empty: no traced kernel left anything here")
    elif not len(flat.warps.rank):
        what = "counters only: megatrace report has them" if counters else "no launch at all"
        notes.append(f"no timeline: {what}")
    else:
        least = min(np.bincount(flat.walls.layer, minlength=len(flat.layers)), default=0)
        if least < _FEW:
            notes.append(TINY_NOTE.format(_FEW))
    if flat.loss.any:
        notes.append(f"lost: {flat.loss.sentence()}")
    if "cpu" in flat.device:
        notes.append(CPU_NOTE)
    elif no_floor:
        notes.append(f"no fraction of the floor: {no_floor}")
    return notes


def _of_whom(flat: Flat, step: StepOf) -> str:
    """Which ranks have ``step``; "" where all that have a timeline do."""
    have = flat.ranks_in(step)
    timed = [n for n, ids in zip(flat.ranks, flat.steps_of, strict=True) if ids]
    if len(have) == len(timed):
        return ""
    if len(have) == sum(process_of(number) == step.process for number in timed):
        return f" of process {step.process}" if len(have) > 1 else f" of rank {rank_text(have[0])}"
    names = ", ".join(map(rank_text, have[:_NAMED]))
    more = f" and {len(have) - _NAMED} more" if len(have) > _NAMED else ""
    return f" of rank {names}{more} alone"
