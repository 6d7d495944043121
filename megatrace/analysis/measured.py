"""One side of a comparison: what each step of a capture took, by layer, role and class."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from megatrace.analysis import views
from megatrace.analysis.columns import CLASSES, UNKNOWN
from megatrace.analysis.numbers import BOTH, numbers_of
from megatrace.analysis.summary import sms_recorded
from megatrace.analysis.trace import Trace
from megatrace.analysis.walls import whole_launches
from megatrace.analysis.windows import SMALL_LINES, Progress, windows
from megatrace.capture.reader import Capture

LAUNCH = "launch"
"""``what`` of a launch's whole duration; every other is a class of a warp's time."""
ALL_LAYERS = -1
_STEPS = 1 << 40
STEP, ONE_LAUNCH = "step", "launch"
_KEYS = [*BOTH, "launch_no"]
_CELL = ["block", "kernel", "layer", "role", "what"]


@dataclass(frozen=True, slots=True)
class Side:
    """What one capture gives to a comparison.

    ``values``: block, kernel, layer, role, what, ns: of each block the mean over its
    launches; of a class the mean over the warps of the role. ``blocks_by`` says what a
    block is: ``step``, or ``launch`` where the capture has one step.
    """

    path: str
    devices: tuple[str, ...]
    """``cpu``, ``cuda`` or both."""
    sms: str
    """``2 of 132 SMs recorded``; "" where all were asked for."""
    gpus: tuple[str, ...]
    """Names of the GPUs of its machine, where it says them."""
    ranks: int
    processes: int
    steps: int
    launches: int
    left_out: int
    """Launches of which a warp is missing or lost records: they are not in ``values``."""
    complete: bool
    problems: tuple[str, ...]
    loss: str
    clock_error_ns: int
    """Of the launches' times, the largest; -1: not known."""
    blocks_by: str
    events: tuple[str, ...]
    """Hashes of its tables of events."""
    grid_blocks: float
    """Blocks of the grid that a launch left records of, in the median; NaN: no launch."""
    tokens: float
    """Rows of a step, in the median; NaN where no host says."""
    experts: float
    """Different experts of a launch, in the mean; NaN where no kernel counts them."""
    values: pd.DataFrame

    @property
    def gpu_names(self) -> str:
        """In words."""
        return ", ".join(self.gpus) or "unknown"

    @property
    def cpu(self) -> bool:
        """Whether any of it ran in the host build."""
        return "cpu" in self.devices


@dataclass(slots=True)
class _Gathered:
    launches: list[pd.DataFrame]
    classes: list[pd.DataFrame]
    experts: list[pd.Series[int]]
    tokens: list[pd.Series[int]]
    last: Trace | None = None

    def add(self, trace: Trace) -> None:
        """Keep of a window what the comparison needs: no record."""
        self.launches.append(views.launch_times(trace))
        self.classes.append(_classes(trace))
        self.experts.append(views.expert_traffic(trace)["distinct_experts"])
        self.tokens.append(trace.host["tokens"][trace.host["tokens"] > 0])
        self.last = trace


def measure(
    capture: Capture, progress: Progress | None = None, *, small_lines: int = SMALL_LINES
) -> Side:
    """Read a capture, step by step from ``small_lines`` lines on.

    Raises SchemaMismatch and FormatError where a table of events cannot be read.
    """
    gathered = _Gathered([], [], [], [])
    for trace in windows(capture, progress, small_lines=small_lines):
        gathered.add(trace)
    return _side(capture, gathered)


def _side(capture: Capture, gathered: _Gathered) -> Side:
    times = pd.concat(gathered.launches, ignore_index=True)
    whole = times[whole_launches(times)]
    steps = _step(whole)[whole["step"] > 0].nunique()
    by = STEP if steps > 1 else ONE_LAUNCH
    trace = gathered.last
    assert trace is not None
    experts = pd.concat(gathered.experts, ignore_index=True)
    return Side(
        path=str(capture.path),
        devices=tuple(sorted(set(trace.devices.values()))),
        sms=sms_recorded(capture).text,
        gpus=_gpus(capture),
        ranks=times["rank"].nunique(),
        processes=len(np.unique(numbers_of(times))),
        steps=steps,
        launches=len(whole),
        left_out=len(times) - len(whole),
        complete=capture.complete,
        problems=tuple(capture.problems),
        loss=trace.loss.sentence(),
        clock_error_ns=int(whole["clock_error_ns"].max()) if len(whole) else -1,
        blocks_by=by,
        events=tuple(sorted({f"{table.hash:016x}" for table in trace.tables.values()})),
        grid_blocks=_median(whole["blocks_seen"]),
        tokens=_median(pd.concat(gathered.tokens)),
        experts=float(experts.mean()) if len(experts) else np.nan,
        values=_values(whole, pd.concat(gathered.classes, ignore_index=True), by),
    )


def _step(times: pd.DataFrame) -> pd.Series[int]:
    """Step of each launch, apart for each process of a rank: all count from 1."""
    return times["step"] + (times["process"].astype(np.int64) - 1) * _STEPS


def _classes(trace: Trace) -> pd.DataFrame:
    """Time of each role and class of each launch: the mean over the role's warps, 0 included."""
    found = views.stall_classes(trace)
    found = found[found["class"] != UNKNOWN]
    keys = [*_KEYS, "role"]
    total = found.groupby([*keys, "class"], observed=True)["dur_ns"].sum().unstack(fill_value=0)
    total.columns = total.columns.astype(str)
    total = total.reindex(columns=[c for c in CLASSES if c != UNKNOWN], fill_value=0)
    warps = trace.launches.rename(columns={"launch": "launch_no"}).groupby(keys, observed=True)
    mean = total.div(warps.size().reindex(total.index), axis=0)
    long = mean.melt(ignore_index=False, var_name="what", value_name="ns").reset_index()
    long["role"] = long["role"].astype(str)
    return long


def _values(whole: pd.DataFrame, classes: pd.DataFrame, by: str) -> pd.DataFrame:
    """``Side.values``."""
    of = whole[[*_KEYS, "step", "kernel", "layer"]].copy()
    of["kernel"] = of["kernel"].astype(str)
    of["block"] = _step(of) if by == STEP else np.arange(len(of))
    if by == STEP:
        of = of[of["step"] > 0]  # launches of no step are no block
    walls = whole[_KEYS].assign(role="", what=LAUNCH, ns=whole["dur_ns"].astype(float))
    rows = pd.concat([walls, classes], ignore_index=True).merge(of, on=_KEYS)
    cells = rows.groupby(_CELL, sort=False)["ns"].mean()
    return cells.reset_index()


def _gpus(capture: Capture) -> tuple[str, ...]:
    names = set()
    for row in capture.facts("fact"):
        if row.fields.get("name") == "gpus":
            value = row.fields.get("value")
            found = value.get("gpus", ()) if isinstance(value, dict) else ()
            names |= {str(gpu.get("name")) for gpu in found if isinstance(gpu, dict)}
    return tuple(sorted(names))


def _median(values: pd.Series[int]) -> float:
    return float(values.median()) if len(values) else np.nan
