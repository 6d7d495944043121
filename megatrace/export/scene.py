"""What a trace shows, collected piece by piece before it is written."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from megatrace.export.slices import FIRST_ARG, SAMPLE, Extras, Names, Slices
from megatrace.export.tracks import Tracks
from megatrace.export.wire import I8


class Scene:
    """Tracks, slices and the strings they use.

    Slices are added in parts; :meth:`add` returns the rows of its part, by which extras
    speak of them.
    """

    def __init__(self) -> None:
        """Start empty."""
        self.tracks = Tracks()
        self._labels: dict[tuple[str, str], int] = {}
        self._args: dict[str, int] = {}
        self._text_args: set[int] = set()
        self._texts: dict[str, int] = {}
        self._parts: list[Slices] = []
        self._extras: list[Extras] = []
        self._rows = 0

    @property
    def rows(self) -> int:
        """Slices, instants and samples so far."""
        return self._rows

    def label(self, name: str, category: str = "") -> int:
        """The index of a label."""
        return self._labels.setdefault((name, category), len(self._labels))

    def add(self, track: ArrayLike, label: ArrayLike, begin_ns: ArrayLike, dur_ns: ArrayLike) -> I8:
        """Add slices, each argument an array or the same for all; returns their rows."""
        tracks, labels, begin, dur = np.broadcast_arrays(
            np.atleast_1d(np.asarray(track, np.int32)),
            np.asarray(label, np.int32),
            np.asarray(begin_ns, np.int64),
            np.asarray(dur_ns, np.int64),
        )
        part = Slices(tracks, labels, begin, dur, Extras.none())
        rows = np.arange(self._rows, self._rows + len(part))
        self._parts.append(part)
        self._rows += len(part)
        return rows

    def extra(self, rows: I8, key: int, values: ArrayLike) -> None:
        """Add one extra (see :mod:`megatrace.export.slices`) to each of ``rows``."""
        value = np.broadcast_to(np.asarray(values, np.int64), rows.shape)
        self._extras.append(Extras(rows, np.full(len(rows), key, np.int32), value))

    def arg(self, rows: I8, name: str, values: ArrayLike) -> None:
        """Add an integer argument; rows whose value is negative get none."""
        value = np.broadcast_to(np.asarray(values, np.int64), rows.shape)
        has = value >= 0
        key = FIRST_ARG + self._args.setdefault(name, len(self._args))
        self.extra(rows[has], key, value[has])

    def text_arg(self, rows: I8, name: str, text: str) -> None:
        """Add one string to all ``rows``. A name is either of strings or of integers."""
        arg = self._args.setdefault(name, len(self._args))
        self._text_args.add(arg)
        self.extra(rows, FIRST_ARG + arg, self._texts.setdefault(text, len(self._texts)))

    def samples(self, track: int, time_ns: ArrayLike, values: NDArray[np.integer]) -> None:
        """Add samples of a counter, not negative."""
        self.extra(self.add(track, self.label(""), time_ns, 0), SAMPLE, values)

    def bounds_ns(self) -> tuple[int, int]:
        """First begin and last end of everything so far."""
        begins = [int(part.begin_ns.min()) for part in self._parts if len(part)]
        ends = [int((part.begin_ns + part.dur_ns).max()) for part in self._parts if len(part)]
        return min(begins, default=0), max(ends, default=0)

    def slices(self) -> Slices:
        """Everything, in the order of adding."""
        joined = Slices.join(self._parts)
        return Slices(
            joined.track,
            joined.label,
            joined.begin_ns,
            joined.dur_ns,
            Extras.join(self._extras),
        )

    def names(self) -> Names:
        """The strings that :meth:`slices` refers to."""
        return Names(
            tuple(self._labels),
            tuple(self._args),
            tuple(self._texts),
            frozenset(self._text_args),
        )
