"""Ring pages near the GPU that writes them: a preferred NUMA node while a file is made."""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Iterator
from contextlib import contextmanager

_SET_MEMPOLICY = {"x86_64": 238, "aarch64": 237}
_DEFAULT, _PREFERRED = 0, 1


@contextmanager
def preferred_node(node: int | None) -> Iterator[bool]:
    """Allocate this thread's new pages on ``node`` where possible; yields whether it took.

    None, a machine of one node and a kernel that refuses all mean: nothing changes.
    """
    number = _SET_MEMPOLICY.get(platform.machine())
    took = False
    if node is not None and number is not None:
        mask = ctypes.c_ulong(1 << node)
        took = _set_mempolicy(number, _PREFERRED, ctypes.byref(mask), 8 * ctypes.sizeof(mask))
    try:
        yield took
    finally:
        if took and number is not None:
            _set_mempolicy(number, _DEFAULT, None, 0)


def _set_mempolicy(number: int, mode: int, mask: object, bits: int) -> bool:
    libc = ctypes.CDLL(None)
    return bool(libc.syscall(number, mode, mask, ctypes.c_ulong(bits)) == 0)
