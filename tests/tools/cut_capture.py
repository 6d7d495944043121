"""Cuts a capture of a whole GPU to some of its blocks, for test data that is small and real.

    python -m tests.tools.cut_capture RUN.mtr OUT.mtr 0 8

Every fact and host record stays, of lines and counters those of the blocks. The options that the
capture states name the SMs that are left, so that every view says how many there are; where
it was made is not told.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from megatrace.analysis import decode
from megatrace.capture.reader import open_capture
from megatrace.capture.writer import CaptureWriter


def cut(source: Path, target: Path, blocks: list[int]) -> None:
    """Write what ``blocks`` said to ``target``, which must not be there; captures of one rank."""
    with open_capture(source) as capture:
        (ring,) = capture.facts("ring")
        warps, every = ring.fields["warps"], ring.fields["blocks"] * ring.fields["warps"]
        rings = np.concatenate([np.arange(block * warps, (block + 1) * warps) for block in blocks])
        index, counters = capture.line_index(), capture.counters()
        rows = np.flatnonzero(np.isin(index.ring, rings))
        kept = np.flatnonzero(np.isin(counters.slot % every, rings))
        sms = np.unique(decode(capture, rings=rings.tolist()).launches["sm"]).tolist()
        writer = CaptureWriter(target)
        for kind in ("capture", "ring", "fact", "child"):
            for fact in capture.facts(kind):
                fields = dict(fact.fields)
                if kind == "capture":
                    fields["options"] = {**fields["options"], "sms": sms}
                    fields["environment"] = {**fields["environment"], "cwd": "/home/user/megatrace"}
                writer.write_meta(kind, fact.rank, **fields)
        writer.write_lines(ring.rank, index.ring[rows], capture.gather(rows), 0)
        writer.write_counters(ring.rank, counters.slot[kept], counters.records[kept], 0)
        writer.write_host(ring.rank, capture.host().records, 0)
        (loss,) = capture.facts("loss")
        writer.write_meta("loss", loss.rank, **{**loss.fields, "read": len(rows)})
        writer.finish()


if __name__ == "__main__":
    cut(Path(sys.argv[1]), Path(sys.argv[2]), [int(block) for block in sys.argv[3:]])
