"""A capture, step by step or as a whole."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from megatrace.errors import MegatraceError
from megatrace.tui.model import F8, Frame, RankState, Status
from megatrace.tui.reading import CPU_NOTE, LEVELS, MAX_POINTS

if TYPE_CHECKING:
    import pandas as pd

    from megatrace.analysis.report import HostStepRow
    from megatrace.capture.reader import Capture
    from megatrace.tui.flat import EventSum, Flat
    from megatrace.tui.lanes import Lanes

Ints = NDArray[np.int64]

TINY_NOTE = "tiny: fewer than {} launches a layer; medians say little"
_FEW = 3


@dataclass(frozen=True, slots=True)
class LaunchFloors:
    """Launches whose fraction of the floor is known: places in Flat ``(n,)``, and the fraction."""

    rank: Ints
    step: Ints
    layer: Ints
    fraction: F8


@dataclass(slots=True)
class _Loaded:
    """What the reading thread leaves."""

    flat: Flat | None = None
    capture: Capture | None = None
    hosts: tuple[HostStepRow, ...] = ()
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
        self.step: int | None = None
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
    def steps(self) -> tuple[int, ...]:
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

    def turn(self, by: int) -> None:
        """Show the step ``by`` further on; before the first and after the last are all."""
        steps: list[int | None] = [None, *self.steps]
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
            from megatrace.analysis.server import host_step_rows
            from megatrace.capture.reader import open_capture
            from megatrace.tui.flat import load

            capture = open_capture(self.path)
            flat = load(capture, self._progress)
            self._loaded.hosts = host_step_rows(capture)
            self._loaded.counters = bool(len(capture.counters().slot))
            self._loaded.capture = capture
            self._loaded.flat = flat
            self._read_floors(capture, flat)
        except MegatraceError as error:
            self._loaded.error = error

    def _read_floors(self, capture: Capture, flat: Flat) -> None:
        """Another reading, where the capture says bytes: the tables stand by then."""
        import pandas as pd

        from megatrace.analysis.floor_text import bounds_text
        from megatrace.analysis.floors import part_recorded, why_not
        from megatrace.analysis.traffic import Bandwidth, Traffic, floor
        from megatrace.analysis.windows import windows

        given = self._bandwidth
        traffic = Traffic.of(capture, None if given is None else Bandwidth(given))
        why = why_not(capture, traffic)
        if why:
            self._loaded.no_floor = why if traffic.said or given is not None else ""
            return
        frames = [floor(trace, traffic) for trace in windows(capture)]
        if any((frame["fraction"] >= 0).any() for frame in frames):
            part = part_recorded(pd.concat(frames))
            self._loaded.bounds = tuple(bounds_text(part, traffic.left_out))
        self._loaded.floors = _floors_of(flat, frames)

    def _progress(self, share: float) -> None:
        self._loaded.share = share

    def _span(self) -> str:
        if self.step is not None:
            return f"step {self.step}" if self.step else "launches without a step id"
        many = len(self.steps)
        return f"all {many:,} steps" if many != 1 else "its one step"

    def _status(self, loaded: _Loaded) -> Status:
        flat, capture = loaded.flat, loaded.capture
        assert flat is not None
        assert capture is not None
        steps = [row for row in loaded.hosts if row.event == "step"]
        took = capture.end.fields.get("elapsed_s") if capture.end else None
        seen = max((row.count for row in steps), default=0)
        accept = [r.accept_length for r in loaded.hosts if r.accept_length is not None]
        rate = 1000 / steps[0].median_ms if steps and steps[0].median_ms > 0 else None
        options = next((row.fields.get("options") for row in capture.facts("capture")), None)
        level = options.get("level") if isinstance(options, dict) else None
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
                *_notes(capture, flat, took, counters=loaded.counters, no_floor=loaded.no_floor),
                *loaded.bounds,
            ),
        )

    def _rank(self, flat: Flat, at: int) -> RankState:
        error = flat.clock_error_ns[at]
        seen, lost = flat.lines[at]
        mine = [r for r in self._loaded.hosts if r.rank == flat.ranks[at] and r.event == "step"]
        rate = 1000 / mine[0].median_ms if mine and mine[0].median_ms > 0 else None
        return RankState(
            rank=flat.ranks[at],
            steps_per_s=rate,
            lines_read=seen,
            lines_lost=lost,
            clock_error_ns=None if error != error else error,
        )


def _notes(
    capture: Capture, flat: Flat, took: object, *, counters: bool, no_floor: str
) -> list[str]:
    """What the reader must know of this capture before its numbers."""
    notes = [f"incomplete: {problem}" for problem in flat.problems[:3]]
    if not capture.complete and not notes:
        why = "recovered after its recorder was killed" if capture.recovered else "cut short"
        notes.append(f"incomplete: {why}; what it lacks is unknown")
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


def _floors_of(flat: Flat, frames: Sequence[pd.DataFrame]) -> LaunchFloors:
    ranks = {rank: at for at, rank in enumerate(flat.ranks)}
    layers = {layer: at for at, layer in enumerate(flat.layers)}
    rows = [
        (ranks[rank], step, layers[kernel, layer], fraction)
        for frame in frames
        for rank, step, kernel, layer, fraction in frame.loc[
            frame["fraction"] >= 0, ["rank", "step", "kernel", "layer", "fraction"]
        ].itertuples(index=False)
    ]
    places, fraction = np.array(rows, float).reshape(-1, 4)[:, :3], [row[3] for row in rows]
    rank, step, layer = places.astype(np.int64).T
    return LaunchFloors(rank, step, layer, np.array(fraction, float))


def frame_of(flat: Flat, step: int | None, floors: LaunchFloors | None = None) -> Frame:
    """Tables of one step, or of all."""
    shape = (len(flat.ranks), len(flat.layers), len(flat.roles))
    order = sorted(range(len(flat.layers)), key=lambda i: flat.layers[i])
    place_of: Ints = np.argsort(np.array(order, np.int64)).astype(np.int64)
    warps, walls, asked = flat.warps, flat.walls, flat.prefetches
    mine = slice(None) if step is None else warps.step == step
    layer = place_of[warps.layer[mine]]
    group = (warps.rank[mine] * shape[1] + layer) * shape[2] + warps.role[mine]
    places, place_stalled, place_busy = places_of(flat, step, None)
    of = slice(None) if step is None else asked.step == step
    issued = asked.rank[of] * shape[1] + place_of[asked.layer[of]]
    late, early = asked.late[of], asked.early[of]
    two = shape[:2]
    wall = _medians(walls.rank, place_of[walls.layer], walls.step, walls.wall, two, step)
    return Frame(
        ranks=flat.ranks,
        layers=tuple(flat.layers[i] for i in order),
        roles=flat.roles,
        places=places,
        place_kind="SM",
        time=wall,
        stalled=_by_cause(group, warps.stalled[mine], shape),
        busy=_sum(group, warps.dur[mine], shape),
        launches=_sum(group, None, shape),
        uses=_sum(issued, None, two),
        late=_sum(issued, late.astype(np.float64), two),
        late_time=_sum(issued, np.where(late, asked.time[of], 0.0), two),
        unseen=_sum(issued, (~late & ~early).astype(np.float64), two),
        place_stalled=place_stalled,
        place_busy=place_busy,
        series=_series(flat, place_of, two),
        floor=None
        if floors is None
        else _medians(floors.rank, place_of[floors.layer], floors.step, floors.fraction, two, step),
    )


def places_of(flat: Flat, step: int | None, layer: int | None) -> tuple[tuple[int, ...], F8, F8]:
    """SMs, and by rank, SM and role the time stalled by cause and the time spent."""
    warps = flat.warps
    mine = np.ones(len(warps.rank), bool)
    if step is not None:
        mine &= warps.step == step
    if layer is not None:
        mine &= warps.layer == layer
    sms, sm = np.unique(warps.sm[mine], return_inverse=True)
    shape = (len(flat.ranks), len(sms), len(flat.roles))
    group = (warps.rank[mine] * shape[1] + sm) * shape[2] + warps.role[mine]
    stalled = _by_cause(group, warps.stalled[mine], shape)
    return tuple(sms.tolist()), stalled, _sum(group, warps.dur[mine], shape)


def _sum(group: Ints, values: F8 | None, shape: tuple[int, ...]) -> F8:
    size = int(np.prod(shape))
    return np.bincount(group, values, size).astype(np.float64).reshape(shape)


def _by_cause(group: Ints, stalled: F8, shape: tuple[int, ...]) -> F8:
    return np.stack([_sum(group, column, shape) for column in stalled.T], axis=-1)


def _medians(
    rank: Ints, layer: Ints, of_step: Ints, wall: F8, shape: tuple[int, int], step: int | None
) -> F8:
    """Median time of a launch, by rank and layer; nan where there is none."""
    out = np.full(shape, np.nan)
    mine = slice(None) if step is None else of_step == step
    group = (rank * shape[1] + layer)[mine]
    order = np.lexsort((wall[mine], group))
    values, sorted_group = wall[mine][order], group[order]
    if len(order):
        starts = np.flatnonzero(np.diff(sorted_group, prepend=-1))
        for group_values, at in zip(np.split(values, starts[1:]), starts, strict=True):
            out.reshape(-1)[sorted_group[at]] = np.median(group_values)
    return out


def _series(flat: Flat, place_of: Ints, shape: tuple[int, int]) -> F8:
    """Time of a launch step by step; of many steps, the means of equal runs of them."""
    walls = flat.walls
    many = min(len(flat.steps), MAX_POINTS)
    if not many:
        return np.zeros((*shape, 0))
    point = np.searchsorted(np.array(flat.steps), walls.step) * many // len(flat.steps)
    group = (walls.rank * shape[1] + place_of[walls.layer]) * many + point
    total = _sum(group, walls.wall, (*shape, many))
    with np.errstate(invalid="ignore"):
        series: F8 = total / _sum(group, None, (*shape, many))
    return series
