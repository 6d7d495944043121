"""A second process writes while this one drains: no torn line, and every line accounted for."""

from __future__ import annotations

import shutil
import subprocess
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from megatrace.ring.drain import CounterReader, Drained, HostReader, LineReader
from megatrace.ring.file import RingFile, RingSpec
from megatrace.schema.layout import HALF_WORDS
from tests.ring.processes import ROOT, python, ready, send_go

# The order of a CPU writer: numbers away, words, numbers back.
WRITER = """
    import sys
    from pathlib import Path
    import numpy as np
    from megatrace.ring.file import RingFile, RingSpec

    path, laps = Path(sys.argv[1]), int(sys.argv[2])
    ring = RingFile.create(path, RingSpec(0, 2, 8, 16, 0, 0, 0, 1))
    lines = ring.lines
    print("ready", flush=True)
    sys.stdin.readline()
    for number in range(1, 16 * laps + 1):
        place = (number - 1) % 16
        lines[:, place, 0] = 0
        lines[:, place, 16] = 0
        lines[:, place, 1:16] = number | 1 << 31
        lines[:, place, 17:] = number | 1 << 31
        lines[:, place, 16] = number
        lines[:, place, 0] = number
    print("done", flush=True)
    sys.stdin.readline()
"""
LAPS = 1500


def assert_no_line_is_torn(drained: Drained) -> None:
    numbers = drained.lines[:, 0]
    assert (drained.lines[:, HALF_WORDS] == numbers).all()
    words = np.delete(drained.lines, [0, HALF_WORDS], axis=1)
    assert (words == (numbers | np.uint32(1 << 31))[:, None]).all()


def test_lines_of_a_live_writer_are_whole_in_order_and_all_counted(tmp_path: Path) -> None:
    path = tmp_path / "live.ring"
    with python(WRITER, path, LAPS) as process:
        assert process.stdout is not None
        with RingFile.attach(path) as ring:
            reader = LineReader(ring)
            last = np.zeros(16, np.int64)
            send_go(process)
            while last.min() < 16 * LAPS:
                drained = reader.drain(max_lines=300)
                assert_no_line_is_torn(drained)
                for row, number in zip(drained.ring.tolist(), drained.lines[:, 0], strict=True):
                    assert number > last[row]
                    last[row] = number
            assert process.stdout.readline() == "done\n"
            assert len(reader.drain(final=True)) == 0
            total = reader.read_per_ring + reader.lost_per_ring
            assert total.tolist() == [16 * LAPS] * 16
            assert reader.stats.read > 0


@pytest.fixture(scope="module")
def native_writer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The host build's own way to write a line, at the speed of one core."""
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("no C++ compiler on this machine")
    program = tmp_path_factory.mktemp("native") / "writer"
    source = Path(__file__).with_name("writer.cpp")
    options = ["-std=c++20", "-O2", "-I", str(ROOT / "kernels" / "host")]
    subprocess.run([compiler, *options, str(source), "-o", str(program)], check=True)
    return program


@pytest.mark.parametrize(("lines", "count"), [(2, 200_000), (64, 100_000), (4096, 60_000)])
def test_no_line_is_torn_at_full_speed(
    native_writer: Path, tmp_path: Path, lines: int, count: int
) -> None:
    spec = RingSpec(0, 2, 4, lines, 0, 0, 0, 1)
    with RingFile.create(tmp_path / "fast.ring", spec) as ring:
        offset = int(ring.header["lines_offset"])
        command = [native_writer, ring.path, offset, ring.rings, lines, count]
        with ready([str(word) for word in command]) as process:
            reader = LineReader(ring)
            send_go(process)
            seen = [np.zeros(0, np.uint32)] * ring.rings
            while process.poll() is None:
                keep_whole_lines(reader.drain(), seen)
            while len(drained := reader.drain(final=True)):
                keep_whole_lines(drained, seen)
        for ring_seen in seen:
            assert np.unique(ring_seen).size == ring_seen.size
        assert [numbers.size for numbers in seen] == reader.read_per_ring.tolist()
        assert (reader.read_per_ring + reader.lost_per_ring).tolist() == [count] * ring.rings
        assert min(numbers.size for numbers in seen) >= lines // 2


def keep_whole_lines(drained: Drained, seen: list[np.ndarray]) -> None:
    numbers = drained.lines[:, 0]
    half = numbers % 7 == 0
    expected = np.repeat((numbers | np.uint32(1 << 31))[:, None], 32, axis=1)
    expected[:, 0] = expected[:, HALF_WORDS] = numbers
    expected[half, HALF_WORDS - 1 :] = 0
    assert np.array_equal(drained.lines, expected)
    for ring in np.unique(drained.ring):
        seen[ring] = np.concatenate((seen[ring], numbers[drained.ring == ring]))


def test_memory_stays_flat_while_lines_flow(native_writer: Path, tmp_path: Path) -> None:
    with RingFile.create(tmp_path / "fast.ring", RingSpec(0, 2, 4, 1024, 0, 0, 0, 1)) as ring:
        offset = int(ring.header["lines_offset"])
        command = [native_writer, ring.path, offset, ring.rings, 1024, 1_000_000]
        with ready([str(word) for word in command]) as process:
            reader = LineReader(ring)
            send_go(process)
            tracemalloc.start()
            try:
                held = []
                while process.poll() is None:
                    reader.drain(4096)
                    held.append(tracemalloc.get_traced_memory()[0])
                peak = tracemalloc.get_traced_memory()[1]
            finally:
                tracemalloc.stop()
        assert len(held) > 50
        assert max(held[len(held) // 2 :]) - max(held[:20]) < 1 << 18
        assert peak < 16 << 20


SUMS = """
    import sys
    from pathlib import Path
    import numpy as np
    from megatrace.ring.file import RingFile, RingSpec
    from megatrace.ring.host import HostWriter

    path = Path(sys.argv[1])
    ring = RingFile.create(path, RingSpec(0, 1, 4, 0, 2, 64, 0, 1))
    sums = ring.sums
    host = HostWriter(ring)
    print("ready", flush=True)
    sys.stdin.readline()
    for n in range(1, 20001):
        sums[n % 2, :, n % 4] += 5 << 24 | 1
        host.append(3, n, n + 1, n, (n, n, n, n), str(n).encode())
    print("done", flush=True)
    sys.stdin.readline()
"""


def test_sums_and_host_records_of_a_live_writer_are_whole(tmp_path: Path) -> None:
    path = tmp_path / "live.ring"
    with python(SUMS, path) as process, RingFile.attach(path) as ring:
        counters, host = CounterReader(ring), HostReader(ring)
        send_go(process)
        while host.read + host.lost < 20000:
            sums = counters.snapshot()
            assert (sums["cycles"] == 5 * sums["count"].astype(np.uint64)).all()
            records = host.drain()
            assert (records["values"] == records["number"][:, None]).all()
            assert (records["end_ns"] == records["begin_ns"] + 1).all()
            texts = [bytes(r["text"].tobytes()[: r["text_bytes"]]) for r in records]
            assert texts == [str(n).encode() for n in records["number"].tolist()]
        assert host.read > 0
        assert counters.snapshot()["count"].sum() == 4 * 20000
