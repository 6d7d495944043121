"""Puts what is sound of a damaged or unfinished capture into a new one."""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from pathlib import Path

from megatrace.capture.layout import TableId
from megatrace.capture.scan import NOT_A_CAPTURE, Scan, scan
from megatrace.capture.writer import CaptureWriter, is_locked
from megatrace.errors import CaptureError, FormatError, RecordError, TruncatedError

_SUFFIX = ".recovering"  # not ".part": that is what is being recovered


@dataclass(frozen=True, slots=True)
class Recovery:
    """What :func:`recover` kept of ``source`` in ``path``, and what it did not."""

    path: Path
    lines: int
    kept_bytes: int
    lost_bytes: int
    problems: tuple[str, ...]
    damaged_inside: bool = False
    """Bytes before the end were lost too, not only those that a killed writer left unfinished."""


def recover(part: str | Path, out: str | Path, *, force: bool = False) -> Recovery:
    """Copy every sound batch of ``part`` to ``out``, and end it with what was lost.

    Raises CaptureError where ``part`` cannot be read or holds no sound batch, RecordError
    where ``out`` exists or cannot be written.
    """
    part, out = Path(part), Path(out)
    try:
        file = memoryview(_map(part))
        found = scan(file, need_schema=False)
    except CaptureError as error:
        raise type(error)(f"{part}: {error}", hint=error.hint) from None
    if not found.batches:
        raise FormatError(
            f"{part}: {NOT_A_CAPTURE}, nor a part of one", hint="nothing to recover in it"
        )
    writer = CaptureWriter(out, force=force, part_suffix=_SUFFIX)
    try:
        kept_bytes, lines = _copy(found, writer)
        path = writer.finish(
            recovered=True,
            lost_bytes=found.skipped_bytes,
            problems=found.problems,
        )
    except BaseException:
        writer.abandon()
        raise
    unfinished = 0 if found.ended else len(file) - found.frames[-1][1]
    return Recovery(
        path,
        lines,
        kept_bytes,
        found.skipped_bytes,
        tuple(found.problems),
        damaged_inside=found.skipped_bytes > unfinished,
    )


def _map(part: Path) -> mmap.mmap:
    if is_locked(part):
        raise RecordError(f"{part} is still being written", hint="end that recording first")
    try:
        with part.open("rb") as file:
            if not part.stat().st_size:
                raise TruncatedError("it is empty", hint="nothing to recover: delete it")
            return mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    except IsADirectoryError:
        raise CaptureError("it is a directory", hint="give the name of a file in it") from None
    except (OSError, ValueError) as error:
        raise CaptureError(f"cannot read it: {error}", hint="nothing to recover") from None


def _copy(found: Scan, writer: CaptureWriter) -> tuple[int, int]:
    """Copy the batches that are what was written; the rest joins what was lost."""
    kept_bytes = lines = 0
    for batch, (begin, end) in zip(found.batches, found.frames, strict=True):
        if not batch.whole():
            what = f"{batch.rows} rows of {batch.table.name.lower()}"
            error = FormatError(f"the batch at byte {begin} ({what}) is damaged")
            found.note(error, end - begin)
            continue
        if batch.table is TableId.META and batch.meta()["kind"] == "end":
            continue  # this file gets an end of its own
        writer.copy_batch(batch)
        kept_bytes += end - begin
        lines += batch.rows if batch.table is TableId.LINES else 0
    return kept_bytes, lines
