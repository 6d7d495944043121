"""The tables of :mod:`megatrace.analysis.views`, column by column: what each says, in what unit.

Declared once: the views make their frames from this, ``megatrace tables`` prints it, and a
test holds each frame to it. Times and durations are whole ns; -1 is "not known", never NaN.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its pandas dtype, its unit ("" where it has none), one line of what it is."""

    name: str
    dtype: str
    unit: str
    doc: str


@dataclass(frozen=True, slots=True)
class Table:
    """One table: what a row of it is, and its columns in their order."""

    name: str
    doc: str
    columns: tuple[Column, ...]

    def frame(self, arrays: Mapping[str, Any]) -> pd.DataFrame:
        """The frame of ``arrays``, one for each column, all of one length."""
        out: dict[str, Any] = {}
        for column in self.columns:
            values = arrays[column.name]
            out[column.name] = (
                _category(values)
                if column.dtype == "category"
                else np.asarray(values).astype(column.dtype, copy=False)
            )
        return pd.DataFrame(out, copy=False)

    def empty(self) -> pd.DataFrame:
        """The frame of no rows."""
        return self.frame({column.name: [] for column in self.columns})


def _category(values: Any) -> pd.Categorical:
    if isinstance(values, pd.Series):
        values = values.array
    if isinstance(values, pd.Categorical):
        return values
    return pd.Categorical(np.asarray(values, object))


DATA, INPUT, PEER, SPACE = "data", "input", "peer", "space"
BEFORE_START, NOT_WAITING, TAIL, UNKNOWN = "before_start", "not_waiting", "tail", "unknown"
CLASSES: dict[str, str] = {
    DATA: "waits for bytes that it asked for: weights",
    INPUT: "waits for a result of another block of this GPU (cause input)",
    PEER: "waits for another GPU (cause peer)",
    SPACE: "waits for a free stage: its consumer is behind (cause space)",
    BEFORE_START: "the launch has begun on another warp, this one has not",
    NOT_WAITING: "works, or waits for what leaves no record: block barriers, cp.async, wgmma",
    TAIL: "it has ended, the launch has not",
    UNKNOWN: "records of this launch were lost, cut or cannot be placed",
}
"""Stall class -> what the warp does in that time. They add up to the launch's wall time."""

LATE, EARLY, NEVER_USED, NOT_SEEN, CPU = "late", "early", "never used", "not seen", "cpu"
VERDICTS: dict[str, str] = {
    LATE: "its first user was blocked for late_ns",
    EARLY: "nobody waited: it came between issue_ns and use_ns",
    NEVER_USED: "every first use leaves a word, and none did",
    NOT_SEEN: "its use leaves no word, or words were lost: nothing can be said",
    CPU: "times of the host build get no verdict",
}
"""Verdict on a prefetch -> what it means."""

WAIT_FOR_LAUNCH = "launch gap"
"""What the critical path does between two launches."""

_RANK = (
    Column("rank", "uint16", "", "Rank of the GPU."),
    Column("process", "uint16", "", "Which of its processes; 1 where it has had one."),
)
_NO = Column("launch_no", "int64", "", "Launch of that process on the GPU, numbered from 0.")
_LAUNCH = (
    *_RANK,
    _NO,
    Column("step", "int64", "", "Step id; 0 where the host says none."),
    Column("kernel", "category", "", "Kernel's name."),
    Column("layer", "int32", "", "Layer."),
)
_BLOCK = (Column("block", "int32", "", "Block of the grid."), Column("sm", "int32", "", "SM."))
_WARP = (
    *_BLOCK,
    Column("warp", "int32", "", "Warp of the block."),
    Column("role", "category", "", "Its role."),
)
_EDGE = (
    Column("event", "category", "", "Event that says so."),
    Column("edge", "category", "", "Dependency."),
    Column("slot", "int64", "", "Which of the edge's hand-offs."),
)


def _ns(name: str, doc: str) -> Column:
    return Column(name, "int64", "ns", doc)


def _count(name: str, unit: str, doc: str) -> Column:
    return Column(name, "int64", unit, doc)


LAUNCH_TIMES = Table(
    "launch_times",
    "A launch of a GPU: from its first warp in to its last warp out, of the warps recorded.",
    (
        *_LAUNCH,
        _ns("begin_ns", "First warp in, on the rank's globaltimer."),
        _ns("end_ns", "Last warp out that is known; -1: none is."),
        _ns("dur_ns", "end_ns - begin_ns; -1: not known."),
        _ns(
            "gap_ns",
            "From the end of the launch before; below 0 where they overlap, -1 also where the "
            "launch before was not recorded.",
        ),
        _count("blocks_seen", "blocks", "Blocks that left records."),
        _count("warps_seen", "warps", "Warps that left records."),
        Column("whole", "bool", "", "Each of those warps has ended and lost nothing."),
        _ns("clock_error_ns", "Times of two SMs compare to within so much; -1: not known."),
    ),
)

STALL_CLASSES = Table(
    "stall_classes",
    "A warp in a launch and a class of its time, where it is not 0. The rows of a warp add up "
    "to dur_ns of launch_times: " + "; ".join(f"{k}: {v}" for k, v in CLASSES.items()) + ".",
    (
        *_LAUNCH,
        *_WARP,
        Column("class", "category", "", "Stall class."),
        _ns("dur_ns", "Time of that class."),
        Column("share", "float64", "", "Of the launch's wall time."),
    ),
)

PREFETCH_TIMING = Table(
    "prefetch_timing",
    "A prefetch and its first use: the first wait of that block for its edge and slot that "
    "belongs to it, in this launch or a later one. A warp uses prefetches of the same edge and "
    "slot in the order in which they were issued. Verdicts: "
    + "; ".join(f"{k}: {v}" for k, v in VERDICTS.items())
    + ".",
    (
        *_LAUNCH,
        *_BLOCK,
        *_EDGE,
        _ns("issue_ns", "When it was asked for."),
        _ns("use_ns", "When its first user asked; -1: not seen used."),
        _count("use_launch_no", "", "Launch of that; -1: not seen used."),
        Column("use_layer", "int32", "", "Layer of that; -1: not seen used."),
        _ns("late_ns", "How long its first user was blocked, exact; 0: not late, -1: no use."),
        _ns("early_at_most_ns", "It came so long before its use at most; -1: late or no use."),
        Column("verdict", "category", "", "late, early, never used, not seen, cpu."),
    ),
)

SYNC_WAITS = Table(
    "sync_waits",
    "A wait for another warp's publish that blocked, and the publish that ended it: the last "
    "of its edge and slot. Who published is known only where that block was recorded.",
    (
        *_LAUNCH,
        *_WARP,
        *_EDGE,
        _ns("begin_ns", "When it began to wait."),
        _ns("dur_ns", "For how long."),
        _count("from_rank", "", "Rank of the last arriver, of the same process; -1: not known."),
        Column("from_block", "int32", "", "Its block; -1: not known."),
        Column("from_sm", "int32", "", "Its SM; -1: not known."),
        Column("from_warp", "int32", "", "Its warp; -1: not known."),
        _ns("publish_ns", "When it published, on the waiter's clock; -1: not known."),
        _ns(
            "delay_ns",
            "From the publish to the wait's end; below 0 where the publish was written down after "
            "its data was seen, or the clocks are off; -1 also where from_block is.",
        ),
    ),
)

PHASE_TIMES = Table(
    "phase_times",
    "A span event (a phase) in a launch, over all warps recorded.",
    (
        *_LAUNCH,
        Column("phase", "category", "", "Span event."),
        _ns("begin_ns", "First warp in."),
        _ns("end_ns", "Last warp out."),
        _ns("dur_ns", "First in to last out."),
        _ns("busy_ns", "Sum over warps of the time in it that they did not wait."),
        _ns("wait_ns", "Sum over warps of the time in it that they waited."),
        _count("warps", "warps", "Warps that took part."),
    ),
)

IMBALANCE = Table(
    "imbalance",
    "What one SM did in a phase of a launch, against the median of the SMs that took part.",
    (
        *_RANK,
        _NO,
        *_LAUNCH[4:],
        Column("phase", "category", "", "Span event."),
        Column("sm", "int32", "", "SM."),
        _ns("busy_ns", "Sum over its warps of the time in the phase that they did not wait."),
        Column("over_median", "float64", "", "busy_ns / median over the SMs; 0 where that is 0."),
    ),
)

STEP_TIMES = Table(
    "step_times",
    "A step or forward of the host (step, extend, decode, draft, verify, forward) with the "
    "launches of its step id; a step id that no host record tells of is a row with stage ''.",
    (
        *_RANK,
        Column("step", "int64", "", "Step id."),
        Column("stage", "category", "", "What the host did."),
        _ns("begin_ns", "On the rank's globaltimer; -1: no clock samples tie the host to it."),
        _ns("dur_ns", "How long the host took; of stage '' first launch in to last out."),
        _count("launches", "", "Launches recorded of that step id; -1: it has no timeline."),
        _ns("device_ns", "Time in which at least one of them ran; -1: it has no timeline."),
        _ns("host_gap_ns", "Since the end of the same stage before it; -1: it is the first."),
        _count("batch_size", "requests", "Requests in the batch; -1: not said."),
        _count("tokens", "tokens", "Rows of the forward; -1: not said."),
        _count("accepted", "tokens", "Accepted by this verify, bonus included; -1: not said."),
        Column("accept_length", "float64", "tokens", "accepted / batch_size; -1: not said."),
    ),
)

EXPERT_TRAFFIC = Table(
    "expert_traffic",
    "A launch that counts the experts its rows hit (counter event distinct_experts).",
    (
        *_LAUNCH,
        _count("distinct_experts", "experts", "Local experts hit: the most any block counted."),
        _ns("dur_ns", "Wall time of the launch; -1: not known."),
    ),
)

FLOOR = Table(
    "floor",
    "A launch of a kernel that says what it must read, against the time those bytes take at a "
    "bandwidth. That of a copy counts bytes read and written: a launch that only reads can be a "
    "little above it.",
    (
        *_LAUNCH,
        _count("distinct_experts", "experts", "Local experts hit; -1: not counted."),
        _ns("dur_ns", "Wall time of the launch; -1: not known."),
        _count("bytes", "bytes", "Bytes of the layer + of each expert hit; -1: not known."),
        _ns("floor_ns", "bytes / bandwidth; -1: not known."),
        Column(
            "fraction", "float64", "",
            "floor_ns / dur_ns; -1: not known, of the host build, or of a launch with a loss. "
            "Where blocks_seen < blocks it is at most this.",
        ),
        _count("blocks_seen", "blocks", "Blocks that left records; dur_ns is theirs."),
        _count("blocks", "blocks", "Blocks of the grid; -1: not known."),
        _ns("clock_error_ns", "Most a time of the launch is wrong by; -1: not known."),
    ),
)  # fmt: skip

CRITICAL_PATH = Table(
    "critical_path",
    "What the end of a launch or step waited for, in time; rows abut and add up to its time.",
    (
        *_LAUNCH,
        *_WARP,
        _ns("begin_ns", "Begin."),
        _ns("end_ns", "End."),
        _ns("dur_ns", "end_ns - begin_ns."),
        Column("what", "category", "", f"Phase, stall class, or {WAIT_FOR_LAUNCH}."),
        Column("event", "category", "", "Event of the wait or phase; '' where none says."),
        Column("why", "category", "", "Edge that led here from the row before; '': same warp."),
        _ns(
            "from_unknown_ns",
            "dur_ns of a wait for another block or GPU whose publish was not recorded: what led "
            "there may be on an SM that was not; else 0.",
        ),
    ),
)

CRITICAL_PATH_SUMS = Table(
    "critical_path_sums",
    "The rows of critical_path added up by layer, role and event, the longest first; of several "
    "steps one after another, each with shares of its own path.",
    (
        *_RANK,
        *_LAUNCH[3:],
        Column("role", "category", "", "Role of the warp."),
        *(column for column in CRITICAL_PATH.columns if column.name in ("what", "event")),
        _ns("dur_ns", "Sum."),
        Column("share", "float64", "", "Of the whole path; of several steps, of its step's."),
        _ns("from_unknown_ns", "Sum."),
        _count("times", "", "Rows of critical_path."),
    ),
)

TABLES: dict[str, Table] = {
    table.name: table
    for table in (
        STALL_CLASSES,
        PREFETCH_TIMING,
        SYNC_WAITS,
        LAUNCH_TIMES,
        PHASE_TIMES,
        IMBALANCE,
        STEP_TIMES,
        EXPERT_TRAFFIC,
        FLOOR,
        CRITICAL_PATH,
        CRITICAL_PATH_SUMS,
    )
}
"""All tables, by name."""
