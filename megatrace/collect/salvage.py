"""Rebuilds the capture of a recorder that was killed: its file, and the rings it left."""

from __future__ import annotations

import glob
import mmap
import os
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megatrace.capture.facts import ring_of
from megatrace.capture.layout import PART_SUFFIX, SUFFIX, TableId
from megatrace.capture.reader import Capture, open_capture
from megatrace.capture.recover import Recovery, recover
from megatrace.capture.scan import scan
from megatrace.capture.writer import CaptureWriter
from megatrace.collect.numbers import Numbers, Origin
from megatrace.collect.source import Source
from megatrace.errors import CaptureError, RecordError, SessionError
from megatrace.ring.session import Session
from megatrace.schema.processes import process_of, rank_of

Keys = NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class Salvage:
    """What came of a recovery.

    Attributes:
        path: the rebuilt capture.
        lines: lines in it.
        ring_lines: of these, lines that only the rings still had.
        lines_lost: lines that are nowhere any more; -1 where a ring that is gone could tell.
        lost_bytes: bytes of the old file that could not be used; ``problems`` says why.
        session: the session whose rings were read; "" where it is gone.
        program_runs: the traced program still runs.
    """

    path: Path
    lines: int
    ring_lines: int
    lines_lost: int
    lost_bytes: int
    problems: tuple[str, ...]
    session: str
    program_runs: bool
    rings_gone: tuple[str, ...] = ()
    """Rings that cannot be read any more: most often of a memfd that nobody holds."""


@dataclass(frozen=True, slots=True)
class _Left:
    """What the rings of the session still had."""

    session: str
    lines: int
    lines_lost: int
    program_runs: bool
    rings_gone: tuple[str, ...]
    lines_known: bool
    """Every line that is missing is counted in ``lines_lost``."""


def salvage(part: Path, out: Path | None = None, *, force: bool = False) -> Salvage:
    """Rebuild ``part`` as ``out`` (:func:`default_output`); ``part`` stays as it is.

    Raises CaptureError where it cannot be read, RecordError where its recorder still runs
    or ``out`` exists or cannot be written.
    """
    out = out or default_output(part)
    if part.is_dir():
        raise CaptureError(f"{part} is a directory", hint="give the name of a file in it")
    if not part.is_file():
        raise CaptureError(f"no file {part}", hint="check the path")
    if out.exists() and not force:
        raise RecordError(f"{out} exists", hint="choose another -o, or overwrite it with --force")
    # Not under the name of ``out``: its .part is most often the file being read.
    copy, full = (out.with_name(f".{out.name}.{os.getpid()}.{n}") for n in ("copy", "full"))
    try:
        recovery = recover(part, copy)
        left = _with_rings(copy, full, recovery)
        (full if left else copy).replace(out)
    except OSError as error:
        raise RecordError(
            f"cannot write {out}: {error.strerror}", hint="choose another -o"
        ) from None
    finally:
        for leftover in out.parent.glob(f".{glob.escape(out.name)}.{os.getpid()}.*"):
            leftover.unlink()
    return Salvage(
        path=out,
        lines=recovery.lines + (left.lines if left else 0),
        ring_lines=left.lines if left else 0,
        lines_lost=left.lines_lost if left and left.lines_known else -1,
        lost_bytes=recovery.lost_bytes,
        problems=recovery.problems,
        session=left.session if left else "",
        program_runs=left.program_runs if left else False,
        rings_gone=left.rings_gone if left else (),
    )


def default_output(part: Path) -> Path:
    """``run.mtr`` of ``run.mtr.part``; ``run.recovered.mtr`` of anything else."""
    if part.suffix == PART_SUFFIX:
        return part.with_suffix("")
    return part.with_name(f"{part.stem}.recovered{SUFFIX}")


def _with_rings(copy: Path, full: Path, recovery: Recovery) -> _Left | None:
    """Write ``copy`` and what its session's rings still hold to ``full``; None: no session."""
    with open_capture(copy) as capture:
        session = _session_of(capture)
        if session is None:
            return None
        writer = CaptureWriter(full)
        try:
            _copy_all(copy, writer)
            sources, gone = _sources(session, capture)
            rings = [_Remains(source, capture) for source in sources]
            told_anew = {source.rank for source in sources if source.traced}
            lost_before = sum(n for (rank, _), n in capture.loss.items() if rank not in told_anew)
            # Damage took lines of any ring, and only a ring that is read again tells of its own.
            unread = _with_lines(capture) - told_anew if recovery.damaged_inside else set()
            known = not gone and not unread
            for ring in rings:
                ring.write(writer)
            writer.finish(
                recovered=True,
                lost_bytes=recovery.lost_bytes,
                problems=recovery.problems,
                session=session.name,
                rings_gone=gone,
                lines_known=known,
            )
        except BaseException:
            writer.abandon()
            raise
    return _Left(
        session=session.name,
        lines=sum(ring.lines for ring in rings),
        lines_lost=lost_before + sum(ring.lines_lost for ring in rings),
        program_runs=session.info().live,
        rings_gone=gone,
        lines_known=known,
    )


def _with_lines(capture: Capture) -> set[int]:
    """Ranks that had a ring for kernels."""
    told = {facts.rank for row in capture.facts("ring") if (facts := ring_of(row)).traced}
    return told | set(np.unique(capture.line_index().rank).tolist())


def _session_of(capture: Capture) -> Session | None:
    """The session it was recorded from, if it is still here and nobody records it."""
    for row in capture.facts("capture"):
        path = row.fields.get("session")
        if isinstance(path, str) and os.path.isabs(path):
            with suppress(SessionError):
                session = Session.open(path)
                return None if session.info().recorded else session
    return None


def _sources(session: Session, capture: Capture) -> tuple[list[Source], tuple[str, ...]]:
    """The rings that can be read, each with the number that it has in the capture, or the next.

    And the names of those that cannot be read: they went with the last process that held their
    memfd, are damaged, or of more processes than a capture numbers.
    """
    numbers, told = Numbers(), {}
    for row in capture.facts("ring"):
        facts = ring_of(row)
        told[facts.name, facts.created_ns] = facts.rank
        origin = Origin(rank_of(facts.rank), facts.pid, facts.process, facts.traced)
        numbers.put(origin, process_of(facts.rank))
    found, gone = [], []
    for path in session.ring_paths():
        try:
            found.append(Source.open(path, control=False))
        except (SessionError, CaptureError):
            gone.append(path.stem)
    found.sort(key=lambda source: (int(source.ring.header["created_mono_ns"]), source.name))
    kept: list[Source] = []
    for source in found:
        number = told.get((source.name, int(source.ring.header["created_ns"])))
        if number is None:
            number = numbers.take(source.origin, [(one.rank, one.origin) for one in kept])
        if number is None:
            gone.append(source.name)
            source.close()
            continue
        source.rank = number
        kept.append(source)
    return kept, tuple(gone)


def _copy_all(path: Path, writer: CaptureWriter) -> None:
    """Copy every batch but the end."""
    with path.open("rb") as file:
        memory = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    for batch in scan(memoryview(memory)).batches:
        if batch.table is not TableId.META or batch.meta()["kind"] != "end":
            writer.copy_batch(batch)


class _Remains:
    """What one ring file still holds that the capture does not."""

    def __init__(self, source: Source, capture: Capture) -> None:
        self._source = source
        self._capture = capture
        self.lines = 0
        self.lines_lost = 0

    def write(self, writer: CaptureWriter) -> None:
        """Add it to ``writer`` and let the ring go."""
        source = self._source
        told = {(row.rank, row.fields.get("name")) for row in self._capture.facts("ring")}
        if (source.rank, source.name) not in told:
            writer.write_meta("ring", source.rank, **source.describe())
        if source.traced:
            self._write_lines(writer)
        source.resume_counters(*self._last_counters())
        slots, counters = source.changed_counters()
        writer.write_counters(source.rank, slots, counters, _now_ns())
        self._write_host(writer)
        source.close()

    def _last_counters(self) -> tuple[NDArray[np.uint32], NDArray[Any]]:
        """The last of each slot that the capture has: the ring alone does not tell its wraps."""
        samples = self._capture.counters()
        mine = np.flatnonzero(samples.rank == self._source.rank)[::-1]
        slots, latest = np.unique(samples.slot[mine], return_index=True)
        return slots, samples.records[mine[latest]]

    def _write_lines(self, writer: CaptureWriter) -> None:
        source = self._source
        index = self._capture.line_index()
        mine = index.rank == source.rank
        known = _keys(index.ring[mine], index.number[mine])
        seen = [known]
        final = not source.ring.owner_alive()
        budget = 2 * source.ring.lines.shape[0] * source.ring.lines.shape[1]
        while budget > 0 and len(drained := source.drain_lines(1 << 16, final=final)):
            budget -= len(drained)
            keys = _keys(drained.ring, drained.lines[:, 0])
            fresh = ~np.isin(keys, known)
            writer.write_lines(source.rank, drained.ring[fresh], drained.lines[fresh], _now_ns())
            self.lines += int(fresh.sum())
            seen.append(keys[fresh])
        lost = _missing(np.unique(np.concatenate(seen)), source.ring.rings)
        self.lines_lost = sum(lost.values())
        loss = {**source.loss(), "read": len(known) + self.lines, "lost": self.lines_lost}
        writer.write_meta("loss", source.rank, **{**loss, "rings": lost})

    def _write_host(self, writer: CaptureWriter) -> None:
        source = self._source
        host = self._capture.host()
        known = {row.tobytes() for row in host.records[host.rank == source.rank]}
        facts = {
            (row.rank, str(row.fields.get("name")), repr(row.fields.get("value")))
            for row in self._capture.facts("fact")
        }
        while (drained := source.drain_host()).records.size:
            fresh = np.array([row.tobytes() not in known for row in drained.records])
            writer.write_host(source.rank, drained.records[fresh])
            for fact in drained.facts:
                if (source.rank, fact.name, repr(fact.value)) not in facts:
                    writer.write_meta(
                        "fact",
                        source.rank,
                        name=fact.name,
                        process=source.process,
                        value=fact.value,
                    )


def _keys(rings: NDArray[np.uint32], numbers: NDArray[np.uint32]) -> Keys:
    """One number for each line: ring, then number in it."""
    return (rings.astype(np.uint64) << np.uint64(32)) | numbers


def _missing(keys: Keys, rings: int) -> dict[str, int]:
    """Ring -> lines below its newest that are not in ``keys`` (sorted, each once)."""
    ring = (keys >> np.uint64(32)).astype(np.int64)
    number = (keys & np.uint64(0xFFFFFFFF)).astype(np.int64)
    newest = np.zeros(rings, np.int64)
    np.maximum.at(newest, ring, number)
    lost = newest - np.bincount(ring, minlength=rings)
    return {str(at): int(lost[at]) for at in np.nonzero(lost > 0)[0].tolist()}


def _now_ns() -> int:
    return time.monotonic_ns()
