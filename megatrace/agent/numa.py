"""Ring pages near the GPU that writes them: a preferred NUMA node while a file is made."""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Iterator
from contextlib import contextmanager

_GET_SET_MEMPOLICY = {"x86_64": (239, 238), "aarch64": (236, 237)}
_PREFERRED = 1
_NODES = 1024
_WORD_BITS = 8 * ctypes.sizeof(ctypes.c_ulong)
_Mask = ctypes.c_ulong * (_NODES // _WORD_BITS)


@contextmanager
def preferred_node(node: int | None) -> Iterator[bool]:
    """Allocate this thread's new pages on ``node`` where possible; yields whether it took.

    The policy before is restored. None, a node out of range and a kernel that refuses all
    mean: nothing changes.
    """
    calls = _GET_SET_MEMPOLICY.get(platform.machine())
    if node is None or calls is None or not 0 <= node < _NODES:
        yield False
        return
    get_number, set_number = calls
    libc = ctypes.CDLL(None)
    mode, before, wanted = ctypes.c_int(), _Mask(), _Mask()
    bits = ctypes.c_ulong(_NODES)
    wanted[node // _WORD_BITS] = 1 << node % _WORD_BITS
    known = libc.syscall(get_number, ctypes.byref(mode), before, bits, None, 0) == 0
    took = known and libc.syscall(set_number, _PREFERRED, wanted, bits) == 0
    try:
        yield took
    finally:
        if took:
            libc.syscall(set_number, mode, before, bits)
