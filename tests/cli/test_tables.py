"""``megatrace tables``."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from click.testing import CliRunner

from megatrace.analysis import decode, views
from megatrace.analysis.columns import TABLES
from megatrace.capture.reader import open_capture
from megatrace.cli import tables
from megatrace.cli.table_notes import refuse_absent
from megatrace.schema.processes import number_of
from tests.analysis.small import MUSE, STREAM
from tests.analysis.test_sync_waits import two_ranks
from tests.build import Build, demo, write


def megatrace(*args: object, code: int = 0) -> subprocess.CompletedProcess[str]:
    """A command that must end with ``code``."""
    done = subprocess.run(
        [sys.executable, "-m", "megatrace", *map(str, args)],
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    return done


def rows(file: Path, name: str, *options: object) -> list[dict[str, Any]]:
    body = json.loads(megatrace("tables", file, name, *options, "--json").stdout)
    assert body["schema"] == "megatrace.table"
    found: list[dict[str, Any]] = body["rows"]
    return found


def whole(file: Path, name: str) -> pd.DataFrame:
    with open_capture(file) as capture:
        frame: pd.DataFrame = getattr(views, name)(decode(capture))
    return frame


def test_without_a_name_it_says_what_tables_there_are() -> None:
    text = megatrace("tables", MUSE).stdout
    for table in TABLES.values():
        assert f"\n{table.name}\n" in f"\n{text}"
        for column in table.columns:
            assert f"  {column.name}" in text
    listed = json.loads(megatrace("tables", MUSE, "--json").stdout)["tables"]
    assert [table["name"] for table in listed] == list(TABLES)


def test_the_json_has_every_row_of_the_table_and_its_units() -> None:
    body = json.loads(megatrace("tables", MUSE, "launch_times", "--json").stdout)
    assert body["rows"] == whole(MUSE, "launch_times").astype({"kernel": object}).to_dict("records")
    assert body["units"]["dur_ns"] == "ns"


def test_the_csv_reads_back_as_the_table() -> None:
    text = megatrace("tables", STREAM, "prefetch_timing", "--format", "csv").stdout
    read = list(csv.DictReader(io.StringIO(text)))
    frame = whole(STREAM, "prefetch_timing")
    assert [int(row["late_ns"]) for row in read] == frame["late_ns"].tolist()
    assert [row["verdict"] for row in read] == frame["verdict"].tolist()


def test_parquet_goes_to_a_file(tmp_path: Path) -> None:
    path = tmp_path / "table.parquet"
    with path.open("wb") as out:
        subprocess.run(
            [sys.executable, "-m", "megatrace", "tables", MUSE, "phase_times", "--format",
             "parquet"],
            stdout=out, check=True,
        )  # fmt: skip
    assert pd.read_parquet(path)["busy_ns"].tolist() == whole(MUSE, "phase_times").busy_ns.tolist()


def test_steps_and_layers_and_launches_narrow_it() -> None:
    assert {row["step"] for row in rows(MUSE, "stall_classes", "--step", 2)} == {2}
    assert {row["step"] for row in rows(MUSE, "launch_times", "--steps", "2:4")} == {2, 3}
    assert {row["layer"] for row in rows(MUSE, "sync_waits", "--layer", 1)} == {1}
    assert {row["layer"] for row in rows(MUSE, "phase_times", "--layer", "0,2")} == {0, 2}
    assert {row["launch_no"] for row in rows(MUSE, "phase_times", "--launch", 5)} == {5}


def test_one_rank_alone_can_be_asked_for(tmp_path: Path) -> None:
    path = write(tmp_path / "two.mtr", *demo(ranks=2))
    assert {row["rank"] for row in rows(path, "launch_times")} == {0, 1}
    assert {row["rank"] for row in rows(path, "launch_times", "--rank", 1)} == {1}


@pytest.mark.parametrize("rank", ["2", "1#2", "70000", "0#257", "256#1", "one", "-1"])
def test_a_rank_that_is_not_there_is_refused_with_those_that_are(tmp_path: Path, rank: str) -> None:
    path = write(tmp_path / "two.mtr", *demo(ranks=2))
    done = megatrace("tables", path, "launch_times", "--rank", rank, code=2)
    error, next_step = done.stderr.splitlines()
    assert rank in error
    assert "it has 0, 1" in next_step
    assert done.stdout == ""


def test_a_critical_path_is_of_the_launch_or_step_asked_for() -> None:
    launch = rows(MUSE, "critical_path", "--launch", 4)
    assert {row["launch_no"] for row in launch} == {4}
    assert {row["launch_no"] for row in rows(MUSE, "critical_path", "--step", 2)} == {4, 5, 6, 7}
    assert len({row["step"] for row in rows(MUSE, "critical_path")}) == 1


def test_one_column_of_moments_counts_and_two_count() -> None:
    assert (
        "megatrace: begin_ns counts from the first"
        in megatrace("tables", MUSE, "step_times").stderr
    )
    said = megatrace("tables", MUSE, "launch_times").stderr
    assert "megatrace: begin_ns, end_ns count from the first" in said


def test_a_table_of_few_sms_says_so() -> None:
    assert (
        "megatrace: 2 of 132 SMs recorded (--sms 0-1)\n"
        in megatrace("tables", MUSE, "launch_times").stderr
    )


def test_a_table_of_all_sms_says_nothing_of_them(tmp_path: Path) -> None:
    path = write(tmp_path / "two.mtr", *demo(ranks=2))
    assert "SMs" not in megatrace("tables", path, "launch_times").stderr


@pytest.mark.parametrize("name", ["critical_path", "critical_path_sums"])
def test_a_path_says_what_of_it_nobody_can_follow(name: str) -> None:
    """Two SMs of 132 were recorded: most publishers were not."""
    frame = pd.DataFrame(rows(MUSE, name, "--step", 2))
    unknown, whole = (frame[column].sum() / 1e3 for column in ("from_unknown_ns", "dur_ns"))
    said = megatrace("tables", MUSE, name, "--step", 2).stderr
    assert (
        f"2 of 132 SMs recorded (--sms 0-1): {unknown:,.1f} of {whole:,.1f} us of the path" in said
    )
    assert unknown > 0


@pytest.mark.parametrize("part", [("--launch", 0), ("--step", 1), ()])
def test_a_path_of_one_rank_knows_what_its_peers_published(
    tmp_path: Path, part: tuple[object, ...]
) -> None:
    """Rank 0 publishes on the same edge, a little before."""
    path = write(tmp_path / "two.mtr", *two_ranks(clocked=True))
    words = (path, "critical_path", *part)
    assert "not recorded" not in megatrace("tables", *words).stderr
    assert rows(*words, "--rank", 0) == rows(*words)
    assert {row["rank"] for row in rows(*words, "--rank", 1)} == {1}


def test_sync_waits_of_one_rank_know_who_ended_them(tmp_path: Path) -> None:
    path = write(tmp_path / "two.mtr", *two_ranks(clocked=True))
    assert [row["from_rank"] for row in rows(path, "sync_waits", "--rank", 0)] == [1]
    assert rows(path, "sync_waits", "--rank", 1) == []


def test_the_sums_of_a_path_are_of_the_launch_asked_for() -> None:
    sums = rows(MUSE, "critical_path_sums", "--launch", 5)
    assert sum(row["dur_ns"] for row in sums) == sum(
        row["dur_ns"] for row in rows(MUSE, "critical_path", "--launch", 5)
    )


@pytest.mark.parametrize("small", [1 << 18, 0], ids=["at once", "by step"])
@pytest.mark.parametrize(("layers", "step"), [((3, 2), 1), ((2, 3), 2)])
def test_a_path_of_a_launch_is_one_path_of_the_lowest_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small: int, layers: tuple[int, int], step: int
) -> None:
    """Launch 2 is in step 1 of a process with 3 layers, in step 2 of one with 2."""
    monkeypatch.setattr(tables, "_SMALL_LINES", small)
    first, second = (demo(steps=3, layers=many)[0] for many in layers)
    second.rank = number_of(0, 2)
    path = write(tmp_path / "two.mtr", first, second)
    words = [str(path), "critical_path", "--launch", "2", "--json"]
    done = CliRunner().invoke(tables.command, words)
    found = json.loads(done.stdout)["rows"]
    assert {(row["process"], row["step"]) for row in found} == {(1, step)}
    assert "the path is of launch_no 2 of rank 0 alone; --rank 0#2 is of another" in done.stderr


def test_the_sums_of_several_paths_are_a_row_set_a_step_and_said_to_be(tmp_path: Path) -> None:
    path = write(tmp_path / "two.mtr", *demo(ranks=2))
    frame = pd.DataFrame(rows(path, "critical_path_sums", "--steps", "1:3"))
    assert frame["step"].is_monotonic_increasing
    for _, of in frame.groupby("step"):
        assert of["share"].sum() == pytest.approx(1)
        assert of["dur_ns"].is_monotonic_decreasing
    said = megatrace("tables", path, "critical_path_sums", "--steps", "1:3").stderr
    assert "the path is of steps 1-2 of rank 0 alone; --rank 1 is of another" in said
    assert "of several steps one after another" in TABLES["critical_path_sums"].doc


def test_a_large_capture_of_few_sms_has_a_typical_step_for_its_critical_path(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tables, "_SMALL_LINES", 0)
    done = CliRunner().invoke(tables.command, [str(MUSE), "critical_path", "--json"])
    assert len({row["step"] for row in json.loads(done.stdout)["rows"]}) == 1


def test_the_text_is_short_and_says_what_it_leaves_out() -> None:
    done = megatrace("tables", MUSE, "stall_classes", "--top", 3)
    assert len(done.stdout.splitlines()) == 1 + 3
    assert "more rows" in done.stderr
    done = megatrace("tables", MUSE, "launch_times")
    first = done.stdout.splitlines()[1].split()
    assert first[5] == "0"
    assert "count from the first" in done.stderr


@pytest.mark.parametrize(
    ("options", "cause", "hint"),
    [
        (["stall_classes", "--step", 500], "no timeline of step 500", "it has steps 1-4"),
        (["launch_times", "--steps", "7:9"], "no timeline of step 7 to 8", "it has steps 1-4"),
        (
            ["stall_classes", "--steps", f"7:{2**64 - 1}"],
            f"no timeline of step 7 to {2**64 - 2}",
            "it has steps 1-4",
        ),
        (["critical_path", "--step", 500], "no timeline of step 500", "it has steps 1-4"),
        (["step_times", "--step", 500], "no step 500", "it has steps 1-4"),
        (["stall_classes", "--layer", 77], "no layer 77", "it has layers 0-2"),
        (["stall_classes", "--layer", "0-1,77"], "no layer 77", "it has layers 0-2"),
        (["critical_path", "--launch", 99999], "no launch_no 99999", "it has launch_no 0-15"),
        (["phase_times", "--step", 2, "--layer", 77], "no layer 77", "it has layers 0-2"),
    ],
)
def test_a_part_that_is_not_there_is_refused_with_what_there_is(
    options: list[object], cause: str, hint: str
) -> None:
    done = megatrace("tables", MUSE, *options, code=2)
    error, next_step = done.stderr.splitlines()
    assert error == f"megatrace: error: {MUSE} has {cause}"
    assert next_step == f"megatrace: hint: {hint}"
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("options", "cause", "hint"),
    [
        (["nope"], "no table 'nope'", "one of stall_classes"),
        (["launch_times", "--bandwidth", "4TB/s"], "for the table floor", "leave it out"),
        (["step_times", "--layer", 1], "has no column layer", "leave out --layer"),
        (["launch_times", "--step", 1, "--steps", "1:2"], "exclude each other", "one of them"),
        (["--format", "csv"], "the list of tables is no csv", "NAME"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(
    options: list[object], cause: str, hint: str
) -> None:
    done = megatrace("tables", MUSE, *options, code=2)
    assert done.stdout == ""
    error, next_step = done.stderr.splitlines()
    assert cause in error
    assert hint in next_step


def test_a_file_that_is_no_capture_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.mtr").write_text("no")
    done = megatrace("tables", tmp_path / "x.mtr", code=1)
    assert "not a megatrace capture" in done.stderr
    assert done.stdout == ""


def test_steps_without_end_are_those_that_are_there() -> None:
    assert {row["step"] for row in rows(MUSE, "launch_times", "--steps", "3:999999999999")} == {
        3,
        4,
    }


def test_an_empty_table_says_why(tmp_path: Path) -> None:
    path = write(tmp_path / "empty.mtr", Build(traced=False))
    done = megatrace("tables", path, "stall_classes")
    assert "no kernel was traced" in done.stderr
    assert done.stdout.split()[:2] == ["rank", "launch_no"]
    assert "nothing in this capture" in megatrace("tables", STREAM, "expert_traffic").stderr


def test_of_an_empty_table_nothing_is_loaded_where_no_part_was_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def load(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr("megatrace.analysis.trace.load", load)
    with open_capture(STREAM) as capture:
        refuse_absent(capture, pd.DataFrame(), None, None, None, None, host=False)


def test_loss_is_said_with_the_table(tmp_path: Path) -> None:
    (made,) = demo()
    made.lose(0, 2)
    done = megatrace("tables", write(tmp_path / "lossy.mtr", made), "stall_classes")
    assert "1 of" in done.stderr
    assert "lines lost" in done.stderr
    assert "unknown" in done.stdout


def test_an_incomplete_capture_is_said_and_strict_exits_with_three(cut: Path) -> None:
    done = megatrace("tables", cut, "launch_times", "--strict", code=3)
    assert "is incomplete" in done.stderr
    assert megatrace("tables", cut, "launch_times").stdout == done.stdout
