"""The capture file while it is written; a full disk ends the writing, not the recording."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megatrace.capture.reader import open_capture
from megatrace.capture.writer import CaptureWriter
from megatrace.errors import CaptureError, RecordError


class Sink:
    """Writes to one capture until that fails.

    Attributes:
        failure: why nothing is written any more; None while all is well.
        lines_dropped: lines that came after that.
    """

    def __init__(self, path: Path, *, force: bool = False) -> None:
        """Open ``path``; raises RecordError where it exists or cannot be made."""
        self.path = path
        self._writer = CaptureWriter(path, force=force)
        self.failure: RecordError | None = None
        self.lines_dropped = 0
        self._lines_given = 0

    @property
    def size_bytes(self) -> int:
        """Bytes written so far."""
        return self._writer.size_bytes

    @property
    def part(self) -> Path:
        """The file while it is incomplete."""
        return self._writer.part_path

    def meta(self, kind: str, rank: int = 0, **fields: object) -> None:
        """Write one row of facts."""
        self._do(lambda: self._writer.write_meta(kind, rank=rank, **fields))

    def fact(self, rank: int, name: str, process: str, value: Mapping[str, object]) -> None:
        """Write a fact of one process."""
        self.meta("fact", rank, name=name, process=process, value=dict(value))

    def lines(self, rank: int, rings: NDArray[np.uint32], lines: NDArray[np.uint32]) -> None:
        """Write lines u4 ``(n, 32)`` of ``rings``, taken now."""
        now = time.monotonic_ns()
        self._lines_given += len(lines)
        if not self._do(lambda: self._writer.write_lines(rank, rings, lines, now)):
            self.lines_dropped += len(lines)

    def counters(self, rank: int, slots: NDArray[np.uint32], records: NDArray[Any]) -> None:
        """Write COUNTERS of ``slots``, taken now."""
        now = time.monotonic_ns()
        self._do(lambda: self._writer.write_counters(rank, slots, records, now))

    def host(self, rank: int, records: NDArray[Any]) -> None:
        """Write HOST_RECORDs."""
        self._do(lambda: self._writer.write_host(rank, records))

    def flush(self) -> None:
        """Put everything so far where a kill of this process cannot take it."""
        self._do(self._writer.flush)

    def finish(self, **totals: object) -> bool:
        """Complete the file under its name; False where it stays as ``part``."""
        if self._do(lambda: self._writer.finish(**totals)):
            return True
        self._writer.abandon()
        # Some were held back when the disk filled: the file itself knows how many it has.
        self.lines_dropped = self._lines_given - self._lines_kept()
        return False

    def _lines_kept(self) -> int:
        try:
            return len(open_capture(self.part).line_index())
        except CaptureError:
            return 0

    def abandon(self) -> None:
        """Leave no file behind: nothing was recorded."""
        self._writer.abandon()
        self.part.unlink(missing_ok=True)

    def _do(self, write: Callable[[], object]) -> bool:
        if self.failure is None:
            try:
                write()
            except RecordError as error:
                self.failure = error
        return self.failure is None
