"""A second process writes while this one drains: no torn line, and every line accounted for."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from megatrace.ring.drain import CounterReader, Drained, HostReader, LineReader
from megatrace.ring.file import RingFile
from megatrace.schema.layout import HALF_WORDS
from tests.ring.processes import python

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
        assert process.stdin is not None
        assert process.stdout is not None
        with RingFile.attach(path) as ring:
            reader = LineReader(ring)
            last = np.zeros(16, np.int64)
            process.stdin.write("go\n")
            process.stdin.flush()
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
    with python(SUMS, path) as process:
        assert process.stdin is not None
        with RingFile.attach(path) as ring:
            counters, host = CounterReader(ring), HostReader(ring)
            process.stdin.write("go\n")
            process.stdin.flush()
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
