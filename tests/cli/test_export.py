"""``megatrace export``: the suffix says the format, and what is left out is said."""

from __future__ import annotations

import csv
import gzip
import json
import subprocess
from pathlib import Path

import pyarrow.parquet
import pytest

from megatrace.analysis.rank import probed_rings
from megatrace.capture.reader import open_capture
from megatrace.cli.shown import typical_step
from megatrace.documents import JSON_VERSION
from tests.analysis.small import MUSE
from tests.build import MS, Build, write
from tests.collect.helpers import megatrace
from tests.export.trace_processor import OpenTrace


def export(capture: Path, output: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return megatrace("export", capture, "-o", output, *options)


def steps_in(path: Path) -> set[int]:
    with path.open(newline="") as file:
        return {int(row["step"]) for row in csv.DictReader(file)}


@pytest.mark.parametrize("name", ["run.pftrace", "run.pftrace.gz"])
def test_a_trace_is_one_step_and_says_so(recorded: Path, tmp_path: Path, name: str) -> None:
    output = tmp_path / name
    done = export(recorded, output)
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    assert done.stderr.startswith(f"megatrace: wrote {output}: ")
    assert "left out: 39 of 40 steps" in done.stderr
    raw = output.read_bytes()
    assert (gzip.decompress(raw) if name.endswith(".gz") else raw)[:1] == b"\x0a"


@pytest.mark.parametrize("name", ["run.pftrace.gz", "run.csv", "run.parquet"])
def test_what_was_written_is_one_json_document(recorded: Path, tmp_path: Path, name: str) -> None:
    output = tmp_path / name
    done = export(recorded, output, "--json", "--budget", "2000", "--all")
    body = json.loads(done.stdout)
    assert (body["schema"], body["version"]) == ("megatrace.export", JSON_VERSION)
    assert body["path"] == str(output)
    assert body["size_bytes"] == output.stat().st_size
    assert body["format"] == {"gz": "perfetto"}.get(name.rpartition(".")[2], output.suffix[1:])
    assert (body["loss"], body["complete"]) == ("nothing lost", True)
    assert any("budget of 2,000" in phrase for phrase in body["left_out"])
    assert done.stderr.startswith(f"megatrace: wrote {output}: ")
    if output.suffix == ".csv":
        with output.open(newline="") as file:
            assert body["rows"] == len(list(csv.DictReader(file)))


def test_all_steps_are_more_than_one(recorded: Path, tmp_path: Path) -> None:
    one, every = tmp_path / "one.pftrace", tmp_path / "all.pftrace"
    assert export(recorded, one).returncode == 0
    done = export(recorded, every, "--all")
    assert "left out" not in done.stderr
    assert every.stat().st_size > 10 * one.stat().st_size


def test_a_budget_cuts_whole_launches_and_says_so(recorded: Path, tmp_path: Path) -> None:
    done = export(recorded, tmp_path / "run.pftrace", "--all", "--budget", "2000")
    assert done.returncode == 0
    assert "of 40 launches (budget of 2,000 slices)" in done.stderr


@pytest.mark.parametrize(
    ("table", "rows", "cut"),
    [
        ("records", 3 * 640, "37 of 40 launches (budget of 2,000 rows)"),
        ("launches", 40 * 16, ""),
        ("host", 40, ""),
    ],
)
def test_a_budget_counts_the_rows_of_a_table(
    recorded: Path, tmp_path: Path, table: str, rows: int, cut: str
) -> None:
    output = tmp_path / "run.csv"
    done = export(recorded, output, "--all", "--budget", "2000", "--table", table)
    assert f"{rows:,} rows of {table}" in done.stderr
    assert len(output.read_text().splitlines()) == rows + 1
    assert ("left out: " + cut if cut else "nothing lost") in done.stderr
    assert ("left out" in done.stderr) == bool(cut)


def test_a_budget_of_next_to_nothing_keeps_one_launch_as_the_help_says(
    recorded: Path, tmp_path: Path
) -> None:
    done = export(recorded, tmp_path / "run.csv", "--all", "--budget", "1")
    assert "640 rows of records" in done.stderr
    assert "39 of 40 launches (budget of 1 rows)" in done.stderr
    assert "at least one launch is kept" in " ".join(megatrace("export", "--help").stdout.split())


def test_host_rows_are_those_of_the_steps_asked_for(recorded: Path, tmp_path: Path) -> None:
    output = tmp_path / "host.csv"
    done = export(recorded, output, "--table", "host", "--steps", "5:8")
    assert "3 rows of host; nothing lost; left out: all but steps 5 to 7" in done.stderr
    assert steps_in(output) == {5, 6, 7}
    done = export(recorded, output, "--table", "host", "--force")
    assert "40 rows of host" in done.stderr
    assert "left out" not in done.stderr


@pytest.mark.parametrize("name", ["run.pftrace", "run.pftrace.gz"])
@pytest.mark.parametrize("table", ["records", "host"])
def test_a_table_of_a_trace_for_perfetto_is_a_usage_error(
    recorded: Path, tmp_path: Path, name: str, table: str
) -> None:
    done = export(recorded, tmp_path / name, "--table", table)
    assert done.returncode == 2
    assert f"--table {table}: {name} is a trace for Perfetto" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_viewer_is_named_for_traces_alone(recorded: Path, tmp_path: Path) -> None:
    done = export(recorded, tmp_path / "run.pftrace.gz")
    assert done.stderr.splitlines()[-1] == "megatrace: next: open it at https://ui.perfetto.dev"
    assert done.stdout == ""
    assert "next:" not in export(recorded, tmp_path / "run.csv").stderr


@pytest.mark.parametrize(
    ("options", "steps"),
    [
        (("--step", "7"), {7}),
        (("--steps", "5:8"), {5, 6, 7}),
        (("--steps", "5:+2"), {5, 6}),
        (("--all",), set(range(1, 41))),
    ],
)
def test_the_steps_asked_for_are_in_the_table(
    recorded: Path, tmp_path: Path, options: tuple[str, ...], steps: set[int]
) -> None:
    output = tmp_path / "run.csv"
    done = export(recorded, output, *options)
    assert done.returncode == 0, done.stderr
    assert steps_in(output) == steps


def test_a_table_without_a_choice_is_one_step_too(recorded: Path, tmp_path: Path) -> None:
    done = export(recorded, tmp_path / "run.csv")
    assert len(steps_in(tmp_path / "run.csv")) == 1
    assert "left out: all but step" in done.stderr


def test_parquet_has_the_table_asked_for(recorded: Path, tmp_path: Path) -> None:
    output = tmp_path / "run.parquet"
    assert export(recorded, output, "--table", "launches", "--all").returncode == 0
    assert pyarrow.parquet.read_table(output).num_rows == 40 * 16


def test_a_step_without_a_timeline_is_one_clear_error(recorded: Path, tmp_path: Path) -> None:
    done = export(recorded, tmp_path / "run.csv", "--step", "999")
    assert done.returncode == 2
    assert "no timeline of step 999" in done.stderr
    assert "megatrace: hint: it has steps 1-40\n" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "options",
    [("--step", "1", "--all"), ("--steps", "1:2", "--step", "1"), ("--steps", "0:99999999")],
)
def test_a_wrong_choice_of_steps_is_a_usage_error(
    recorded: Path, tmp_path: Path, options: tuple[str, ...]
) -> None:
    done = export(recorded, tmp_path / "run.csv", *options)
    assert done.returncode == 2
    assert done.stderr.count("megatrace: error: ") == 1


def test_an_unknown_suffix_names_those_there_are(recorded: Path, tmp_path: Path) -> None:
    done = export(recorded, tmp_path / "run.json")
    assert done.returncode == 2
    assert ".pftrace.gz" in done.stderr
    assert ".parquet" in done.stderr


def test_existing_output_is_refused_before_the_capture_is_read(tmp_path: Path) -> None:
    output = tmp_path / "run.csv"
    output.write_text("old")
    done = export(tmp_path / "none.mtr", output)
    assert done.returncode == 1
    assert "--force" in done.stderr
    assert output.read_text() == "old"


def test_a_missing_directory_is_1_as_an_existing_file_is(recorded: Path, tmp_path: Path) -> None:
    done = export(recorded, tmp_path / "none" / "run.csv")
    assert done.returncode == 1
    assert f"no directory {tmp_path / 'none'}" in done.stderr


def test_force_overwrites(recorded: Path, tmp_path: Path) -> None:
    output = tmp_path / "run.csv"
    output.write_text("old")
    assert export(recorded, output, "--force").returncode == 0
    assert len(steps_in(output)) == 1


def test_an_incomplete_capture_is_exported_and_said(cut: Path, tmp_path: Path) -> None:
    done = export(cut, tmp_path / "run.pftrace")
    assert done.returncode == 0, done.stderr
    assert "is incomplete" in done.stderr
    assert "; loss unknown; " in done.stderr
    assert export(cut, tmp_path / "again.pftrace", "--strict").returncode == 3


def test_the_step_of_a_large_capture_is_one_that_it_has(recorded: Path) -> None:
    with open_capture(recorded) as capture:
        chosen = typical_step(capture)
    assert chosen is not None
    assert len(chosen) == 1
    assert 1 <= chosen[0] <= 40


def test_a_capture_of_few_sms_has_a_typical_step_too(tmp_path: Path) -> None:
    """2 of 132 blocks hold lines: rings looked at must be of those."""
    output = tmp_path / "run.csv"
    body = json.loads(export(MUSE, output, "--json").stdout)
    assert len(steps_in(output)) == 1
    assert body["left_out"] == [f"all but step {min(steps_in(output))}"]
    with open_capture(MUSE) as capture:
        held = set(capture.line_index().ring.tolist())
        assert len(probed_rings(capture, None)) == 8
        assert probed_rings(capture, [0]) <= held
        assert probed_rings(capture, [7]) == set()


@pytest.mark.usefixtures("plain_terminal")
def test_progress_to_no_terminal_has_no_escape_codes(recorded: Path, tmp_path: Path) -> None:
    done = export(recorded, tmp_path / "run.pftrace", "--all")
    assert "\x1b" not in done.stderr
    assert "\r" not in done.stderr


@pytest.fixture
def host_only(tmp_path: Path) -> Path:
    """A capture of a server without a traced kernel: ten decode steps, a request each."""
    build = Build(traced=False)
    for number in range(1, 11):
        at = number * MS
        build.host("step", at, at + MS // 2, number, (1, 1, 0, -1))
        build.host("decode", at + 1000, at + MS // 3, number, (1, 1, 0, -1))
        build.host("request", at, at, number, text=f"request {number}")
    return write(tmp_path / "server.mtr", build)


def test_a_capture_of_the_host_alone_opens_with_its_tracks(host_only: Path, tmp_path: Path) -> None:
    output = tmp_path / "server.pftrace.gz"
    done = export(host_only, output)
    assert "of steps 1 to 10 (10); nothing lost" in done.stderr
    opened = OpenTrace(output)
    assert opened.complaints() == []
    rows = opened.rows(
        "select track.name as track, count() as n from slice join track on track_id = track.id "
        "where category = 'host' group by 1 order by 1"
    )
    assert rows == [("rank 0 CPU", 20), ("requests", 10)]


def test_steps_of_the_host_alone_can_be_chosen(host_only: Path, tmp_path: Path) -> None:
    done = export(host_only, tmp_path / "run.csv", "--table", "host", "--steps", "4:6")
    assert done.returncode == 0, done.stderr
    assert steps_in(tmp_path / "run.csv") == {4, 5}
    done = export(host_only, tmp_path / "b.csv", "--step", "11")
    assert "no host event of step 11" in done.stderr
    assert "it has steps 1-10" in done.stderr


def test_an_empty_table_names_the_one_with_rows(host_only: Path, tmp_path: Path) -> None:
    done = export(host_only, tmp_path / "run.csv")
    assert "no kernel was traced: --table host has 30 rows" in done.stderr
