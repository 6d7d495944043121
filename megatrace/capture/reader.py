"""Reads a capture through a mapping of its file: views, not copies."""

from __future__ import annotations

import contextlib
import copy
import mmap
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megatrace.capture.batch import Batch
from megatrace.capture.facts import MetaRow, RingFacts, loss_of, rings_of, tables_of
from megatrace.capture.layout import PART_SUFFIX, TableId
from megatrace.capture.scan import NOT_A_CAPTURE, scan
from megatrace.errors import CaptureError, FormatError, TruncatedError
from megatrace.schema.events import EventTable
from megatrace.schema.layout import COUNTERS, HOST_RECORD, LINE_BYTES, LINE_WORDS
from megatrace.schema.processes import rank_text

VERIFY_BYTES = 1 << 26
"""Files up to this size are verified when they are opened, larger ones as they are read."""


@dataclass(frozen=True, slots=True)
class LineIndex:
    """Where every line of a capture is, in file order; rows are what ``gather`` takes.

    ``rank`` u2, ``ring`` u4, ``number`` u4 and ``at`` i8 (byte of the file), all ``(n,)``.
    """

    rank: NDArray[np.uint16]
    ring: NDArray[np.uint32]
    number: NDArray[np.uint32]
    at: NDArray[np.int64]

    def __len__(self) -> int:
        """Number of lines."""
        return int(self.at.size)


@dataclass(frozen=True, slots=True)
class CounterSamples:
    """Counters in file order, all ``(n,)``.

    ``rank`` u2, ``slot`` u4 (layer * rings + ring), ``t_ns`` i8 when drained, ``records``
    COUNTERS. A few blocks' rings stand for all blocks.
    """

    rank: NDArray[np.uint16]
    slot: NDArray[np.uint32]
    t_ns: NDArray[np.int64]
    records: NDArray[Any]


@dataclass(frozen=True, slots=True)
class HostRecords:
    """Host records in file order, all ``(n,)``.

    ``rank`` u2, ``t_ns`` i8 when drained, ``records`` HOST_RECORD.
    """

    rank: NDArray[np.uint16]
    t_ns: NDArray[np.int64]
    records: NDArray[Any]


class Capture:
    """An open capture; see :func:`open_capture`.

    Attributes:
        path: the file.
        size_bytes: its size when it was opened.
        meta: all meta rows, in file order.
        rings: the facts of each rank's ring of lines.
        loss: lines lost, by (rank, ring); absent: none were.
        problems: what is wrong with the file; grows while it is read, whole after
            :meth:`verify`.
    """

    def __init__(self, path: Path, *, strict: bool = False) -> None:
        """Use :func:`open_capture`."""
        self.path = path
        self._map = _map(path)
        self.size_bytes = len(self._map)
        self._file = memoryview(self._map)
        self._strict = strict
        try:
            found = scan(self._file)
            if strict and found.errors:
                raise found.errors[0]
        except CaptureError as error:
            hint = error.hint or _hint(path)
            if str(error).startswith(NOT_A_CAPTURE):
                hint = f"give a file that megatrace record wrote; of a damaged one {hint}"
            raise type(error)(f"{path}: {error}", hint=hint) from None
        self.problems = found.problems
        self._batches = {table: [b for b in found.batches if b.table is table] for table in TableId}
        self._checked: set[int] = set()
        self._bad: set[int] = set()
        self._index: LineIndex | None = None
        if self.size_bytes <= VERIFY_BYTES or strict:
            self.verify()
        self.meta = self._read_meta()
        self.rings: dict[int, RingFacts] = rings_of(self.meta)
        self.loss: dict[tuple[int, int], int] = loss_of(self.meta)
        self._check_totals()
        self._check_copied()

    @property
    def complete(self) -> bool:
        """Whether the recorder ended the file itself and nothing is known to be wrong with it."""
        return self.end is not None and not self.recovered and not self.problems

    @property
    def end(self) -> MetaRow | None:
        """The ``end`` row, with its totals; None where the file was cut short."""
        return next((row for row in reversed(self.meta) if row.kind == "end"), None)

    @property
    def recovered(self) -> bool:
        """Whether the file was put together by :func:`megatrace.capture.recover.recover`."""
        return self.end is not None and bool(self.end.fields.get("recovered"))

    @property
    def lines_known(self) -> bool:
        """Whether all lines lost are counted: by the recorder, or by ``recover`` from all rings.

        Not where a ring could not be read again that lines of damaged bytes may have been of.
        """
        if self.end is None or self.complete:
            return self.complete
        said = self.end.fields
        known = said.get("lines_known", not said.get("rings_gone"))
        return self.recovered and bool(said.get("session")) and bool(known)

    @property
    def tables(self) -> dict[int, EventTable]:
        """Each rank's table of events. Raises SchemaMismatch, FormatError."""
        return tables_of(self.rings)

    def facts(self, kind: str) -> list[MetaRow]:
        """The meta rows of one kind."""
        return [row for row in self.meta if row.kind == kind]

    @property
    def options(self) -> dict[str, Any]:
        """What the recorder was asked for at the start; {} where the capture does not say."""
        opening = next(iter(self.facts("capture")), None)
        options = opening.fields.get("options") if opening else None
        return options if isinstance(options, dict) else {}

    def line_index(self) -> LineIndex:
        """Where all lines are; made once, 18 bytes a line."""
        if self._index is None:
            self._index = _index_of(self._good(TableId.LINES))
        return self._index

    @property
    def line_count(self) -> int:
        """Lines of all batches, damaged ones too."""
        return sum(batch.rows for batch in self._batches[TableId.LINES])

    @property
    def line_batches(self) -> int:
        """Batches of lines; :meth:`lines_of` takes their places, in file order."""
        return len(self._batches[TableId.LINES])

    def lines_of(self, batch: int) -> LineIndex:
        """Where the lines of one batch are; none of a damaged one."""
        one = self._batches[TableId.LINES][batch]
        return _index_of([one] if self._check(one) else [])

    def with_lines(self, index: LineIndex) -> Capture:
        """This capture with some lines alone: :meth:`line_index` of what it gives is ``index``.

        For what is too big for an index of all its lines. Shares the file: close this one.
        """
        part = copy.copy(self)
        part._index = index
        return part

    def gather(self, index_rows: NDArray[np.int64] | slice) -> NDArray[np.uint32]:
        """Lines u4 ``(n, 32)`` of these rows of :meth:`line_index`, in their order.

        The batches touched are verified first; a line of a bad one is all zero.
        """
        at = self.line_index().at[index_rows]
        bad = self._check_touched(at)
        every_8_bytes = np.ndarray(
            (max(0, self.size_bytes - LINE_BYTES) // 8 + 1,), f"V{LINE_BYTES}", self._file, 0, (8,)
        )
        lines: NDArray[np.uint32] = every_8_bytes[at >> 3].view(np.uint32).reshape(-1, LINE_WORDS)
        if bad is not None:
            lines[bad] = 0
        return lines

    def counters(self) -> CounterSamples:
        """All counter samples."""
        batches = self._whole(TableId.COUNTERS)
        return CounterSamples(
            _joined([b.rank for b in batches], np.uint16),
            _joined([b.ring for b in batches], np.uint32),
            _joined([b.t_ns for b in batches], np.int64),
            _joined([b.data.view(COUNTERS) for b in batches], COUNTERS),
        )

    def host(self) -> HostRecords:
        """All host records."""
        batches = self._whole(TableId.HOST)
        return HostRecords(
            _joined([b.rank for b in batches], np.uint16),
            _joined([b.t_ns for b in batches], np.int64),
            _joined([b.data.view(HOST_RECORD) for b in batches], HOST_RECORD),
        )

    def verify(self) -> list[str]:
        """Check every byte against its checksum; returns ``problems``. Raises if strict."""
        for table in TableId:
            for batch in self._batches[table]:
                self._check(batch)
        return self.problems

    def close(self) -> None:
        """Let the file go; arrays that were handed out and are views keep it mapped."""
        self._batches = {table: [] for table in TableId}
        self._index = None
        with contextlib.suppress(BufferError):
            self._file.release()
            self._map.close()

    def __enter__(self) -> Capture:
        """Return itself; closes on exit."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close."""
        self.close()

    def _good(self, table: TableId) -> list[Batch]:
        return [b for b in self._batches[table] if b.begin not in self._bad]

    def _whole(self, table: TableId) -> list[Batch]:
        return [b for b in self._batches[table] if self._check(b)]

    def _check(self, batch: Batch) -> bool:
        if batch.begin not in self._checked:
            self._checked.add(batch.begin)
            if not batch.whole():
                self._bad.add(batch.begin)
                what = f"{batch.rows} rows of {batch.table.name.lower()}"
                problem = f"the batch at byte {batch.begin} ({what}) is damaged"
                self.problems.append(problem)
                if self._strict:
                    raise FormatError(f"{self.path}: {problem}", hint=_hint(self.path))
        return batch.begin not in self._bad

    def _check_touched(self, at: NDArray[np.int64]) -> NDArray[np.bool_] | None:
        """Verify the batches that hold these bytes; which of ``at`` are in a bad one."""
        batches = self._batches[TableId.LINES]
        if len(self._checked) >= sum(map(len, self._batches.values())) and not self._bad:
            return None
        starts = np.array([b.data_at for b in batches], np.int64)
        owner = np.searchsorted(starts, at, "right") - 1
        bad = [i for i in np.unique(owner).tolist() if not self._check(batches[i])]
        return np.isin(owner, bad) if bad else None

    def _read_meta(self) -> list[MetaRow]:
        rows = []
        for batch in self._whole(TableId.META):
            try:
                rows.append(MetaRow.of(batch.meta()))
            except FormatError as error:
                self.problems.append(str(error))
        return rows

    def _check_totals(self) -> None:
        totals = self.end.fields.get("rows") if self.end is not None else None
        if isinstance(totals, dict) and not self.problems:
            for table in (TableId.LINES, TableId.COUNTERS, TableId.HOST):
                found = sum(b.rows for b in self._batches[table])
                name = table.name.lower()
                if totals.get(name) != found:
                    self.problems.append(
                        f"the end counts {totals.get(name)} {name}, here are {found}"
                    )

    def _check_copied(self) -> None:
        for row in self.facts("loss"):
            if row.fields.get("uncopied"):
                self.problems.append(
                    f"rank {rank_text(row.rank)}: its ring was not pinned and it did not end in "
                    "order: lines that were not copied out are lost, nobody knows how many"
                )


def _index_of(batches: list[Batch]) -> LineIndex:
    at = [b.data_at + LINE_BYTES * np.arange(b.rows) for b in batches]
    return LineIndex(
        _joined([b.rank for b in batches], np.uint16),
        _joined([b.ring for b in batches], np.uint32),
        _joined([b.seq for b in batches], np.uint32),
        _joined(at, np.int64),
    )


def open_capture(path: str | Path, *, strict: bool = False) -> Capture:
    """Open a capture, however incomplete: ``complete`` and ``problems`` say how it is.

    Raises CaptureError where it cannot be opened, FormatError where it is no capture,
    SchemaMismatch where it is of another format; with ``strict``, FormatError or
    TruncatedError for whatever would be a problem.
    """
    return Capture(Path(path), strict=strict)


def _map(path: Path) -> mmap.mmap:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        part = path.with_name(path.name + PART_SUFFIX)
        hint = f"megatrace recover {part}" if part.exists() else "check the path"
        raise CaptureError(f"cannot open {path}: {error.strerror}", hint=hint) from None
    try:
        facts = os.fstat(fd)
        if stat.S_ISDIR(facts.st_mode):
            raise FormatError(f"{path} is a directory", hint="give the name of a file in it")
        if facts.st_size == 0:
            raise TruncatedError(f"{path} is empty", hint="nothing was recorded in it")
        return mmap.mmap(fd, facts.st_size, prot=mmap.PROT_READ)
    except (OSError, ValueError) as error:
        raise FormatError(f"{path} cannot be mapped: {error}", hint="give a regular file") from None
    finally:
        os.close(fd)


def _hint(path: Path) -> str:
    return f"megatrace recover {path} keeps what is sound"


def _joined(parts: list[NDArray[Any]], kind: Any) -> NDArray[Any]:
    return np.concatenate(parts) if parts else np.zeros(0, kind)
