"""Liveness by a held lock: a pid says nothing across containers, a lock does.

The lock belongs to an open file description of its own: the one under a mapping is
duplicated by :mod:`mmap` and would keep the lock alive in every forked child.
"""

from __future__ import annotations

import fcntl
import os
import weakref
from pathlib import Path


class HeldLock:
    """An exclusive flock on ``path``, from now until :meth:`release` or this process ends.

    A forked child gives its copy up at once, so that the lock tells of this process.
    """

    __slots__ = ("__weakref__", "_fd")

    def __init__(self, path: Path, *, wait: bool = True) -> None:
        """Take it. Raises BlockingIOError where another holds it and ``wait`` is false."""
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BaseException:
            os.close(fd)
            raise
        self._fd = fd
        mine = weakref.ref(self)
        os.register_at_fork(after_in_child=lambda: _drop(mine))

    def release(self) -> None:
        """Give the lock up; again is harmless."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        """Give the lock up."""
        if hasattr(self, "_fd"):
            self.release()


def _drop(lock: weakref.ref[HeldLock]) -> None:
    held = lock()
    if held is not None:
        held.release()


def is_held(path: Path) -> bool:
    """Whether some process holds ``path``'s lock; a missing file is held by nobody.

    What cannot be looked at (no file descriptor left, say) counts as held: it is not taken away.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(fd)
    return False
