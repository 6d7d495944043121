"""Numbers for the rows of a report, and the sums behind them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from megatrace.analysis.counters import role_names
from megatrace.analysis.lines import F8, I8, Mask, Rows
from megatrace.analysis.rank import Rank
from megatrace.analysis.stats import Durations

EVENTS = 256
MAX_KERNEL_LAYERS = 4096
"""Of one rank; what hostile data adds beyond is one row, ``(other)``."""
OTHER = "(other)"

Key: TypeAlias = tuple[str, int, str, str]
"""Kernel, layer, role, event."""


@dataclass(slots=True)
class Numbering:
    """Names to running numbers, shared by all ranks."""

    keys: dict[Key, int] = field(default_factory=dict)

    def of(self, key: Key) -> int:
        """The number of ``key``, a new one if need be."""
        return self.keys.setdefault(key, len(self.keys))


@dataclass(frozen=True, slots=True)
class Codes:
    """Dense codes of one rank: ``(kernel_layer * roles + role) * 256 + event``."""

    kernel_layers: tuple[tuple[str, int], ...]
    roles: tuple[str, ...]
    launch_code: Rows
    """[L] ``kernel_layer * roles + role`` of each launch."""
    event_names: dict[int, str]
    mine: Mask
    """[L] Which launches are of the layers that were asked for."""

    @property
    def groups(self) -> int:
        """Number of (kernel, layer, role)."""
        return len(self.kernel_layers) * len(self.roles)

    def key(self, code: int) -> Key:
        """The names behind a code."""
        group, event = divmod(code, EVENTS)
        kernel_layer, role = divmod(group, len(self.roles))
        kernel, layer = self.kernel_layers[kernel_layer]
        return kernel, layer, self.roles[role], self.event_names.get(event, f"event {event}")


def codes_of(rank: Rank, layers: Collection[int] | None = None) -> Codes:
    """Number the kernels, layers and roles of one rank's launches; ``layers`` None: of all."""
    launches = rank.scan.launches
    packed = launches.kernel.astype(np.int64) << 16 | launches.layer
    values, index = np.unique(packed, return_inverse=True)
    names = [(rank.kernel_name(int(v) >> 16), int(v) & 0xFFFF) for v in values[:MAX_KERNEL_LAYERS]]
    if len(values) > MAX_KERNEL_LAYERS:
        names.append((OTHER, -1))
        index = np.minimum(index, MAX_KERNEL_LAYERS)
    roles = role_names(rank.roles)
    role_of_warp = np.array([roles.index(r) for r in rank.roles])
    role = role_of_warp[launches.ring % rank.warps]
    events = {e.id: e.name for e in rank.lut.events.values()}
    # Not by the names: in (other) there are launches of many layers.
    mine = np.ones(len(launches), bool) if layers is None else np.isin(launches.layer, [*layers])
    return Codes(tuple(names), roles, (index * len(roles) + role).astype(np.intp), events, mine)


@dataclass(slots=True)
class Sums:
    """Dense sums of one rank, by code."""

    codes: Codes
    numbering: Numbering
    count: I8 = field(init=False)
    unblocked: I8 = field(init=False)
    unfinished: I8 = field(init=False)
    total_ns: F8 = field(init=False)
    row_of_code: Rows = field(init=False)

    def __post_init__(self) -> None:
        """Start at zero."""
        size = self.codes.groups * EVENTS
        self.count = np.zeros(size, np.int64)
        self.unblocked = np.zeros(size, np.int64)
        self.unfinished = np.zeros(size, np.int64)
        self.total_ns = np.zeros(size)
        self.row_of_code = np.full(size, -1, np.intp)

    def rows(self, code: Rows) -> Rows:
        """Row of the report for each code [n]."""
        row = self.row_of_code[code]
        if len(row) and int(row.min()) < 0:
            for new in np.unique(code[row < 0]).tolist():
                self.row_of_code[new] = self.numbering.of(self.codes.key(new))
            row = self.row_of_code[code]
        return row

    def tally(self, into: I8, code: Rows) -> None:
        """Add 1 at each code."""
        low, counts = _counts(code)
        into[low : low + len(counts)] += counts

    def time(self, code: Rows, dur_ns: F8) -> None:
        """Add durations at their codes."""
        if len(code):
            low = int(code.min())
            sums = np.bincount(code - low, dur_ns)
            self.total_ns[low : low + len(sums)] += sums


def _counts(code: Rows) -> tuple[int, I8]:
    if not len(code):
        return 0, np.zeros(0, np.int64)
    low = int(code.min())
    return low, np.bincount(code - low)


class Tally:
    """Durations of numbered rows, with the count and total of each row."""

    def __init__(self) -> None:
        """Start empty."""
        self.durations = Durations()
        self.count: Counter[int] = Counter()
        self.total_ns: dict[int, float] = defaultdict(float)

    def add(self, row: Rows, dur_ns: F8) -> None:
        """Add durations [n] in ns to their rows."""
        self.durations.add(row, dur_ns)
        many, total = np.bincount(row), np.bincount(row, dur_ns)
        for n in np.flatnonzero(many).tolist():
            self.count[n] += int(many[n])
            self.total_ns[n] += float(total[n])


class Gathered:
    """What all ranks share while a report is made."""

    def __init__(self) -> None:
        """Start empty."""
        self.numbering = Numbering()
        self.durations = Durations()
        self.kernels = Numbering()
        self.launches: Counter[int] = Counter()
        self.walls = Tally()
        self.edges = Numbering()
        self.late = Tally()
        self.early = Tally()
        self.unseen: Counter[int] = Counter()
