"""``megatrace recover`` on files alone; with rings see tests/collect/test_signals.py."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from megatrace.capture.reader import open_capture
from tests.collect.helpers import megatrace


def test_a_part_becomes_a_capture_and_stays(cut: Path) -> None:
    part = cut.with_name("run.mtr.part")
    cut.rename(part)
    before = part.read_bytes()
    done = megatrace("recover", part, "--json")
    assert done.returncode == 0, done.stderr
    body = json.loads(done.stdout)
    assert body["path"] == str(part.with_suffix(""))
    assert body["lines_lost"] is None
    assert body["lost_bytes"] > 0
    assert part.read_bytes() == before
    with open_capture(body["path"]) as capture:
        assert capture.recovered
        assert len(capture.line_index()) == body["lines"]
    assert [p.name for p in part.parent.iterdir() if p.name.startswith(".")] == []


def test_a_recovered_capture_is_called_incomplete_for_good(cut: Path) -> None:
    megatrace("recover", cut, "-o", cut.with_name("out.mtr"))
    done = megatrace("report", cut.with_name("out.mtr"), "--strict")
    assert done.returncode == 3
    assert "recovered" in done.stderr


def test_existing_output_is_refused(cut: Path) -> None:
    output = cut.with_name("out.mtr")
    output.write_text("old")
    done = megatrace("recover", cut, "-o", output)
    assert done.returncode == 1
    assert "--force" in done.stderr
    assert output.read_text() == "old"
    assert megatrace("recover", cut, "-o", output, "--force").returncode == 0


def test_the_default_name_of_a_damaged_capture_is_another(cut: Path) -> None:
    assert megatrace("recover", cut).returncode == 0
    assert cut.with_name("cut.recovered.mtr").exists()


@pytest.mark.parametrize(
    ("content", "words"),
    [(b"", "it is empty"), (b"nothing of a capture " * 50, "not a megatrace capture")],
)
def test_a_file_without_a_sound_batch_is_one_clear_error(
    tmp_path: Path, content: bytes, words: str
) -> None:
    path = tmp_path / "run.mtr.part"
    path.write_bytes(content)
    done = megatrace("recover", path)
    assert done.returncode == 1
    assert done.stderr.count("megatrace: error: ") == 1
    assert done.stderr.startswith(f"megatrace: error: {path}: {words}")
    assert "Traceback" not in done.stderr
    assert sorted(p.name for p in tmp_path.iterdir()) == ["run.mtr.part"]


def test_a_directory_and_a_missing_file_are_called_so(tmp_path: Path) -> None:
    done = megatrace("recover", tmp_path)
    assert done.returncode == 1
    assert f"{tmp_path} is a directory" in done.stderr
    done = megatrace("recover", tmp_path / "none.mtr.part")
    assert done.returncode == 1
    assert f"no file {tmp_path / 'none.mtr.part'}" in done.stderr


def test_the_counts_are_grouped_as_everywhere(cut: Path) -> None:
    # Where the cut falls in a batch is the clock's choice.
    cut.write_bytes(cut.read_bytes() + bytes(4000))
    lost_bytes = json.loads(megatrace("recover", cut, "--json").stdout)["lost_bytes"]
    assert lost_bytes >= 1000
    assert f", {lost_bytes:,} bytes unusable" in megatrace("recover", cut, "--force").stderr
