"""The frame of records, filled chunk by chunk: one array a column, made once for all ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from megatrace.analysis.lines import F8, HANG, I8, U4, Mask, Rows
from megatrace.analysis.rank import Rank
from megatrace.analysis.spans import pair
from megatrace.analysis.tables import CODES, own_args
from megatrace.analysis.words import Malformed, Records
from megatrace.schema import Event, Kind
from megatrace.schema.layout import ARG_MASK, SLOT_UNKNOWN
from megatrace.schema.processes import process_of, rank_of

_TIME_BITS = 46
"""Of a time since launch start: 23 bits of an epoch and the time field."""
_EVENT_COLUMNS: dict[str, Callable[[Event], str]] = {
    "event": lambda e: e.name,
    "kind": lambda e: e.kind.value,
    "cause": lambda e: e.cause.value if e.cause else "",
    "category": lambda e: e.category,
    "edge": lambda e: e.edge,
}
_OF_LAUNCH: dict[str, str] = {
    "rank": "u2", "process": "u2", "block": "i4", "warp": "i4", "role": "", "launch_row": "i8",
    "step": "i8", "kernel": "", "layer": "i4",
}  # fmt: skip
"""Columns that all records of a launch share, with their type; "": a category."""
SPARED = frozenset(_OF_LAUNCH) - {"launch_row"} | {"category"}
"""Columns that a lean frame has not: ``launches`` and the table of events say as much."""


@dataclass(frozen=True, slots=True)
class Labels:
    """The names a category column may say, in their order."""

    names: tuple[str, ...]

    @classmethod
    def of(cls, names: Iterable[str]) -> Labels:
        """Each name once."""
        return cls(tuple(dict.fromkeys(names)))

    @property
    def dtype(self) -> str:
        """Of the codes: what pandas would choose."""
        return "i1" if len(self.names) < 128 else "i2" if len(self.names) < 1 << 15 else "i4"

    def codes(self, names: Iterable[str]) -> NDArray[Any]:
        """The code of each name."""
        place = {name: i for i, name in enumerate(self.names)}
        return np.array([place[name] for name in names], self.dtype)

    def categorical(self, codes: NDArray[Any]) -> pd.Categorical:
        """A column of ``codes``."""
        dtype = pd.CategoricalDtype(pd.Index(self.names, dtype=object))
        found: pd.Categorical = pd.Categorical.from_codes(codes, dtype=dtype, validate=False)
        return found


@dataclass(frozen=True, slots=True)
class Found:
    """Records of one chunk, spans paired, in the order of the frame: by launch and time.

    ``at`` is each one's place in ``words``; ``cycles`` how long it lasted, -1 for a span
    whose end is not there; the rest is as in Records.
    """

    words: U4
    at: Rows
    event: Rows
    launch: Rows
    t: I8
    cycles: I8
    uncertain: Mask
    malformed: Malformed


def find(rank: Rank, records: Records) -> Found:
    """Pair the spans of a chunk and put its records in order, without headers and the like."""
    spans = pair(records, rank.lut)
    cycles = records.dur.copy()
    cycles[spans.begin] = np.maximum(records.t.take(spans.end) - records.t.take(spans.begin), 0)
    keep = records.event >= HANG
    keep[spans.end] = False
    keep[spans.closed] = False
    cycles[spans.open] = 0
    rows = np.flatnonzero(keep)
    launch, t = records.launch.take(rows), records.t.take(rows)
    to, source = _in_order(launch, t, cycles.take(rows))
    for values in (rows, launch, t):
        values[to] = values[source]
    cycles[spans.open] = -1
    return Found(
        records.words, records.at.take(rows), records.event.take(rows), launch, t,
        cycles.take(rows), records.uncertain, records.malformed,
    )  # fmt: skip


def _in_order(launch: Rows, t: I8, cycles: I8) -> tuple[Rows, Rows]:
    """By launch and time, longest first: which places change, and what comes there from where.

    Nearly all were written so.
    """
    if len(t) and (int(t.min()) < 0 or int(t.max()) >= 1 << _TIME_BITS):
        return np.arange(len(t)), np.lexsort((-cycles, t, launch))
    key = (launch << _TIME_BITS) + t
    if (key[1:] >= key[:-1]).all():
        tied = _tied(key)
        return tied, tied[np.lexsort((-cycles[tied], key[tied]))]
    order = np.argsort(key, kind="stable")
    key = key.take(order)
    tied = _tied(key)
    order[tied] = order[tied][np.lexsort((-cycles[order[tied]], key[tied]))]
    return np.arange(len(t)), order


def _tied(key: I8) -> Rows:
    """Places in sorted ``key`` that are like one beside them."""
    same = np.flatnonzero(key[1:] == key[:-1])
    return np.union1d(same, same + 1)


class RecordFrame:
    """Columns of the records of some ranks, filled in the order of the launches."""

    def __init__(self, ranks: Sequence[Rank], room: int, *, lean: bool = False) -> None:
        """Room for so many records; pages that stay empty are never touched.

        ``lean``: without the columns of :data:`SPARED`.
        """
        self._labels = {
            name: Labels.of(["", *(of(e) for r in ranks for _, e in sorted(r.lut.events.items()))])
            for name, of in _EVENT_COLUMNS.items()
        }
        self._labels["role"] = Labels.of(role for rank in ranks for role in rank.roles)
        self._labels["kernel"] = Labels.of(
            rank.kernel_name(kernel)
            for rank in ranks
            for kernel in np.unique(rank.scan.launches.kernel).tolist()
        )
        types = {n: kind or self._labels[n].dtype for n, kind in _OF_LAUNCH.items()}
        types |= {name: self._labels[name].dtype for name in _EVENT_COLUMNS}
        types |= dict.fromkeys(("slot", "begin_ns", "dur_ns"), "i8")
        self._width = max((rank.lut.max_args for rank in ranks), default=0)
        types |= {f"a{i}": "i8" for i in range(self._width)}
        spared = SPARED if lean else frozenset[str]()
        self._columns = {n: np.empty(room, kind) for n, kind in types.items() if n not in spared}
        self.used = 0
        """Records so far."""
        self._rank: _RankTables | None = None

    def begin(self, rank: Rank) -> None:
        """What is added from now on is of ``rank``."""
        self._rank = _RankTables(rank, self._labels, self._width)

    def place(self, found: Found, launches: Rows, launch_row: I8) -> Callable[[], None]:
        """Make room for a chunk's records; what is returned writes them.

        ``launches`` [C] of the scan are the chunk's own, at ``launch_row`` [C].
        """
        tables = self._rank
        assert tables is not None
        part = slice(self.used, self.used + len(found.at))
        self.used = part.stop
        out = {name: column[part] for name, column in self._columns.items()}
        return lambda: tables.fill(out, found, launches, launch_row)

    def frame(self) -> pd.DataFrame:
        """The frame of what was added."""
        columns: dict[str, Any] = {n: c[: self.used] for n, c in self._columns.items()}
        for name, labels in self._labels.items():
            if name in columns:
                columns[name] = labels.categorical(columns[name])
        return pd.DataFrame(columns, copy=False)


class _RankTables:
    """What turns one rank's numbers into columns."""

    def __init__(self, rank: Rank, labels: dict[str, Labels], width: int) -> None:
        assert rank.placed is not None
        self.rank, self.placed, self.width = rank, rank.placed, width
        self.by_code: dict[str, NDArray[Any]] = {}
        for name, of in _EVENT_COLUMNS.items():
            named = [""] * CODES
            for event in rank.lut.events.values():
                named[event.id] = of(event)
            self.by_code[name] = labels[name].codes(named)
        launches = rank.scan.launches
        self.role = labels["role"].codes(rank.roles)
        numbers, index = np.unique(launches.kernel, return_inverse=True)
        self.kernel = labels["kernel"].codes(map(rank.kernel_name, numbers.tolist()))[index]
        self.place = np.zeros((width, CODES), np.int64)
        """How far behind its record each of an event's own arguments is; 0: it has fewer."""
        for event in rank.lut.events.values():
            own = own_args(event)
            first = 1 if event.kind is Kind.META else 1 + len(event.all_args) - len(own)
            self.place[: len(own), event.id] = first + np.arange(len(own))

    def fill(
        self, out: dict[str, NDArray[Any]], found: Found, launches: Rows, launch_row: I8
    ) -> None:
        """Write the columns of one chunk."""
        many = np.diff(np.searchsorted(found.launch, np.arange(len(launches) + 1)))
        ring = self.rank.scan.launches.ring[launches]
        warp = ring % self.rank.warps
        shared: dict[str, Any] = {
            "block": ring // self.rank.warps,
            "warp": warp,
            "role": self.role[warp],
            "launch_row": launch_row,
            "step": self.rank.scan.launches.step[launches],
            "kernel": self.kernel[launches],
            "layer": self.rank.scan.launches.layer[launches],
        }
        if "rank" in out:
            out["rank"][:] = rank_of(self.rank.rank)
            out["process"][:] = process_of(self.rank.rank)
        for name, values in shared.items():
            if name in out:
                out[name][:] = np.repeat(values.astype(out[name].dtype, copy=False), many)
        for name, codes in self.by_code.items():
            if name in out:
                np.take(codes, found.event, out=out[name], mode="clip")
        self._times(out, found, launches, many)
        self._slots(out["slot"], found)
        for i in range(self.width):
            self._arg(out[f"a{i}"], found, i)

    def _times(self, out: dict[str, NDArray[Any]], found: Found, launches: Rows, many: I8) -> None:
        rate = np.repeat(self.placed.ns_per_cycle[launches], many)
        begin = _ns(found.t, rate)
        # Ends are rounded as begins are: what abuts in cycles does in ns.
        np.subtract(_ns(found.t + found.cycles, rate), begin, out=out["dur_ns"])
        unfinished = np.flatnonzero(found.cycles < 0)
        out["dur_ns"][unfinished] = -1
        np.add(begin, np.repeat(self.placed.begin_ns[launches], many), out=out["begin_ns"])

    def _slots(self, out: I8, found: Found) -> None:
        out[:] = -1
        if not (self.rank.lut.slot_arg >= 0).any():
            return
        where = self.rank.lut.slot_arg.take(found.event)
        for index in (0, 1):
            mine = np.flatnonzero(where == index)
            out[mine] = _args(found, mine, 1 + index)
        out[out == SLOT_UNKNOWN] = -1

    def _arg(self, out: I8, found: Found, i: int) -> None:
        """The events' own argument ``i``; -1 where an event has fewer."""
        out[:] = -1
        mine = np.flatnonzero((self.place[i] > 0).take(found.event))
        out[mine] = _args(found, mine, self.place[i].take(found.event.take(mine)))


def _args(found: Found, rows: Rows, behind: I8 | int) -> I8:
    """The words so far behind the records at ``rows``, 31 bits."""
    words = found.words.take(found.at.take(rows) + behind)
    return (words & np.uint32(ARG_MASK)).astype(np.int64)


def _ns(cycles: I8, rate: F8) -> I8:
    """Whole ns of cycles since launch start."""
    ns = cycles * rate
    return np.rint(ns, out=ns).astype(np.int64)
