"""Finds the batches of a mapped capture, past what is damaged."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field

from megatrace.capture.batch import Batch, check_schema, read_batch
from megatrace.capture.frames import CONTINUATION, FrameKind, candidates, read_frame
from megatrace.errors import CaptureError, FormatError, SchemaMismatch, TruncatedError

NOT_A_CAPTURE = "not a megatrace capture"
_MARK = CONTINUATION.to_bytes(4, "little")


@dataclass(slots=True)
class Scan:
    """What a walk over the frames has found.

    Attributes:
        batches: the batches whose small columns are sound, in order.
        frames: bytes ``(begin, end)`` of each of them.
        problems: what is wrong with the file, in order.
        errors: the same as exceptions, for a strict reader.
        skipped_bytes: bytes that belong to no sound frame.
        ended: the end mark is there.
    """

    batches: list[Batch] = field(default_factory=list)
    frames: list[tuple[int, int]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    errors: list[CaptureError] = field(default_factory=list)
    skipped_bytes: int = 0
    ended: bool = False

    def note(self, error: CaptureError, skipped: int) -> None:
        """Remember what is wrong, and how many bytes of the file it takes."""
        self.errors.append(error)
        self.problems.append(f"{error} ({skipped} bytes skipped)" if skipped else str(error))
        self.skipped_bytes += skipped


def scan(file: memoryview, *, need_schema: bool = True) -> Scan:
    """Walk the frames of ``file``; damage is noted and stepped over.

    Raises FormatError where it is no capture (unless ``need_schema`` is false, and there
    is at least one batch), SchemaMismatch where it is of another version, TruncatedError
    where it ends before its first batch.
    """
    found = Scan()
    at = 0
    try:
        frame = read_frame(file, 0)
        check_schema(frame)
        at = frame.end
    except SchemaMismatch:
        raise
    except CaptureError as error:
        if need_schema and isinstance(error, TruncatedError) and _begins_well(file):
            raise
        if need_schema:
            raise FormatError(f"{NOT_A_CAPTURE}: {_why(file, error)}") from None
        at = _resume(file, 0, found, error)
    while at < len(file) and not found.ended:
        at = _step(file, at, found)
    if not found.ended:
        if not found.problems:
            found.note(TruncatedError(f"the file ends early, at byte {len(file)}"), 0)
    elif at < len(file):
        found.note(FormatError(f"bytes follow the end mark, at byte {at}"), len(file) - at)
    return found


def _begins_well(file: memoryview) -> bool:
    return file[:4] == _MARK[: len(file)]


def _why(file: memoryview, error: CaptureError) -> str:
    return str(error) if _begins_well(file) else "it does not begin as one"


def _step(file: memoryview, at: int, found: Scan) -> int:
    try:
        frame = read_frame(file, at)
        if frame.kind is FrameKind.END:
            found.ended = True
            return frame.end
        found.batches.append(read_batch(file, frame))
        found.frames.append((frame.begin, frame.end))
        return frame.end
    except CaptureError as error:
        return _resume(file, at, found, error)


def _resume(file: memoryview, at: int, found: Scan, error: CaptureError) -> int:
    """Note ``error`` at byte ``at``; the byte where the next sound frame begins, or the end."""
    place = len(file)
    with contextlib.suppress(FormatError):
        for candidate in candidates(file, at + 8):
            if _sound(file, candidate):
                place = candidate
                break
    if place == len(file) and bytes(file[-8:]) == b"\xff\xff\xff\xff\0\0\0\0" and at < place - 8:
        place -= 8
    found.note(error, place - at)
    return place


def _sound(file: memoryview, at: int) -> bool:
    try:
        return read_batch(file, read_frame(file, at)).whole()
    except CaptureError:
        return False
