"""THE picture of a word, a line, a ring file and a host record, drawn once.

Word, 32 bits::

    record     0 | event:8 | time:23      time: cycles since launch start, low 23 bits
    argument   1 | value:31               belongs to the record before it

Line, 128 bytes, one store of a warp: lane i holds word i::

    word   0        1 ... 15      16       17 ... 31
         number   15 words      number    15 words
         └── first half, 64 B ──┘└── second half, 64 B ──┘

    Both numbers are the running number of the line in its ring, from 1; place in the
    ring is (number - 1) % lines. A line whose halves disagree is torn or half written;
    a launch's last line may be a first half alone, its second half then keeps the
    number of an older lap (or 0). Unused places hold 0.

Launch, in a warp's ring: always begins on a new line::

    header + 8 arguments | records ... | closing + 2 arguments

Sums, 8 bytes each: a launch adds the cycles it stalled and how often, so that nothing is
ever lost and a reader samples when it likes. On the GPU they live in device memory and the
agent copies them here now and then::

    cycles << 24 | count          modulo 2**64: the reader takes differences

A warp of block b adds twice. Of its layer, in the place of block ``b % SUM_GROUPS``: a launch
ends when memory has taken its sums, and it takes them sooner where they are few lines that
another block has just had. And of its block, in the row after the layers'.

Ring file (``*.ring``), little endian::

    0        RING_HEADER
    4096     CONTROL      written by the recorder, read by the agent
    6144     ACK          written by the agent
    8192     meta         JSON, utf-8, padded with spaces
    lines_offset          [blocks * warps][lines] lines
    sums_offset           [layers + 1][causes][blocks * warps] sums
    host_offset           [host_capacity] HOST_RECORD

Host record, 128 bytes, one event of the traced process; its number (from 1) is written
last and stands at both ends.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

LAYOUT_VERSION = 1
"""Of words and lines."""
RING_VERSION = 2
"""Of the ring file, words and lines included."""
TRACER_VERSION = 2
"""Of what a kernel's tracer is handed: TraceParams and the memory behind it."""

TIME_BITS = 23
TIME_MASK = (1 << TIME_BITS) - 1
MAX_EVENT = 255
ARG_BIT = 1 << 31
ARG_MASK = ARG_BIT - 1
ARG_BITS = 31

LINE_WORDS = 32
LINE_BYTES = 4 * LINE_WORDS
HALF_WORDS = 16
RECORDS_PER_LINE = 30
RECORDS_PER_HALF = 15

HEADER_WORDS = 9
HEADER_EDGE = 1 << 9
"""In a header's time field, above the SM: its clocks were read just after a tick."""
CLOSING_WORDS = 3

KERNEL_SHIFT = 16
LAYER_MASK = (1 << KERNEL_SHIFT) - 1

COUNTER_BYTES = 64
SUM_BYTES = 8
COUNT_BITS = 24
"""Low bits of a sum that hold the count."""
CAUSE_SLOTS = 4
SUM_GROUPS = 8
"""Blocks this far apart share their sums of a layer; a power of two."""

SM_MASK_WORDS = 8
"""Words of the SM mask: 256 SMs."""

RING_MAGIC = b"MEGATRCE"
CONTROL_OFFSET = 4096
ACK_OFFSET = 6144
META_OFFSET = 8192

LEVEL_OFF, LEVEL_COUNTERS, LEVEL_TIMELINE = 0, 1, 2

RING_HEADER = np.dtype(
    [
        ("magic", "S8"),
        ("version", "<u4"),  # RING_VERSION
        ("state", "<u4"),  # 0 being made, 1 live, 2 closed by its owner
        ("table_hash", "<u8"),
        ("total_bytes", "<u8"),
        ("meta_bytes", "<u8"),
        ("lines_offset", "<u8"),
        ("sums_offset", "<u8"),
        ("host_offset", "<u8"),
        ("rank", "<u4"),
        ("pid", "<u4"),
        ("blocks", "<u4"),
        ("warps", "<u4"),
        ("lines", "<u4"),  # lines a warp, a power of two; 0: host records only
        ("layers", "<u4"),
        ("host_capacity", "<u4"),
        ("device", "<u4"),  # 0 cpu (host build), 1 cuda
        ("created_ns", "<i8"),  # CLOCK_REALTIME
        ("created_mono_ns", "<i8"),  # CLOCK_MONOTONIC, read with it
    ]
)

CONTROL = np.dtype(
    [
        ("seq", "<u4"),  # sequence lock: odd while being written
        ("level", "<u4"),  # LEVEL_*: the most any step may record
        ("every_n", "<u4"),  # timeline on one step in N
        ("burst", "<u4"),  # timeline on so many steps from the next, once a change
        ("window_begin", "<u8"),  # timeline only on steps in [begin, end) ...
        ("window_end", "<u8"),  # ... where end is not 0
        ("sm_mask", "<u4", (SM_MASK_WORDS,)),  # SMs that record, bit a SM
        ("timeline_limit", "<u8"),  # begin no more timeline steps than so many; 0: no limit
        ("counters_every", "<u4"),  # of the other steps, counters on one in N; 0 as 1
        ("pad", "<u4"),
    ]
)

ACK = np.dtype(
    [
        ("seq", "<u4"),  # CONTROL.seq last applied
        ("level", "<u4"),  # level of the step in progress
        ("step", "<u8"),  # its id
        ("timeline_steps", "<u8"),  # steps begun with a timeline so far
        ("host_records", "<u8"),  # host records written so far
        ("window_open", "<u4"),  # 1 while a start_profile window is open
        ("pad", "<u4"),
    ]
)

# One sample of a (layer, warp)'s sums, unrolled: as the recorder writes it.
COUNTERS = np.dtype(
    [
        ("seq", "<u4"),  # samples of this slot, from 1
        ("pad", "<u4"),
        ("cycles", "<u8", (CAUSE_SLOTS,)),
        ("count", "<u4", (CAUSE_SLOTS,)),
        ("count_high", "<u2", (CAUSE_SLOTS,)),  # of the count, above its 32 bits
    ]
)


def stall_counts(counters: NDArray[Any]) -> NDArray[np.uint64]:
    """How often each of ``counters`` (COUNTERS) stalled, by cause: ``(..., causes)``."""
    counts: NDArray[np.uint64] = counters["count_high"].astype(np.uint64) << np.uint64(32)
    counts |= counters["count"]
    return counts


HOST_TEXT_BYTES = 56

HOST_RECORD = np.dtype(
    [
        ("number", "<u4"),
        ("event", "<u2"),
        ("text_bytes", "<u2"),
        ("begin_ns", "<i8"),  # CLOCK_MONOTONIC
        ("end_ns", "<i8"),
        ("step", "<i8"),
        ("values", "<i8", (4,)),
        ("text", "V56"),
        ("pad", "<u4"),
        ("number_end", "<u4"),
    ]
)

# What the device reads at the entry of a launch, and what it keeps between launches.
DEVICE_CONTROL = np.dtype(
    [
        ("step", "<u4"),
        ("level", "<u4"),
        ("pad", "<u4", (2,)),
        ("sm_mask", "<u4", (SM_MASK_WORDS,)),
        ("pad2", "<u4", (4,)),
    ]
)
CURSOR_BYTES = 16
"""A warp's cursor in device memory: lines, words and launches so far, one spare."""

CONTROL_SOME_SMS = 1 << 8
"""Beside the level in DEVICE_CONTROL: not all SMs record, the mask counts."""
CONTROL_RESTS = 1 << 9
"""Beside it: the step keeps nothing, and only a wait that hangs says so."""
LEVEL_MASK = 0xFF
SLOT_UNKNOWN = ARG_MASK
"""In a hang's ``slot``: a step that rested does not know whom it waits for."""

assert COUNTERS.itemsize == COUNTER_BYTES
assert HOST_RECORD.itemsize == LINE_BYTES
assert DEVICE_CONTROL.itemsize == 64
assert RING_HEADER.itemsize <= CONTROL_OFFSET


def record_word(event: int, time: int) -> int:
    """The record word of ``event`` at ``time`` cycles since launch start."""
    return (event << TIME_BITS) | (time & TIME_MASK)


def arg_word(value: int) -> int:
    """The argument word of ``value``, low 31 bits."""
    return ARG_BIT | (value & ARG_MASK)
