"""A ring's memory where its session's file system has no room for it: a memfd.

``<name>.ring`` is then a pointer of a few bytes to it. Its maker locks the pointer as it
would lock the ring, so liveness is told alike. It hands the memfd to the recorder
(:mod:`megatrace.ring.handover`), which holds it until the capture has what is in it: one of the
two may be killed. Anybody else of this user opens it through ``/proc/PID/fd`` of either. When
the last of them has gone, so has the ring.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from megatrace.errors import RingError

POINTER_MAGIC = b"MEGAMEMF"
HELD_SUFFIX = ".held"
"""Of the small file beside a pointer that says where the recorder holds its memfd."""

RESERVE_BYTES = 16 << 20
"""Kept free for the session's small files and the aggregate page, or a quarter of what is."""
MEMORY_RESERVE_BYTES = 256 << 20
"""Kept free of the machine's memory."""
CGROUPS = Path("/sys/fs/cgroup")
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
_MAX_POINTER_BYTES = 4096
_TURN_S = 5.0
"""A process that was stopped in its turn does not stop the others."""


@dataclass(frozen=True, slots=True)
class Pointer:
    """What a pointer file says: where its maker holds the memfd, and which one it is."""

    pid: int
    fd: int
    inode: int
    size: int
    why: str
    """Why it is no file."""


class RingGone(RingError):
    """A memfd that nobody holds any more."""


def why_not_a_file(folder: Path, size: int, *, pinned: bool) -> str:
    """Why a ring of ``size`` bytes in ``folder`` needs a memfd; "" where a file will do.

    ``pinned``: for a GPU, which takes shared memory alone.
    """
    room = os.statvfs(folder)
    free = room.f_bavail * room.f_frsize
    if pinned and not _is_shared_memory(folder):
        return f"{folder.parent} is no shared memory"
    if size > free - min(RESERVE_BYTES, free // 4):
        return f"{_mount_of(folder)} has {free / 2**20:.1f} MiB free, the ring needs {_mib(size)}"
    return ""


def make(path: Path, size: int, why: str) -> int:
    """A memfd (0600) of ``size`` bytes for the ring ``path``; its fd.

    It is allocated, and cannot change its size. Raises RingError where there is too little
    memory.
    """
    with _one_at_a_time(path.parent):
        return _make(path.stem, size, why)


@contextlib.contextmanager
def _one_at_a_time(folder: Path) -> Iterator[None]:
    """Among the processes of a session: each is to see what the others have taken."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # The directory's own lock: where memory is short there may be no room for a file.
        give_up = time.monotonic() + _TURN_S
        with contextlib.suppress(OSError):  # a file system without locks
            while not _locked(fd) and time.monotonic() < give_up:
                time.sleep(0.01)
        yield
    finally:
        with contextlib.suppress(OSError):
            fcntl.flock(fd, fcntl.LOCK_UN)  # of a child forked meanwhile too
        os.close(fd)


def _locked(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _make(name: str, size: int, why: str) -> int:
    """What :func:`make` does, alone."""
    free = free_memory_bytes()
    if size > free - MEMORY_RESERVE_BYTES:
        raise RingError(
            f"{why}, and of memory only {max(0, free) / 2**20:.1f} MiB are free",
            hint=f"container: --shm-size={(size >> 20) + 64}m or more, and memory for it; "
            "or make the rings shorter",
        )
    try:
        fd = os.memfd_create(f"megatrace {name}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    except OSError as error:
        raise RingError(f"{why}, and there is no memfd: {error.strerror}") from None
    try:
        os.fchmod(fd, 0o600)
        os.posix_fallocate(fd, 0, size)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
    except OSError as error:
        os.close(fd)
        raise RingError(f"{why}, and a memfd got no memory: {error.strerror}") from None
    return fd


def write_pointer(fd: int, memfd: int, size: int, why: str) -> None:
    """Make the file ``fd`` a pointer to ``memfd`` of this process. Raises OSError."""
    pointer = Pointer(os.getpid(), memfd, os.fstat(memfd).st_ino, size, why)
    text = POINTER_MAGIC + json.dumps(asdict(pointer)).encode()
    os.pwrite(fd, text, 0)
    os.ftruncate(fd, len(text))


def read_pointer(fd: int) -> Pointer | None:
    """The pointer in the file ``fd``; None where it is no pointer. Raises RingError if damaged."""
    data = os.pread(fd, _MAX_POINTER_BYTES, 0)
    if not data.startswith(POINTER_MAGIC):
        return None
    try:
        body = json.loads(data[len(POINTER_MAGIC) :])
        pid, number, inode, size = (int(body[name]) for name in ("pid", "fd", "inode", "size"))
        return Pointer(pid, number, inode, size, str(body["why"]))
    except (ValueError, KeyError, TypeError, RecursionError):
        raise RingError("its pointer to a memfd is damaged") from None


def pointer_of(path: Path) -> Pointer | None:
    """The pointer in the file ``path``; None where there is none."""
    with contextlib.suppress(OSError, RingError):
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            return read_pointer(fd)
        finally:
            os.close(fd)
    return None


def open_pointed(path: Path, pointer: Pointer, flags: int) -> int:
    """An fd of the memfd that ``pointer``, the file ``path``, is to. Raises RingGone."""
    for pid, number in ((pointer.pid, pointer.fd), _held(path)):
        with contextlib.suppress(OSError):
            fd = os.open(f"/proc/{pid}/fd/{number}", flags | os.O_CLOEXEC | os.O_NONBLOCK)
            if is_pointed(fd, pointer):
                return fd
            os.close(fd)
    raise RingGone(
        f"{path} was in a memfd, and nobody holds that any more",
        hint="what the capture did not have by then is lost",
    )


def is_pointed(fd: int, pointer: Pointer) -> bool:
    """Whether ``fd`` is the memfd of ``pointer``, and cannot shrink under a reader."""
    facts = os.fstat(fd)
    try:
        sealed = fcntl.fcntl(fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK
    except OSError:
        return False
    return bool(sealed) and (facts.st_ino, facts.st_size) == (pointer.inode, pointer.size)


def say_held(path: Path, fd: int) -> None:
    """Tell others that this process holds the memfd of the pointer ``path`` as ``fd``."""
    with contextlib.suppress(OSError):  # a full file system: the maker's own still serves
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        at = os.open(path.with_suffix(HELD_SUFFIX), flags, 0o600)
        with open(at, "w") as file:
            file.write(f"{os.getpid()} {fd}")


def _held(path: Path) -> tuple[int, int]:
    try:
        pid, fd = path.with_suffix(HELD_SUFFIX).read_text().split()
        return int(pid), int(fd)
    except (OSError, ValueError):
        return 0, 0


def free_memory_bytes() -> int:
    """Memory that can still be taken: of the machine, and of every cgroup around this process."""
    free = [1 << 62]
    with contextlib.suppress(OSError, ValueError, IndexError):
        lines = Path("/proc/meminfo").read_text().splitlines()
        line = next(line for line in lines if line.startswith("MemAvailable:"))
        free.append(int(line.split()[1]) << 10)
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            free += _free_in_cgroup(*line.split(":", 2)[1:])
    return min(free)


def _free_in_cgroup(controllers: str, path: str) -> list[int]:
    """What is left of each limit from the cgroup ``path`` up."""
    if controllers not in ("", "memory"):
        return []
    root = CGROUPS / controllers
    names = (
        ("memory.limit_in_bytes", "memory.usage_in_bytes")
        if controllers
        else ("memory.max", "memory.current")
    )
    found = []
    folder = root / path.lstrip("/")
    for at in (folder, *folder.parents):
        if not at.is_relative_to(root):
            break
        with contextlib.suppress(OSError, ValueError):  # "max" is no number
            limit, used = (int((at / name).read_text()) for name in names)
            found.append(limit - used + _reclaimable(at))
    return found


def _reclaimable(cgroup: Path) -> int:
    """Page cache that the kernel would give up first."""
    with contextlib.suppress(OSError, ValueError):
        for line in (cgroup / "memory.stat").read_text().splitlines():
            name, value = line.split()
            if name in ("inactive_file", "total_inactive_file"):
                return int(value)
    return 0


def _is_shared_memory(folder: Path) -> bool:
    return _mount(folder)[1] in ("tmpfs", "ramfs")


def _mount_of(folder: Path) -> str:
    return _mount(folder)[0] or str(folder)


def _mount(folder: Path) -> tuple[str, str]:
    """Mount point and type of the file system of ``folder``; "" where it is not told."""
    device = folder.stat().st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    found = ("", "")
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/mountinfo").read_text().splitlines():
            fields, _, kind = line.partition(" - ")
            words = fields.split()
            if words[2] == wanted:
                found = (words[4], kind.split()[0])
    return found


def _mib(size: int) -> str:
    return f"{size / 2**20:.1f} MiB"
