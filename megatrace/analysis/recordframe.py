"""The frame of records, filled chunk by chunk: one array a column, made once for all ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from megatrace.analysis.lines import I8, Rows
from megatrace.analysis.rank import Rank
from megatrace.analysis.spans import pair
from megatrace.analysis.tables import CODES, own_args
from megatrace.analysis.words import Records
from megatrace.schema import Event, Kind
from megatrace.schema.layout import ARG_MASK

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
    "rank": "u2", "block": "i4", "warp": "i4", "role": "", "launch_row": "i8", "step": "i8",
    "kernel": "", "layer": "i4",
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

    ``rows`` are places in ``records``, ``cycles`` how long each lasted, -1 for a span whose
    end is not there.
    """

    records: Records
    rows: Rows
    cycles: I8


def find(rank: Rank, records: Records) -> Found:
    """Pair the spans of a chunk and put its records in order."""
    spans = pair(records, rank.lut)
    cycles = records.dur.copy()
    cycles[spans.begin] = np.maximum(records.t[spans.end] - records.t[spans.begin], 0)
    keep = np.ones(len(records.at), bool)
    keep[spans.end] = False
    keep[spans.closed] = False
    cycles[spans.open] = 0
    rows = np.flatnonzero(keep)
    rows = rows[_in_order(records.launch[rows], records.t[rows], cycles[rows])]
    cycles[spans.open] = -1
    return Found(records, rows, cycles[rows])


def _in_order(launch: NDArray[np.int32], t: I8, cycles: I8) -> Rows:
    """By launch and time, longest first; nearly always how they were written."""
    if len(t) and (int(t.min()) < 0 or int(t.max()) >= 1 << _TIME_BITS):
        return np.lexsort((-cycles, t, launch))
    key = (launch.astype(np.int64) << _TIME_BITS) + t
    if (key[1:] < key[:-1]).any():
        order = np.argsort(key, kind="stable")
        key = key[order]
    else:
        order = np.arange(len(key))
    same = key[1:] == key[:-1]
    tied = np.flatnonzero(np.append(False, same) | np.append(same, False))
    order[tied] = order[tied[np.lexsort((-cycles[order[tied]], key[tied]))]]
    return order


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
        part = slice(self.used, self.used + len(found.rows))
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
        self.first, self.many = np.zeros(CODES, np.int64), np.zeros(CODES, np.int64)
        for event in rank.lut.events.values():
            own = own_args(event)
            self.many[event.id] = len(own)
            meta = event.kind is Kind.META
            self.first[event.id] = 0 if meta else len(event.all_args) - len(own)

    def fill(
        self, out: dict[str, NDArray[Any]], found: Found, launches: Rows, launch_row: I8
    ) -> None:
        """Write the columns of one chunk."""
        records, rows = found.records, found.rows
        local = records.launch[rows].astype(np.intp)
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
            out["rank"][:] = self.rank.rank
        for name, values in shared.items():
            if name not in out:
                continue
            np.take(values.astype(out[name].dtype, copy=False), local, out=out[name], mode="clip")
        event = records.event[rows]
        for name, codes in self.by_code.items():
            if name not in out:
                continue
            np.take(codes, event, out=out[name], mode="clip")
        self._times(out, found, local, launches)
        self._slots(out["slot"], records, rows, event)
        for i in range(self.width):
            self._arg(out[f"a{i}"], records, rows, event, i)

    def _times(
        self, out: dict[str, NDArray[Any]], found: Found, local: Rows, launches: Rows
    ) -> None:
        rate = self.placed.ns_per_cycle[launches][local]
        since = found.records.t[found.rows]
        begin = np.rint(since * rate).astype(np.int64)
        # Ends are rounded as begins are: what abuts in cycles does in ns.
        np.subtract(
            np.rint((since + found.cycles) * rate).astype(np.int64), begin, out=out["dur_ns"]
        )
        unfinished = found.cycles < 0
        if unfinished.any():
            out["dur_ns"][unfinished] = -1
        np.add(begin, self.placed.begin_ns[launches][local], out=out["begin_ns"])

    def _slots(self, out: I8, records: Records, rows: Rows, event: Rows) -> None:
        out[:] = -1
        where = self.rank.lut.slot_arg[event]
        for index in (0, 1):
            mine = np.flatnonzero(where == index)
            out[mine] = records.arg(rows[mine], index)

    def _arg(self, out: I8, records: Records, rows: Rows, event: Rows, i: int) -> None:
        """The events' own argument ``i``; -1 where an event has fewer."""
        out[:] = -1
        mine = np.flatnonzero(self.many[event] > i)
        at = records.at[rows[mine]] + 1 + self.first[event[mine]] + i
        out[mine] = (records.words[at] & np.uint32(ARG_MASK)).astype(np.int64)
