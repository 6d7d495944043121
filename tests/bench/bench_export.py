"""How fast slices become a Perfetto trace, against the official builder in the same run.

    python -m tests.bench.bench_export [--slices N] [--repeats R]

Both sides take turns on the same slices; each turn gives one ratio. The same code
against itself (A/A) says how much of a difference is noise. Times are of the processor,
not of the wall: others on the machine count less.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb
from perfetto.trace_builder.proto_builder import TraceProtoBuilder

from megatrace.export.encoder import encode_sequence, track_uuid
from megatrace.export.output import output_file
from megatrace.export.slices import FIRST_ARG, FLOW_OUT, Extras, Names, Slices, sequences
from megatrace.export.tracks import Track, Tracks, spread

TRACKS = 132 * 12
NAMES = 24
EPOCH_NS = 1_700_000_000_000_000_000
SEQUENCE_ID = 2
GOAL_SLICES_S, GOAL_BYTES, GOAL_RATIO = 5e6, 33, 40


def made_up(count: int) -> tuple[Slices, Names]:
    """Slices of 132 SMs x 12 warps: log-normal durations and gaps, plain names."""
    rng = np.random.default_rng(1)
    per = count // TRACKS
    dur = rng.lognormal(5.5, 1, (TRACKS, per)).astype(np.int64) + 1
    gap = rng.lognormal(4.5, 1, (TRACKS, per)).astype(np.int64)
    begin = np.cumsum(dur + gap, axis=1) - dur + EPOCH_NS
    slices = Slices(
        np.repeat(np.arange(TRACKS, dtype=np.int32), per),
        rng.integers(0, NAMES, TRACKS * per).astype(np.int32),
        begin.ravel(),
        dur.ravel(),
        Extras.none(),
    )
    return slices, Names(tuple((f"event_{i}", "") for i in range(NAMES)), ("slot",))


def tree() -> Tracks:
    """As many tracks as the slices have."""
    tracks = Tracks()
    for index in range(TRACKS):
        tracks.add(Track(f"warp {index}"))
    return tracks


def ours(slices: Slices, names: Names, tracks: Tracks) -> int:
    """Check, order and encode ``slices``; returns bytes."""
    nested, _ = spread(slices, tracks)
    return encoder(nested, names, tracks)


def encoder(slices: Slices, names: Names, tracks: Tracks) -> int:
    """Encode ``slices`` that were checked before: no more than the builder does."""
    del tracks
    return sum(
        len(part)
        for number, one in enumerate(sequences(slices), SEQUENCE_ID)
        for part in encode_sequence(number, one, names)
    )


def theirs(slices: Slices, names: Names, tracks: Tracks) -> int:
    """The same with the official builder, as its documentation has it; returns bytes."""
    del tracks
    builder = TraceProtoBuilder()

    def add_slice_event(ts: int, type_: int, uuid: int, name: str | None = None) -> None:
        packet = builder.add_packet()
        packet.timestamp = ts
        packet.track_event.type = type_
        packet.track_event.track_uuid = uuid
        if name:
            packet.track_event.name = name
        packet.trusted_packet_sequence_id = SEQUENCE_ID

    begins, ends = slices.begin_ns.tolist(), (slices.begin_ns + slices.dur_ns).tolist()
    for track, label, begin, end in zip(
        slices.track.tolist(), slices.label.tolist(), begins, ends, strict=True
    ):
        uuid, name = track_uuid(track), names.labels[label][0]
        add_slice_event(begin, pb.TrackEvent.TYPE_SLICE_BEGIN, uuid, name)
        add_slice_event(end, pb.TrackEvent.TYPE_SLICE_END, uuid)
    return len(builder.serialize())


def rate(run: Callable[[Slices, Names, Tracks], int], slices: Slices, names: Names) -> float:
    """Slices a second of one run."""
    tracks = tree()
    start = time.process_time()
    run(slices, names, tracks)
    return len(slices) / (time.process_time() - start)


def spread_text(values: list[float], form: str) -> str:
    """Median with lowest and highest."""
    low, middle, high = min(values), statistics.median(values), max(values)
    return f"{middle:{form}} ({low:{form}} to {high:{form}})"


def with_everything(slices: Slices) -> tuple[Slices, Names]:
    """Every slice with a category and a slot, every tenth with an arrow."""
    rows = np.arange(len(slices))
    slots = Extras(rows, np.full(len(rows), FIRST_ARG, np.int32), rows % 4)
    tenth = rows[::10]
    arrows = Extras(tenth, np.full(len(tenth), FLOW_OUT, np.int32), tenth + 1)
    names = Names(tuple((f"event_{i}", "stall.data") for i in range(NAMES)), ("slot",))
    return replace(slices, extras=Extras.join([slots, arrows])), names


def file_rate(slices: Slices, names: Names, suffix: str) -> tuple[float, int]:
    """Slices a second into a file, and its bytes."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"bench{suffix}"
        start = time.process_time()
        with output_file(path) as file:
            for number, one in enumerate(sequences(slices), SEQUENCE_ID):
                for part in encode_sequence(number, one, names):
                    file.write(part)
        return len(slices) / (time.process_time() - start), path.stat().st_size


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--slices", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=5)
    given = parser.parse_args()
    slices, names = made_up(given.slices)
    rate(ours, slices, names)
    checked, _ = spread(slices, tree())
    mine, again, official, ratios, noise, alone = [], [], [], [], [], []
    for _ in range(given.repeats):
        mine.append(rate(ours, slices, names))
        official.append(rate(theirs, slices, names))
        again.append(rate(ours, slices, names))
        ratios.append((mine[-1] + again[-1]) / 2 / official[-1])
        noise.append(mine[-1] / again[-1])
        alone.append(rate(encoder, checked, names) / official[-1])
    size = ours(slices, names, tree()) / len(slices)
    million = [value / 1e6 for value in mine + again]
    say = sys.stdout.write
    say(f"slices            {len(slices):,} on {TRACKS:,} tracks, {NAMES} names\n")
    say(f"ours              {spread_text(million, '.2f')} M slices/s, best counts: ")
    say(f"{max(million):.2f} (goal {GOAL_SLICES_S / 1e6:.0f})\n")
    say(f"official builder  {spread_text([v / 1e6 for v in official], '.3f')} M slices/s\n")
    say(f"ratio             {spread_text(alone, '.1f')} (goal {GOAL_RATIO})")
    say(f", {spread_text(ratios, '.1f')} with our check of nesting\n")
    say(f"A/A               {spread_text(noise, '.3f')}\n")
    say(f"bytes a slice     {size:.2f} plain (goal {GOAL_BYTES})")
    full, full_names = with_everything(slices)
    full_size = ours(full, full_names, tree()) / len(full)
    say(f", {full_size:.2f} with category, slot and 0.1 arrows\n")
    say(f"with those        {rate(ours, full, full_names) / 1e6:.2f} M slices/s\n")
    for suffix in (".pftrace", ".pftrace.gz"):
        speed, file_bytes = file_rate(slices, names, suffix)
        say(f"{suffix:17} {speed / 1e6:.2f} M slices/s, {file_bytes / len(slices):.2f} B a slice\n")


if __name__ == "__main__":
    main()
