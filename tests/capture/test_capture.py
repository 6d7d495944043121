from __future__ import annotations

import stat
import tempfile
from pathlib import Path
from random import Random

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megatrace.capture.layout import BATCH_ROWS, FORMAT_KEY
from megatrace.capture.reader import open_capture
from megatrace.capture.writer import CaptureWriter, is_locked
from megatrace.errors import CaptureError, FormatError, RecordError, SchemaMismatch, UsageError
from tests.capture.conftest import TABLE, lines_of, write_small


def test_everything_written_is_read(small: Path) -> None:
    with open_capture(small, strict=True) as capture:
        assert capture.complete
        assert capture.problems == []
        kinds = [row.kind for row in capture.meta]
        assert kinds == ["capture", "ring", "ring", "loss", "end"]
        assert capture.meta[0].fields["command"] == ["serve"]
        assert capture.rings[1].roles == ("load", "math")
        assert capture.rings[1].rings == 4
        assert capture.tables == {0: TABLE, 1: TABLE}
        assert capture.loss == {(0, 3): 5, (0, 1): 2}
        counters, host = capture.counters(), capture.host()
        assert counters.slot.tolist() == [2, 3]
        assert counters.records["cycles"][:, 0].tolist() == [5, 6]
        assert counters.t_ns.tolist() == [2000, 2000]
        assert host.records["step"].tolist() == [70, 71]
        assert capture.end is not None
        assert capture.end.fields["rows"] == {"lines": 7, "counters": 2, "host": 2, "meta": 4}
        assert capture.end.fields["note"] == "all"


def test_lines_are_gathered_in_the_order_asked_for(small: Path) -> None:
    with open_capture(small) as capture:
        index = capture.line_index()
        assert index.rank.tolist() == [0, 0, 0, 0, 1, 1, 0]
        assert index.number.tolist() == [1, 2, 3, 4, 1, 2, 5]
        order = np.lexsort((index.number, index.ring, index.rank))[::-1]
        expected = np.concatenate((lines_of(0, 3, range(1, 6)), lines_of(1, 0, range(1, 3))))[::-1]
        gathered = capture.gather(order)[np.argsort([2, 3, 0, 1, 4, 5, 6])]
        assert np.array_equal(np.sort(gathered, axis=0), np.sort(expected, axis=0))
        for row in range(len(index)):
            line = capture.gather(np.array([row]))
            number = int(index.number[row])
            want = lines_of(int(index.rank[row]), int(index.ring[row]), range(number, number + 1))
            assert np.array_equal(line, want)
        assert capture.gather(np.zeros(0, np.int64)).shape == (0, 32)


def test_any_arrow_reads_a_capture(small: Path) -> None:
    with pa.memory_map(str(small)) as file:
        table = pa.ipc.open_stream(file).read_all()
    table.validate(full=True)
    assert table.schema.names == ["table", "rank", "ring", "seq", "t_ns", "data", "meta"]
    assert table.schema.metadata[FORMAT_KEY.encode()] == b"1"
    lines = table.filter(pc.equal(table["table"], 1))
    assert [len(value) for value in lines["data"].to_pylist()] == [128] * 7


def test_a_capture_grows_under_another_name_for_its_user_alone(tmp_path: Path) -> None:
    path = tmp_path / "run.mtr"
    writer = CaptureWriter(path)
    assert not path.exists()
    assert stat.S_IMODE(writer.part_path.stat().st_mode) == 0o600
    assert writer.finish() == path
    assert [p.name for p in tmp_path.iterdir()] == ["run.mtr"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_an_existing_capture_is_refused_unless_forced(small: Path) -> None:
    before = small.read_bytes()
    with pytest.raises(RecordError, match="exists") as caught:
        CaptureWriter(small)
    assert "--force" in caught.value.hint
    writer = CaptureWriter(small, force=True)
    assert small.read_bytes() == before
    writer.finish()
    assert small.read_bytes() != before


def test_a_part_left_behind_is_refused_with_the_way_to_save_it(tmp_path: Path) -> None:
    CaptureWriter(tmp_path / "run.mtr").abandon()
    with pytest.raises(RecordError, match="cut short") as caught:
        CaptureWriter(tmp_path / "run.mtr")
    assert caught.value.hint.startswith("megatrace recover ")


def test_a_part_that_is_being_written_is_never_overwritten(tmp_path: Path) -> None:
    writer = CaptureWriter(tmp_path / "run.mtr")
    write_small(writer)
    with pytest.raises(RecordError, match="being written"):
        CaptureWriter(tmp_path / "run.mtr", force=True)
    with open_capture(writer.finish(), strict=True) as capture:
        assert capture.complete


@pytest.mark.parametrize("where", ["none/run.mtr", ".", "file/run.mtr"])
def test_a_place_that_cannot_be_written_is_known_before_the_run(tmp_path: Path, where: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RecordError):
        CaptureWriter(tmp_path / where)


def test_a_file_that_appears_meanwhile_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "run.mtr"
    writer = CaptureWriter(path)
    write_small(writer)
    path.write_text("precious")
    with pytest.raises(RecordError, match="appeared meanwhile"):
        writer.finish()
    assert path.read_text() == "precious"
    assert not is_locked(writer.part_path)
    with open_capture(writer.part_path) as capture:
        assert len(capture.line_index()) == 7


def test_an_unknown_kind_of_meta_is_refused(tmp_path: Path) -> None:
    writer = CaptureWriter(tmp_path / "run.mtr")
    with pytest.raises(UsageError, match="none of capture, ring"):
        writer.write_meta("gossip")
    writer.abandon()


def test_the_first_row_is_the_captures_own_even_if_nobody_wrote_it(tmp_path: Path) -> None:
    writer = CaptureWriter(tmp_path / "run.mtr")
    writer.write_lines(0, np.zeros(1, np.uint32), lines_of(0, 0, range(1, 2)), 0)
    with open_capture(writer.finish()) as capture:
        assert capture.meta[0].kind == "capture"
        assert capture.meta[0].fields["format"] == 1


def test_what_numpy_makes_is_written_as_json(tmp_path: Path) -> None:
    writer = CaptureWriter(tmp_path / "run.mtr")
    writer.write_meta("fact", 3, n=np.int64(4), a=np.arange(2), p=tmp_path, name="größe")
    with open_capture(writer.finish()) as capture:
        (row,) = capture.facts("fact")
        assert row.rank == 3
        assert row.fields == {"n": 4, "a": [0, 1], "p": str(tmp_path), "name": "größe"}


def test_flushed_rows_are_readable_while_the_writer_goes_on(tmp_path: Path) -> None:
    writer = CaptureWriter(tmp_path / "run.mtr")
    writer.write_lines(0, np.zeros(3, np.uint32), lines_of(0, 0, range(1, 4)), 0)
    writer.flush()
    with open_capture(writer.part_path) as capture:
        assert not capture.complete
        assert len(capture.line_index()) == 3
        assert "ends early" in capture.problems[0]
    writer.abandon()


def test_many_small_drains_make_few_batches(tmp_path: Path) -> None:
    writer = CaptureWriter(tmp_path / "run.mtr")
    lines = lines_of(0, 0, range(1, 101))
    for _ in range(1000):
        writer.write_lines(0, np.zeros(100, np.uint32), lines, 0)
    with pa.OSFile(str(writer.finish())) as file:
        sizes = [batch.num_rows for batch in pa.ipc.open_stream(file)]
    assert sum(sizes) == 100_002
    assert len(sizes) == 4
    assert max(sizes) <= BATCH_ROWS


ROWS = st.lists(st.tuples(st.integers(0, 65535), st.integers(0, 2**32 - 1), st.integers(0, 40)))


@settings(max_examples=40)
@given(ROWS, st.integers(0, 2**32 - 1))
def test_lines_of_any_ranks_and_rings_come_back(
    pieces: list[tuple[int, int, int]], seed: int
) -> None:
    random = Random(seed)  # the lines' bytes are not worth the examples' entropy
    with tempfile.TemporaryDirectory() as folder:
        writer = CaptureWriter(Path(folder) / "run.mtr")
        expected = []
        for rank, ring, count in pieces:
            data = np.frombuffer(random.randbytes(128 * count), np.uint32).reshape(-1, 32)
            writer.write_lines(rank, np.full(count, ring, np.uint32), data, count)
            expected.append(data)
            if count % 3 == 0:
                writer.flush()
        with open_capture(writer.finish(), strict=True) as capture:
            index = capture.line_index()
            assert index.rank.tolist() == [r for r, _, n in pieces for _ in range(n)]
            assert index.ring.tolist() == [r for _, r, n in pieces for _ in range(n)]
            lines = capture.gather(np.arange(len(index)))
            assert np.array_equal(lines, np.concatenate([np.zeros((0, 32), "u4"), *expected]))
            assert np.array_equal(index.number, lines[:, 0])


def test_what_is_no_capture_is_said_to_be_none(tmp_path: Path) -> None:
    path = tmp_path / "x.mtr"
    for data in (b"\0" * 100, b"#!/bin/sh\n", b"\xff" * 4096):
        path.write_bytes(data)
        with pytest.raises(FormatError, match=r"x\.mtr"):
            open_capture(path)


def test_another_arrow_stream_is_no_capture(tmp_path: Path) -> None:
    path = tmp_path / "x.mtr"
    table = pa.table({"a": [1, 2]})
    with pa.ipc.new_stream(str(path), table.schema) as stream:
        stream.write_table(table)
    with pytest.raises(FormatError, match="no capture"):
        open_capture(path)


def test_another_format_is_a_mismatch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("megatrace.capture.writer.FORMAT_VERSION", 7)
    path = CaptureWriter(tmp_path / "run.mtr").finish()
    with pytest.raises(SchemaMismatch, match="format 7"):
        open_capture(path)


def test_a_missing_file_names_the_part_that_is_there(tmp_path: Path) -> None:
    CaptureWriter(tmp_path / "run.mtr").abandon()
    with pytest.raises(CaptureError, match="No such file") as caught:
        open_capture(tmp_path / "run.mtr")
    assert caught.value.hint.endswith("run.mtr.part")
