"""A Trace as a file for Perfetto's viewer and trace processor."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from megatrace.analysis import Trace
from megatrace.errors import UsageError
from megatrace.export.about import clock_texts, metadata_packet, steps_text
from megatrace.export.encoder import Buffer, encode_sequence
from megatrace.export.output import check_output, output_file
from megatrace.export.picture import PerfettoOptions, Picture, draw
from megatrace.export.slices import sequences

SUFFIXES = (".pftrace", ".pftrace.gz")
Progress = Callable[[int, int], None]
_FIRST_SEQUENCE = 2
"""Descriptors and metadata are sequence 1."""


@dataclass(frozen=True, slots=True)
class ExportResult:
    """What was written, and what was not.

    Attributes:
        path: The trace.
        size_bytes: Its size.
        slices: Slices and instants in it.
        samples: Samples of counters.
        flows: Arrows.
        tracks: Tracks, lanes included.
        steps: Ids of the steps shown.
        left_out: One phrase for each thing that is not in it; empty: nothing.
        misplaced: Slices that overlapped another of their track and got a lane of their own.
        unfinished: Spans whose end is not in the capture, drawn to the end of their launch.
        clock_error_ns: How far off a time on the GPUs may be; None without launches.
        host_error_ns: How far off a time of the host may be; None where it is not shown.
        loss: What the capture itself lacks, in words.
        problems: What else was wrong with the capture.
        recorded: What was recorded, where that is a part alone; else "".
    """

    path: Path
    size_bytes: int
    slices: int
    samples: int
    flows: int
    tracks: int
    steps: tuple[int, ...]
    left_out: tuple[str, ...]
    misplaced: int
    unfinished: int
    clock_error_ns: float | None
    host_error_ns: float | None
    loss: str
    problems: tuple[str, ...]
    recorded: str = ""

    def sentence(self) -> str:
        """One line for the end of a command."""
        parts = [f"{self.slices:,} slices of {steps_text(self.steps)}", self.loss]
        parts += [self.recorded] if self.recorded else []
        if self.left_out:
            parts.append("left out: " + ", ".join(self.left_out))
        if self.misplaced:
            parts.append(f"{self.misplaced:,} overlapping slices on lanes of their own")
        if self.unfinished:
            parts.append(f"{self.unfinished:,} unfinished spans")
        return "; ".join([*parts, *clock_texts(self.clock_error_ns, self.host_error_ns)])


def export_perfetto(
    trace: Trace,
    path: Path,
    options: PerfettoOptions | None = None,
    *,
    force: bool = False,
    command: str = "",
    left_out: tuple[str, ...] = (),
    recorded: str = "",
    progress: Progress | None = None,
) -> ExportResult:
    """Write ``trace`` to ``path``, compressed where the name ends in ``.gz``.

    Args:
        trace: From :func:`megatrace.analysis.decode`.
        path: ``*.pftrace`` or ``*.pftrace.gz``; made whole or not at all, mode 0600.
        options: What goes in; by default one typical step.
        force: Whether an existing file is overwritten.
        command: What was recorded, for the row about the trace.
        left_out: What the caller has left out of ``trace``, in phrases.
        recorded: What was recorded, where that is a part alone, for the same row.
        progress: Called with (slices written, slices in all).

    Raises:
        UsageError: ``path`` has another suffix, or a step asked for is not there.
        OutputError: ``path`` exists or cannot be written.
        ClockError: Several ranks have no common clock.
    """
    if not path.name.endswith(SUFFIXES):
        raise UsageError(f"{path.name} is no name of a Perfetto trace", hint="name it *.pftrace.gz")
    check_output(path, force=force)
    options = options or PerfettoOptions()
    picture = draw(trace, options, command=command, left_out=left_out, recorded=recorded)
    with output_file(path, force=force) as file:
        for part in encoded(picture, progress):
            file.write(part)
    samples = picture.samples
    return ExportResult(
        path=path,
        size_bytes=path.stat().st_size,
        slices=len(picture.slices) - samples,
        samples=samples,
        flows=picture.flows,
        tracks=len(picture.tracks),
        steps=picture.steps,
        left_out=picture.left_out,
        misplaced=picture.misplaced,
        unfinished=picture.unfinished,
        clock_error_ns=picture.clock_error_ns,
        host_error_ns=picture.host_error_ns,
        loss=picture.facts["loss"],
        problems=trace.problems,
        recorded=recorded,
    )


def encoded(picture: Picture, progress: Progress | None = None) -> Iterator[Buffer]:
    """The bytes of the file, in parts."""
    yield picture.tracks.descriptors()
    yield metadata_packet(picture.facts, picture.edges)
    done, total = 0, len(picture.slices)
    for number, part in enumerate(sequences(picture.slices), _FIRST_SEQUENCE):
        yield from encode_sequence(number, part, picture.names)
        done += len(part)
        if progress is not None:
            progress(done, total)
