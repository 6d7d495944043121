"""What a ``.mtr`` file is: columns, kinds of rows, and the words of its metadata.

One Arrow IPC stream without compression, so that any Arrow reads it and a mapped file is
its own arrays. Every batch is of one table:

    table       data                    ring                    seq
    1 lines     128 bytes, a line       ring in its file        line number
    2 counters   64 bytes, COUNTERS     layer * rings + ring(*) its seq
    3 host      128 bytes, HOST_RECORD  0                       record number
    4 meta      empty; ``meta`` JSON    0                       0

(*) A few blocks' rings stand for all blocks: add them up by role.

``rank`` numbers a process of a rank: of its first it is the rank, see
:mod:`megatrace.schema.processes`. ``t_ns`` is CLOCK_MONOTONIC of the host when the row was
drained. Each batch carries two CRCs: over its small columns, so that a large file opens
fast, and over all of it.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np

from megatrace.schema.layout import COUNTER_BYTES, HOST_RECORD, LINE_BYTES

FORMAT_VERSION = 1
FORMAT_KEY = "megatrace"
CRC_KEY = "crc32"
HEAD_CRC_KEY = "crc32_head"
SUFFIX = ".mtr"
PART_SUFFIX = ".part"

BATCH_ROWS = 1 << 16
"""The most rows a writer puts into one batch."""
MAX_BATCH_ROWS = 1 << 24
"""The most rows a reader believes in."""

META_KINDS = ("capture", "ring", "loss", "fact", "child", "end")
"""Kinds of meta rows; ``end`` is last, and its presence says that the file is complete."""


class TableId(IntEnum):
    """The ``table`` column."""

    LINES = 1
    COUNTERS = 2
    HOST = 3
    META = 4


ROW_BYTES = {
    TableId.LINES: LINE_BYTES,
    TableId.COUNTERS: COUNTER_BYTES,
    TableId.HOST: HOST_RECORD.itemsize,
    TableId.META: 0,
}

FIXED_COLUMNS: tuple[tuple[str, np.dtype[np.generic]], ...] = (
    ("table", np.dtype("<u1")),
    ("rank", np.dtype("<u2")),
    ("ring", np.dtype("<u4")),
    ("seq", np.dtype("<u4")),
    ("t_ns", np.dtype("<i8")),
)
COLUMNS = (*(name for name, _ in FIXED_COLUMNS), "data", "meta")
