from __future__ import annotations

import os
import random
import time
from pathlib import Path

import numpy as np
import pytest

from megatrace.capture.reader import open_capture
from megatrace.capture.recover import recover
from megatrace.capture.writer import CaptureWriter
from megatrace.errors import CaptureError, FormatError, TruncatedError
from tests.capture.conftest import lines_of, write_small
from tests.ring.mounts import small_tmpfs
from tests.ring.processes import python

FUZZ_S = float(os.environ.get("MEGATRACE_FUZZ_SECONDS", "2"))


def read_all(path: Path) -> tuple[int, bool]:
    """Everything a reader does; the lines it got and whether the file says it is complete."""
    with open_capture(path) as capture:
        index = capture.line_index()
        lines = capture.gather(np.arange(len(index)))
        for row, line in enumerate(lines):
            rank, ring, number = (int(x[row]) for x in (index.rank, index.ring, index.number))
            assert np.array_equal(line, lines_of(rank, ring, range(number, number + 1))[0])
        capture.counters()
        capture.host()
        assert capture.verify() is capture.problems
        assert capture.complete == (not capture.problems)
        return len(index), capture.complete


@pytest.mark.parametrize(("name", "step"), [("tiny", 1), ("small", 61)])
def test_a_capture_cut_at_any_byte_keeps_its_whole_batches(
    name: str, step: int, request: pytest.FixtureRequest
) -> None:
    path: Path = request.getfixturevalue(name)
    data = path.read_bytes()
    last, _ = read_all(path)
    opened = 0
    for size in range(len(data) - 1, -1, -step):
        os.truncate(path, size)
        try:
            lines, complete = read_all(path)
        except (FormatError, TruncatedError):
            assert last == 0
            continue
        opened += 1
        assert not complete
        assert lines <= last
        last = lines
    assert last == 0
    assert opened > 10


def test_a_truncated_capture_says_where_and_strict_refuses_it(small: Path) -> None:
    os.truncate(small, small.stat().st_size - 1000)
    with open_capture(small) as capture:
        assert "ends in the middle of a batch" in capture.problems[0]
        assert str(capture.size_bytes) in capture.problems[0]
    with pytest.raises(TruncatedError, match=r"small\.mtr") as caught:
        open_capture(small, strict=True)
    assert "recover" in caught.value.hint


def test_a_flipped_bit_is_seen_or_changes_nothing(tiny: Path) -> None:
    data = tiny.read_bytes()
    rng = random.Random(2)
    unseen = 0
    for at in range(len(data)):
        damaged = bytearray(data)
        damaged[at] ^= 1 << rng.randrange(8)
        tiny.write_bytes(damaged)
        try:
            lines, complete = read_all(tiny)
        except CaptureError:
            continue
        unseen += complete
        assert lines == 2 or not complete
    assert unseen < len(data) // 2  # padding, and the parts of Arrow's messages nobody reads


def test_heavy_damage_never_does_more_than_refuse(small: Path, tmp_path: Path) -> None:
    data = small.read_bytes()
    rng = random.Random(3)
    path = tmp_path / "damaged.mtr"
    end = time.monotonic() + FUZZ_S
    while time.monotonic() < end:
        damaged = bytearray(data)
        for _ in range(rng.choice([1, 3, 10])):
            at, size = rng.randrange(len(data)), rng.choice([1, 4, 8, 100])
            match rng.randrange(4):
                case 0:
                    damaged[at : at + size] = rng.randbytes(size)
                case 1:
                    damaged[at : at + size] = b"\xff" * size
                case 2:
                    del damaged[at : at + size]
                case 3:
                    damaged[at:at] = damaged[: size * 8]
        path.write_bytes(damaged)
        try:
            read_all(path)
        except CaptureError:
            continue


def test_a_file_of_marks_is_refused_in_bounded_time(small: Path) -> None:
    begin = small.read_bytes()
    mark = b"\xff\xff\xff\xff\x10\0\0\0"
    small.write_bytes(begin[:2000] + mark * 200_000)
    with open_capture(small) as capture:
        assert not capture.complete


def test_damage_in_the_middle_costs_one_batch(small: Path) -> None:
    data = bytearray(small.read_bytes())
    at = data.index(lines_of(1, 0, range(1, 2)).tobytes())
    data[at + 20] ^= 1
    small.write_bytes(data)
    with open_capture(small) as capture:
        assert capture.line_index().rank.tolist() == [0] * 5
        assert "(2 rows of lines) is damaged" in capture.problems[0]
        assert not capture.complete
    with pytest.raises(FormatError, match="damaged"):
        open_capture(small, strict=True)


def test_a_large_file_is_verified_as_it_is_read(
    small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("megatrace.capture.reader.VERIFY_BYTES", 0)
    data = bytearray(small.read_bytes())
    at = data.index(lines_of(1, 0, range(1, 2)).tobytes())
    data[at + 20] ^= 1
    small.write_bytes(data)
    with open_capture(small) as capture:
        assert capture.problems == []
        assert capture.gather(np.array([0, 6]))[:, 0].tolist() == [1, 5]
        assert capture.problems == []
        lines = capture.gather(np.array([0, 4, 5, 6]))
        assert lines[:, 0].tolist() == [1, 0, 0, 5]
        assert not lines[1:3].any()
        assert len(capture.problems) == 1
        assert not capture.complete


def test_rows_that_are_missing_from_the_end_count_are_a_problem(small: Path) -> None:
    data = small.read_bytes()
    frames = [i for i in range(0, len(data), 8) if data[i : i + 4] == b"\xff" * 4]
    at = data.index(lines_of(1, 0, range(1, 2)).tobytes())
    begin = max(i for i in frames if i < at)
    end = min(i for i in frames if i > at)
    small.write_bytes(data[:begin] + data[end:])
    with open_capture(small) as capture:
        assert capture.problems == ["the end counts 7 lines, here are 5"]


def test_recover_keeps_every_whole_batch_and_says_what_it_lost(small: Path, tmp_path: Path) -> None:
    data = bytearray(small.read_bytes())
    bad = data.index(lines_of(1, 0, range(1, 2)).tobytes())
    data[bad] ^= 1
    small.write_bytes(data[:-600])
    done = recover(small, tmp_path / "out.mtr")
    assert done.lines == 5
    assert done.lost_bytes > 0
    with open_capture(done.path) as capture:
        assert capture.recovered
        assert not capture.complete
        assert capture.problems == []
        assert len(capture.line_index()) == 5
        assert capture.counters().slot.tolist() == [2, 3]
        assert capture.end is not None
        assert len(capture.end.fields["problems"]) == len(done.problems) == 2


@pytest.mark.parametrize("cut", [0, 600])
@pytest.mark.parametrize("damaged", [True, False])
def test_recover_tells_damage_from_an_end_that_was_never_written(
    small: Path, tmp_path: Path, *, damaged: bool, cut: int
) -> None:
    data = bytearray(small.read_bytes())
    data[data.index(lines_of(1, 0, range(1, 2)).tobytes())] ^= damaged
    small.write_bytes(data[: len(data) - cut])
    assert recover(small, tmp_path / "out.mtr").damaged_inside is damaged


def test_recover_after_a_damaged_beginning_finds_the_rest(small: Path, tmp_path: Path) -> None:
    data = small.read_bytes()
    small.write_bytes(b"\0" * 700 + data[700:])
    done = recover(small, tmp_path / "out.mtr")
    assert done.lines == 7


def test_recover_of_what_is_no_capture_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "x.part").write_bytes(b"nothing" * 100)
    with pytest.raises(FormatError):
        recover(tmp_path / "x.part", tmp_path / "out.mtr")
    assert [p.name for p in tmp_path.iterdir()] == ["x.part"]


def test_recover_of_every_cut_reads_clean(small: Path, tmp_path: Path) -> None:
    data = small.read_bytes()
    for size in range(len(data), 1500, -211):
        small.write_bytes(data[:size])
        done = recover(small, tmp_path / "out.mtr", force=True)
        with open_capture(done.path, strict=True) as capture:
            assert capture.recovered
            assert len(capture.line_index()) == done.lines


WRITER = """
    import sys, time
    from pathlib import Path
    import numpy as np
    from megatrace.capture.writer import CaptureWriter
    from tests.capture.conftest import lines_of
    writer = CaptureWriter(Path(sys.argv[1]))
    for n in range(1, 11):
        writer.write_lines(0, np.zeros(1, np.uint32), lines_of(0, 0, range(n, n + 1)), 0)
    writer.flush()
    writer.write_lines(0, np.zeros(1, np.uint32), lines_of(0, 0, range(11, 12)), 0)
    print("ready", flush=True)
    time.sleep(60)
"""


def test_what_was_flushed_before_a_kill_is_recovered(tmp_path: Path) -> None:
    with python(WRITER, tmp_path / "run.mtr") as process:
        process.kill()
        process.wait()
    done = recover(tmp_path / "run.mtr.part", tmp_path / "run.mtr")
    with open_capture(done.path) as capture:
        assert capture.line_index().number.tolist() == list(range(1, 11))


def test_a_full_disk_is_said_once_and_all_before_it_is_kept(tmp_path: Path) -> None:
    with small_tmpfs(tmp_path / "disk", 256 << 10) as disk:
        writer = CaptureWriter(disk / "run.mtr")
        write_small(writer)
        errors = []
        written = 0
        for n in range(1, 400):
            try:
                writer.write_lines(0, np.zeros(8, np.uint32), lines_of(0, 0, range(n, n + 8)), 0)
                writer.flush()
                written += 8 * (not writer.failed)
            except CaptureError as error:  # pragma: no cover
                raise AssertionError from error
            except Exception as error:
                errors.append(error)
        assert [type(error).__name__ for error in errors] == ["RecordError"]
        assert "the disk is full" in str(errors[0])
        assert writer.finish() == writer.part_path
        with open_capture(writer.part_path) as capture:
            assert len(capture.line_index()) == written + 7
            assert capture.problems == [f"the file ends early, at byte {writer.size_bytes}"]
        done = recover(writer.part_path, tmp_path / "run.mtr")
        assert done.lines == written + 7
