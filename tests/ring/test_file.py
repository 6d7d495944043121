from __future__ import annotations

import os
import random
import stat
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from megatrace.errors import RingError, SchemaMismatch, UsageError
from megatrace.ring.control import read_ack, read_control
from megatrace.ring.drain import CounterReader, HostReader, LineReader
from megatrace.ring.file import RingFile, RingSpec
from megatrace.schema.layout import META_OFFSET, RING_HEADER
from tests.ring.processes import python

MakeRing = Callable[..., RingFile]
FUZZ_S = float(os.environ.get("MEGATRACE_FUZZ_SECONDS", "2"))
SMALL = RingSpec(0, 1, 2, 4, 1, 4, 0, 9, {"roles": ["a", "b"]})


def test_a_reader_sees_what_the_owner_made(make_ring: MakeRing) -> None:
    ring = make_ring(rank=3)
    ring.lines[4, 7, 31] = 99
    ring.sums[1, 3, 5] = 12
    ring.host["step"][15] = 34
    with RingFile.attach(ring.path) as seen:
        assert seen.rank == 3
        assert seen.meta == {"roles": ["load", "math", "store"]}
        assert (seen.lines.shape, seen.sums.shape, seen.host.shape) == (
            (6, 8, 32),
            (2, 4, 6),
            (16,),
        )
        assert (seen.lines[4, 7, 31], seen.sums[1, 3, 5], seen.host["step"][15]) == (
            99,
            12,
            34,
        )
        assert seen.header["table_hash"] == 77


def test_a_ring_file_is_for_its_user_alone(make_ring: MakeRing) -> None:
    assert stat.S_IMODE(make_ring().path.stat().st_mode) == 0o600


def test_all_bytes_of_a_ring_are_allocated(make_ring: MakeRing) -> None:
    ring = make_ring(lines=1024)
    facts = ring.path.stat()
    assert facts.st_blocks * 512 >= facts.st_size == ring.header["total_bytes"]


def test_a_readers_arrays_are_read_only(make_ring: MakeRing) -> None:
    with RingFile.attach(make_ring().path, writable_control=True) as seen:
        for array in (seen.lines, seen.sums, seen.host):
            assert not array.flags.writeable


def test_an_existing_ring_is_refused_and_left_alone(make_ring: MakeRing) -> None:
    ring = make_ring()
    with pytest.raises(RingError, match="exists"):
        RingFile.create(ring.path, SMALL)
    with RingFile.attach(ring.path) as seen:
        assert seen.header["table_hash"] == 77


@pytest.mark.parametrize("change", [{"lines": 12}, {"host_capacity": 100}, {"blocks": -1}])
def test_sizes_that_cannot_be_are_refused(change: dict[str, int]) -> None:
    with pytest.raises(UsageError):
        replace(SMALL, **change)  # type: ignore[arg-type]


def test_an_address_is_where_the_bytes_are(make_ring: MakeRing) -> None:
    import ctypes

    ring = make_ring()
    ring.lines[0, 0, 0] = 1234
    address = ring.address(int(ring.header["lines_offset"]))
    assert ctypes.c_uint32.from_address(address).value == 1234


def test_a_closed_ring_says_so_and_a_killed_one_does_not(make_ring: MakeRing) -> None:
    ring = make_ring()
    with RingFile.attach(ring.path) as seen:
        assert (seen.state, seen.owner_alive()) == (1, True)
        ring.mark_closed()
        ring.close()
        assert (seen.state, seen.owner_alive()) == (2, False)


OWNER = """
    import os, sys, time
    from pathlib import Path
    from megatrace.ring.file import RingFile, RingSpec
    ring = RingFile.create(Path(sys.argv[1]), RingSpec(0, 1, 2, 4, 1, 4, 0, 9))
    if sys.argv[2] == "fork" and os.fork() == 0:
        print("ready", flush=True)
        time.sleep(60)
    if sys.argv[2] == "alone":
        print("ready", flush=True)
    time.sleep(60)
"""


def test_a_killed_owner_is_not_alive_and_its_ring_stays_readable(tmp_path: Path) -> None:
    path = tmp_path / "rank0.ring"
    with python(OWNER, path, "alone") as owner, RingFile.attach(path) as seen:
        assert seen.owner_alive()
        owner.kill()
        owner.wait()
        assert not seen.owner_alive()
        assert seen.state == 1
        assert len(LineReader(seen).drain(final=True)) == 0


def test_a_forked_child_does_not_keep_its_parents_ring_alive(tmp_path: Path) -> None:
    path = tmp_path / "rank0.ring"
    with python(OWNER, path, "fork") as owner, RingFile.attach(path) as seen:
        owner.kill()
        owner.wait()
        assert not seen.owner_alive()


@pytest.mark.parametrize("mode", [0o644, 0o620])
def test_a_ring_others_can_open_is_refused(make_ring: MakeRing, mode: int) -> None:
    path = make_ring().path
    path.chmod(mode)
    with pytest.raises(RingError, match="open to others"):
        RingFile.attach(path)


def test_links_pipes_and_folders_are_refused_at_once(make_ring: MakeRing, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(make_ring().path)
    os.mkfifo(tmp_path / "pipe", 0o600)
    for name in ("link", "pipe", ".", "none"):
        with pytest.raises(RingError):
            RingFile.attach(tmp_path / name)


def test_another_version_is_a_mismatch(make_ring: MakeRing) -> None:
    ring = make_ring()
    _, at = header_field("version")
    patch(ring.path, at, b"\x63\0\0\0")
    with pytest.raises(SchemaMismatch, match="version 99"):
        RingFile.attach(ring.path)


def header_field(name: str) -> tuple[np.dtype[np.generic], int]:
    """Type and offset of a field of the header."""
    assert RING_HEADER.fields is not None
    kind, at, *_ = RING_HEADER.fields[name]
    return kind, at


def patch(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


def use_or_refuse(path: Path) -> None:
    """Everything a reader does; only the errors that say what is wrong may come out."""
    try:
        ring = RingFile.attach(path)
    except (RingError, SchemaMismatch):
        return
    with ring:
        try:
            read_control(ring, timeout_s=0)
        except RingError:
            ring.control_page.tobytes()  # a flipped sequence number: the page itself is there
        read_ack(ring)
        reader = LineReader(ring, patience_ns=0)
        for _ in range(4):
            reader.drain(64)
        reader.drain(64, final=True)
        CounterReader(ring).snapshot()
        HostReader(ring).drain()


def small_file(folder: Path) -> tuple[Path, bytes]:
    path = folder / "small.ring"
    with RingFile.create(path, SMALL) as ring:
        ring.lines[0, 0] = 1
        ring.lines[1, :3] = 7
        return path, path.read_bytes()


def test_a_ring_cut_anywhere_is_refused(tmp_path: Path) -> None:
    path, data = small_file(tmp_path)
    path.unlink()
    path.touch(0o600)
    path.write_bytes(data)
    for size in range(len(data) - 1, -1, -37):
        os.truncate(path, size)
        with pytest.raises(RingError):
            RingFile.attach(path)


def test_sizes_that_would_overflow_are_refused(tmp_path: Path) -> None:
    path, _ = small_file(tmp_path)
    data = path.read_bytes()
    for name in ("blocks", "warps", "lines", "layers", "host_capacity", "meta_bytes"):
        kind, at = header_field(name)
        for value in (1 << 31, (1 << 32) - 1, 1 << 20):
            path.write_bytes(data)
            patch(path, at, np.array(value, kind).tobytes())
            with pytest.raises(RingError):
                RingFile.attach(path)
        for value in (0, 1, 3):
            path.write_bytes(data)
            patch(path, at, np.array(value, kind).tobytes())
            use_or_refuse(path)


def test_flipped_bits_never_do_more_than_refuse(tmp_path: Path) -> None:
    path, data = small_file(tmp_path)
    rng = random.Random(1)
    end = time.monotonic() + FUZZ_S
    places = [*range(RING_HEADER.itemsize), *range(META_OFFSET, META_OFFSET + 24)]
    while time.monotonic() < end:
        damaged = bytearray(data)
        for _ in range(rng.choice([1, 1, 2, 8])):
            damaged[rng.choice(places)] ^= 1 << rng.randrange(8)
        lines = slice(3 * 4096, len(data))
        if rng.random() < 0.5:
            damaged[lines] = rng.randbytes(len(data) - 3 * 4096)
        path.write_bytes(damaged)
        use_or_refuse(path)


def test_what_looks_at_a_ring_outlives_its_close_and_then_it_is_unmapped(
    make_ring: MakeRing,
) -> None:
    def mapped() -> bool:
        return str(ring.path) in Path("/proc/self/maps").read_text()

    ring = make_ring()
    ring.lines[2, 3, 4] = 7
    lines = ring.lines[2]
    ring.close()
    assert lines[3, 4] == 7
    assert mapped()
    del lines
    ring.close()
    assert not mapped()
