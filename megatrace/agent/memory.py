"""Where a kernel's control word, cursors and sums live: on the GPU or in this process."""

from __future__ import annotations

import ctypes
import mmap
from contextlib import ExitStack, suppress
from typing import Protocol

import numpy as np

from megatrace.agent.copies import LineCopies, say_unpinned, unpinned_by_wish
from megatrace.agent.cuda import Cuda
from megatrace.errors import RingError
from megatrace.ring.file import RingFile, sums_bytes
from megatrace.schema.layout import (
    CURSOR_BYTES,
    DEVICE_CONTROL,
    LINE_WORDS,
    SUM_BYTES,
)

TRACE_PARAMS_BYTES = 48
"""sizeof(TraceParams) of tracer.cuh."""

_UINT16_MAX = (1 << 16) - 1


class TraceParams(ctypes.Structure):
    """TraceParams of tracer.cuh: the last argument of a traced kernel."""

    _fields_ = (
        ("control", ctypes.c_uint64),
        ("cursors", ctypes.c_uint64),
        ("sums", ctypes.c_uint64),
        ("lines", ctypes.c_uint64),
        ("line_mask", ctypes.c_uint32),
        ("kernel_layer", ctypes.c_uint32),
        ("warps", ctypes.c_uint32),
        ("layers", ctypes.c_uint16),  # with the next one a word there
        ("block_warps", ctypes.c_uint16),
    )


assert ctypes.sizeof(TraceParams) == TRACE_PARAMS_BYTES


class TraceMemory(Protocol):
    """What the agent does with that memory."""

    params: TraceParams
    stream: int
    """A stream of the agent's own."""
    unpinned: str
    """Why the kernel does not write its lines into the ring itself; "" where it does."""

    def enter_thread(self) -> None:
        """Begin to use it on the agent's own thread."""

    def write_step(self, step: int, level: int, stream: int) -> None:
        """Say the step that the next work on ``stream`` belongs to, and its level."""

    def write_sms(self, words: tuple[int, ...], stream: int) -> None:
        """Write the mask of the SMs that record, 32 a word."""

    def settle(self) -> None:
        """Wait for what was written on the agent's own stream."""

    def publish_sums(self) -> None:
        """Bring the sums to where the recorder reads them."""

    def publish_lines(self) -> None:
        """Bring lines there too, where the kernel does not; to be called often."""

    def close(self) -> None:
        """Switch off for good: a kernel that runs again later writes nothing.

        What such a kernel still reads, control word and cursors, stays for ever.
        """

    def abandon(self) -> None:
        """Give it back before any kernel was told of it."""


def _params(ring: RingFile, control: int, cursors: int, sums: int, lines: int) -> TraceParams:
    mask, warps = int(ring.header["lines"]) - 1, int(ring.header["warps"])
    layers = int(ring.header["layers"])
    of_block = warps if warps <= _UINT16_MAX else 0
    return TraceParams(control, cursors, sums, lines, mask, 0, ring.rings, layers, of_block)


class HostMemory:
    """The host build: everything is this process's own memory, lines and sums the ring's."""

    stream = 0

    def __init__(self, ring: RingFile) -> None:
        """Make room for the cursors of ``ring``, and for its lines if it is not to be pinned."""
        self.unpinned = unpinned_by_wish()
        cursors = DEVICE_CONTROL.itemsize
        lines = cursors + ring.rings * CURSOR_BYTES
        memory = mmap.mmap(-1, lines + (ring.lines.nbytes if self.unpinned else 0))
        self._control = np.frombuffer(memory, DEVICE_CONTROL, 1)
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(memory))  # outlives this process's graphs
        control = self._control.ctypes.data
        lines_at = ring.address(int(ring.header["lines_offset"]))
        if self.unpinned:
            say_unpinned(self.unpinned, ring.lines.nbytes)
            self._copies = LineCopies(ring)
            self._lines = np.frombuffer(memory, np.uint32, offset=lines).reshape(-1, LINE_WORDS)
            lines_at = control + lines
        sums_at = ring.address(int(ring.header["sums_offset"]))
        self.params = _params(ring, control, control + cursors, sums_at, lines_at)

    def enter_thread(self) -> None:
        """Nothing to do."""

    def write_step(self, step: int, level: int, stream: int) -> None:
        """Launches run in order, so a plain store is ordered."""
        if self.unpinned:
            self._copies.expect(level)
        self._control["step"] = step & 0xFFFFFFFF
        self._control["level"] = level

    def write_sms(self, words: tuple[int, ...], stream: int) -> None:
        """A plain store, likewise."""
        self._control["sm_mask"] = words

    def settle(self) -> None:
        """Stores of this thread need no waiting for."""

    def publish_sums(self) -> None:
        """They are in the ring already."""

    def publish_lines(self, *, stopped: bool = False) -> None:
        """A copy in this process."""
        if self.unpinned and (stopped or self._copies.due()):
            self._copies.staging[:] = self._lines
            self._copies.bring_home(stopped=stopped)

    def close(self) -> None:
        """Level off, the last lines home."""
        self.write_step(0, 0, 0)
        self.publish_lines(stopped=True)

    def abandon(self) -> None:
        """It goes with the process."""


class CudaMemory:
    """A GPU: lines leave for the pinned ring, the rest stays in device memory.

    Where the driver does not pin the ring, lines stay there too, to be copied out.
    """

    def __init__(self, ring: RingFile, cuda: Cuda) -> None:
        """Pin ``ring`` and allocate; raises RingError where the driver refuses memory as well."""
        self._cuda = cuda
        self._base = ring.address(0)
        self._sums_offset = int(ring.header["sums_offset"])
        self._sums_bytes = sums_bytes(int(ring.header["layers"]), ring.rings)
        with ExitStack() as undo:
            self.unpinned, lines = self._pin(ring, undo)
            if self.unpinned:
                lines = self._keep_lines(ring, undo)
            self._lines = lines
            self._control = self._allocate(DEVICE_CONTROL.itemsize, undo)
            self._cursors = self._allocate(ring.rings * CURSOR_BYTES, undo)
            self._sums = self._allocate(max(self._sums_bytes, SUM_BYTES), undo)
            self.stream = cuda.stream()
            self._undo = undo.pop_all()
        self.params = _params(ring, self._control, self._cursors, self._sums, lines)

    def _pin(self, ring: RingFile, undo: ExitStack) -> tuple[str, int]:
        """Why it is not pinned, or where its lines are to the GPU."""
        why = unpinned_by_wish()
        if why:
            return why, 0
        try:
            base = self._cuda.register(self._base, int(ring.header["total_bytes"]))
        except RingError as error:
            return str(error), 0
        undo.callback(self._cuda.unregister, self._base)
        return "", base + int(ring.header["lines_offset"])

    def _keep_lines(self, ring: RingFile, undo: ExitStack) -> int:
        """Device memory for the lines, at most half of what is free."""
        size_bytes, free_bytes = ring.lines.nbytes, self._cuda.free_bytes()
        if size_bytes > free_bytes // 2:
            raise RingError(
                f"the ring is not pinned ({self.unpinned}), and its lines, "
                f"{size_bytes / 1e6:.0f} MB, would take more than half of the "
                f"{free_bytes / 1e6:.0f} MB that are free on the GPU",
                hint="leave more memory free, or make a smaller ring",
            )
        say_unpinned(self.unpinned, size_bytes)
        self._copies = LineCopies(ring)
        return self._allocate(size_bytes, undo)

    def _allocate(self, size_bytes: int, undo: ExitStack) -> int:
        address = self._cuda.allocate(size_bytes)
        undo.callback(self._cuda.free, address)
        return address

    def enter_thread(self) -> None:
        """The program may be capturing a graph on another one."""
        self._cuda.use_context()
        self._cuda.beside_captures()

    def write_step(self, step: int, level: int, stream: int) -> None:
        """One write of eight bytes, ordered on ``stream``."""
        if self.unpinned:
            self._copies.expect(level)
        self._cuda.write_value(self._control, (level << 32) | (step & 0xFFFFFFFF), stream)

    def write_sms(self, words: tuple[int, ...], stream: int) -> None:
        """A copy, ordered on ``stream``; rare."""
        mask = np.array(words, np.uint32)
        self._cuda.copy_to_device(self._control + 16, mask.ctypes.data, mask.nbytes, stream)

    def settle(self) -> None:
        """Wait for the agent's own stream; it holds nothing but its writes."""
        self._cuda.synchronize(self.stream)

    def publish_sums(self) -> None:
        """Copy the sums into the ring, beside all other work."""
        self._cuda.use_context()
        self._cuda.copy_to_host(
            self._base + self._sums_offset, self._sums, self._sums_bytes, self.stream
        )

    def publish_lines(self, *, stopped: bool = False) -> None:
        """Copy them out of device memory, beside all other work, and wait for that."""
        if not self.unpinned or not (stopped or self._copies.due()):
            return
        self._cuda.use_context()
        staging = self._copies.staging
        self._cuda.copy_to_host(staging.ctypes.data, self._lines, staging.nbytes, self.stream)
        self._cuda.synchronize(self.stream)
        self._copies.bring_home(stopped=stopped)

    def close(self) -> None:
        """Level off, the last sums and lines home, the ring unpinned."""
        self._cuda.use_context()
        self.write_step(0, 0, self.stream)
        self._cuda.synchronize_all()  # a kernel that still runs may write to the ring
        self.publish_sums()
        self._cuda.synchronize(self.stream)
        if self.unpinned:
            self.publish_lines(stopped=True)
            self._cuda.free(self._lines)
        else:
            self._cuda.unregister(self._base)
        self._cuda.free(self._sums)

    def abandon(self) -> None:
        """Give everything back: no kernel has been told of it."""
        with suppress(RingError):
            self._cuda.use_context()
            self._undo.close()
