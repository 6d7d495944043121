"""Lines of a ring as another process sees them."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.host.cases import Cases


def test_a_reader_process_never_takes_a_mixed_line_for_a_whole_one(
    cases: Cases, tmp_path: Path
) -> None:
    file, lines = tmp_path / "lines", 300_000
    file.write_bytes(bytes(256))
    with subprocess.Popen(
        cases.command("read_lines", file, lines), stdout=subprocess.PIPE, text=True
    ) as reader:
        try:
            assert cases.run("write_lines", file, lines).returncode == 0
            said, _ = reader.communicate(timeout=30)
        finally:
            reader.kill()
    whole, torn, mixed = map(int, said.split())
    assert whole > 0
    assert torn > 0, "the reader never met the writer: the test shows nothing"
    assert mixed == 0


def test_a_half_line_leaves_the_older_second_half(cases: Cases) -> None:
    got = cases.numbers("half_line")
    assert got[:16] == list(range(900, 916))
    assert got[16] == 1
    assert got[17:] == [(2654435761 + i) % 2**32 for i in range(17, 32)]


def test_lanes_that_store_different_lines_are_told_to_converge(cases: Cases) -> None:
    assert "lanes of a warp disagree about a line" in cases.run("parted_line").stderr
