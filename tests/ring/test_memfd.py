"""Rings whose memory is a memfd, because the session's file system is too small."""

from __future__ import annotations

import fcntl
import os
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from megatrace.errors import RingError
from megatrace.ring import memfd
from megatrace.ring.control import Control, read_control, write_control
from megatrace.ring.file import RingFile, RingSpec
from megatrace.ring.handover import Receiver, hand_over
from megatrace.ring.memfd import RingGone
from megatrace.ring.session import Session, list_sessions, prune
from tests.ring.mounts import small_tmpfs
from tests.ring.processes import python, send_go

SPEC = RingSpec(0, 1, 2, 8192, 1, 16, 0, 9, {"roles": ["a", "b"]})
"""Two megabytes."""


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A shared memory of one megabyte."""
    with small_tmpfs(tmp_path / "shm", 1 << 20) as folder:
        yield folder


@pytest.fixture
def session(small: Path, monkeypatch: pytest.MonkeyPatch) -> Session:
    """A session in it."""
    monkeypatch.setenv("MEGATRACE_RUNTIME_DIR", str(small / "rt"))
    return Session.create("s")


OWNER = """
    import sys, time
    from pathlib import Path
    from megatrace.ring.file import RingFile, RingSpec
    ring = RingFile.create(
        Path(sys.argv[1]), RingSpec(0, 1, 2, 8192, 1, 16, 0, 9, {"roles": ["a", "b"]})
    )
    ring.lines[1, 2, 3] = 45
    print("ready", flush=True)
    sys.stdin.readline()
    ring.mark_closed()
    ring.close()
"""


def test_a_ring_that_does_not_fit_is_a_memfd_and_reads_the_same(small: Path) -> None:
    with RingFile.create(small / "r.ring", SPEC) as ring:
        assert f"{small} has 1.0 MiB free, the ring needs 2." in ring.why_memfd
        ring.lines[1, 8191, 31] = 7
        with RingFile.attach(ring.path, writable_control=True) as seen:
            assert seen.lines[1, 8191, 31] == 7
            assert seen.why_memfd == ring.why_memfd
            assert seen.owner_alive()
            write_control(seen, Control(level=2, every_n=9))
            assert read_control(ring).every_n == 9
        assert (small / "r.ring").stat().st_size < 4096


def test_a_ring_that_fits_is_a_file(small: Path) -> None:
    with RingFile.create(small / "r.ring", replace(SPEC, lines=512)) as ring:
        assert (ring.memfd, ring.why_memfd) == (-1, "")
        ring.lines[:] = 1
        assert ring.path.stat().st_size == int(ring.header["total_bytes"])


def test_a_quarter_of_a_small_file_system_stays_free_for_the_small_files(small: Path) -> None:
    with RingFile.create(small / "r.ring", replace(SPEC, warps=7, lines=1024)) as ring:
        assert ring.why_memfd


def test_a_memfd_is_whole_private_and_cannot_shrink(small: Path) -> None:
    with RingFile.create(small / "r.ring", SPEC) as ring:
        facts = os.fstat(ring.memfd)
        assert stat.S_IMODE(facts.st_mode) == 0o600
        assert facts.st_blocks * 512 >= facts.st_size == int(ring.header["total_bytes"])
        with pytest.raises(PermissionError):
            os.ftruncate(ring.memfd, 4096)
        assert fcntl.fcntl(ring.memfd, fcntl.F_GETFD) & fcntl.FD_CLOEXEC


def test_too_little_memory_for_a_memfd_is_one_clear_error(
    small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memfd, "MEMORY_RESERVE_BYTES", 1 << 62)
    with pytest.raises(RingError, match=r"the ring needs 2\.\d MiB, and of memory only") as caught:
        RingFile.create(small / "r.ring", SPEC)
    assert "--shm-size" in caught.value.hint
    assert not (small / "r.ring").exists()


def test_rings_made_together_do_not_take_the_same_memory(
    small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def free_memory_bytes() -> int:
        links = [Path(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")]
        taken = sum(fd.stat().st_size for fd in links if "memfd:megatrace" in str(target(fd)))
        time.sleep(0.1)  # long enough for the others to look as well
        return memfd.MEMORY_RESERVE_BYTES + (3 << 20) - taken

    def target(fd: Path) -> Path | None:
        with suppress(OSError):
            return fd.readlink()
        return None

    def make(name: str) -> RingFile | None:
        with suppress(RingError):
            return RingFile.create(small / name, SPEC)
        return None

    monkeypatch.setattr(memfd, "free_memory_bytes", free_memory_bytes)
    with ThreadPoolExecutor() as pool:
        made = [ring for ring in pool.map(make, ("a.ring", "b.ring", "c.ring")) if ring]
    assert len(made) == 1
    made[0].close()


def test_a_process_that_was_stopped_in_its_turn_does_not_stop_the_others(
    small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memfd, "_TURN_S", 0.2)
    stopped = os.open(small, os.O_RDONLY)
    fcntl.flock(stopped, fcntl.LOCK_EX)
    with RingFile.create(small / "a.ring", SPEC) as ring:
        assert ring.memfd >= 0
    os.close(stopped)


def test_a_gpus_ring_is_never_a_file_outside_of_shared_memory(tmp_path: Path) -> None:
    if memfd._is_shared_memory(tmp_path):
        pytest.skip("the temporary directory is shared memory")
    (tmp_path / "session").mkdir()
    with RingFile.create(tmp_path / "session" / "r.ring", replace(SPEC, device=1)) as ring:
        assert "is no shared memory" in ring.why_memfd
    with RingFile.create(tmp_path / "session" / "cpu.ring", SPEC) as ring:
        assert not ring.why_memfd


def test_the_memory_that_is_free_is_no_more_than_the_machine_has() -> None:
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert 0 < memfd.free_memory_bytes() <= pages


def test_a_cgroups_limit_bounds_the_memory_that_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    for folder, limit in ((tmp_path, "max"), (tmp_path / "a", "5000"), (inner, "9000")):
        (folder / "memory.max").write_text(limit)
        (folder / "memory.current").write_text("1000")
        (folder / "memory.stat").write_text("anon 1\ninactive_file 200\n")
    monkeypatch.setattr(memfd, "CGROUPS", tmp_path)
    assert memfd._free_in_cgroup("", "/a/b") == [8200, 4200]


def test_a_killed_owner_leaves_its_memfd_to_whoever_holds_it(session: Session) -> None:
    path = session.path / "r.ring"
    with python(OWNER, path) as owner:
        with RingFile.attach(path) as held:
            owner.kill()
            owner.wait()
            assert held.lines[1, 2, 3] == 45
            assert not held.owner_alive()
            with pytest.raises(RingGone, match="nobody holds that any more"):
                RingFile.attach(path)
            memfd.say_held(path, held.memfd)
            with RingFile.attach(path) as again:
                assert again.lines[1, 2, 3] == 45
        with pytest.raises(RingGone):
            RingFile.attach(path)


RECEIVER = """
    import sys, time
    from pathlib import Path
    from megatrace.ring.handover import Receiver
    receiver = Receiver(Path(sys.argv[1]))
    print("ready", flush=True)
    while not receiver.held:
        receiver.take()
        time.sleep(0.002)
    sys.stdin.readline()
"""


def test_a_maker_hands_its_memfd_over_in_a_call(session: Session) -> None:
    with python(RECEIVER, session.path) as recorder:
        with RingFile.create(session.path / "r.ring", SPEC) as ring:
            own = os.fstat(ring.memfd).st_ino
        folder = Path(f"/proc/{recorder.pid}/fd")
        held = [os.stat(fd).st_ino for fd in folder.iterdir() if "memfd" in os.readlink(fd)]
        assert held == [own]
        send_go(recorder)


def test_a_ring_is_made_at_once_where_nobody_records(session: Session) -> None:
    receiver = Receiver(session.path)
    receiver.close()
    with RingFile.create(session.path / "r.ring", SPEC) as ring:
        assert ring.why_memfd
        assert not hand_over(ring.path, ring.memfd)


def test_what_is_no_ring_of_a_session_is_not_held(session: Session) -> None:
    with python(RECEIVER, session.path), open("/dev/null") as file:
        assert not hand_over(session.path / "..", file.fileno())
        assert not hand_over(session.path / "no-ring", file.fileno())


def test_a_pointer_to_another_file_is_refused(small: Path) -> None:
    with RingFile.create(small / "r.ring", SPEC) as ring, open("/dev/null") as other:
        fd = os.open(ring.path, os.O_RDWR)
        memfd.write_pointer(fd, other.fileno(), 1 << 21, "why")
        os.close(fd)
        with pytest.raises(RingGone):
            RingFile.attach(ring.path)


@pytest.mark.parametrize("text", [b"", b"[]", b"{", b'{"pid": "x"}', b"[" * 3000])
def test_a_damaged_pointer_is_refused(small: Path, text: bytes) -> None:
    path = small / "r.ring"
    path.write_bytes(memfd.POINTER_MAGIC + text)
    path.chmod(0o600)
    with pytest.raises(RingError):
        RingFile.attach(path)


def test_a_session_says_which_of_its_rings_are_memfds_and_is_not_pruned_while_one_lives(
    session: Session,
) -> None:
    session.create_ring("small", replace(SPEC, lines=64)).close()
    with python(OWNER, session.path / "large.ring") as owner:
        session.close()
        (info,) = list_sessions()
        assert (info.rings, info.memfds, info.live) == (("large", "small"), ("large",), True)
        assert prune() == []
        owner.kill()
        owner.wait()
        assert prune() == ["s"]


def test_a_full_file_system_for_the_pointer_too_is_one_clear_error(small: Path) -> None:
    with (small / "filler").open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))
    with pytest.raises(RingError, match="No space left on device") as caught:
        RingFile.create(small / "r.ring", SPEC)
    assert "MEGATRACE_RUNTIME_DIR" in caught.value.hint
    assert not (small / "r.ring").exists()


def test_an_address_of_any_length_can_be_reached(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 120) / ("e" * 120)
    deep.mkdir(parents=True)
    receiver = Receiver(deep)
    code = (
        "import sys; from pathlib import Path; from megatrace.ring.handover import hand_over;"
        "print(hand_over(Path(sys.argv[1]), 0))"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(deep / "r.ring")],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
    ) as sender:  # fmt: skip
        while not receiver.held and sender.poll() is None:
            receiver.take()
        assert sender.stdout is not None
        assert sender.stdout.read() == "True\n"
    receiver.close()
