"""A recorded capture whose program said other facts of the floor, or none."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from megatrace.capture.layout import TableId
from megatrace.capture.scan import scan
from megatrace.capture.writer import CaptureWriter
from megatrace.muse.config import RELEASED
from megatrace.muse.plan import launch_bytes
from megatrace.schema.traffic import COPY_BANDWIDTH, LAUNCH_BYTES

BLOCKS = Path(__file__).parent / "muse" / "h200_blocks.mtr"
MEASURED = {"bytes_per_s": 4.2e12, "how": "a copy of 2 GiB"}


def with_floor(path: Path, *, bandwidth: bool = True) -> Path:
    """The megakernel of ``BLOCKS`` on an H200, with the bytes of its layers at those sizes."""
    model = replace(RELEASED, layers=RELEASED.layers[:3])
    rank = model.shard(0, 8, shard_projections=True)
    said = launch_bytes(model, rank, ["nvfp4"] * 3, context=4096, rows=16)
    facts: dict[str, object] = {LAUNCH_BYTES: said.to_fact()}
    return with_facts(path, BLOCKS, facts | ({COPY_BANDWIDTH: MEASURED} if bandwidth else {}))


def without_floor(path: Path) -> Path:
    """The same, of a program that said nothing of what a launch must read."""
    return with_facts(path, BLOCKS, {})


def with_facts(path: Path, source: Path, facts: dict[str, object]) -> Path:
    """``source`` again, with these facts of rank 0 and no others of the floor."""
    writer = CaptureWriter(path)
    for batch in scan(source.read_bytes()).batches:
        meta = batch.meta() if batch.table is TableId.META else {}
        if meta.get("kind") == "end" or meta.get("name") in (LAUNCH_BYTES, COPY_BANDWIDTH):
            continue
        writer.copy_batch(batch)
    for name, value in facts.items():
        writer.write_meta("fact", 0, name=name, process="rank0000", value=value)
    writer.finish()
    return path
