"""A rank that was started twice: every verb says rank and process, programs get them apart."""

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

from megatrace.analysis import decode, views
from megatrace.capture.reader import open_capture
from tests.collect.helpers import environment, megatrace

STEPS = {(0, 1): 6, (1, 1): 6, (0, 2): 4, (1, 2): 3}
"""Steps of each rank and process."""
NAMES = ("0", "1", "0#2", "1#2")


def told(path: Path, *words: str) -> Any:
    done = megatrace(words[0], path, *words[1:], "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def pairs(rows: list[dict[str, Any]]) -> set[tuple[int, int]]:
    return {(row["rank"], row["process"]) for row in rows}


def whole(path: Path, name: str) -> pd.DataFrame:
    with open_capture(path) as capture:
        frame: pd.DataFrame = getattr(views, name)(decode(capture))
    return frame.astype(dict.fromkeys(frame.select_dtypes("category"), object))


@pytest.mark.parametrize("name", ["launch_times", "stall_classes", "step_times"])
def test_a_table_is_the_same_in_pandas_json_csv_and_parquet(restarted: Path, name: str) -> None:
    frame = whole(restarted, name)
    rows = frame.to_dict("records")
    assert pairs(rows) == STEPS.keys()
    assert told(restarted, "tables", name)["rows"] == rows
    text = megatrace("tables", restarted, name, "--format", "csv").stdout
    read = [(int(row["rank"]), int(row["process"])) for row in csv.DictReader(io.StringIO(text))]
    assert read == list(zip(frame["rank"], frame["process"], strict=True))
    command = [sys.executable, "-m", "megatrace", "tables", restarted, name, "--format", "parquet"]
    done = subprocess.run(command, capture_output=True, check=True, env=environment())
    assert pd.read_parquet(io.BytesIO(done.stdout)).to_dict("records") == rows


def test_steps_of_each_process_are_its_own(restarted: Path) -> None:
    steps = whole(restarted, "step_times")
    assert steps.groupby(["rank", "process"]).size().to_dict() == STEPS
    times = whole(restarted, "launch_times")
    assert (times.groupby(["rank", "process"])["launch_no"].min() == 0).all()


def test_people_read_one_text_in_place_of_two_columns(restarted: Path) -> None:
    head, *rows = megatrace("tables", restarted, "step_times").stdout.splitlines()
    assert head.split()[:2] == ["rank", "step"]
    assert {row.split()[0] for row in rows} == set(NAMES)
    report = megatrace("report", restarted).stdout
    assert "2 ranks in 4 processes" in report
    for name in NAMES:
        assert any(line.split()[:1] == [name] for line in report.splitlines()), name


def test_rows_of_a_report_say_rank_and_process(restarted: Path) -> None:
    report = told(restarted, "report")
    for name in ("host_steps", "stalls", "loss", "overhead", "clocks"):
        assert pairs(report[name]) == STEPS.keys(), name
    steps = {(row["rank"], row["process"]): row["count"] for row in report["host_steps"]}
    assert steps == STEPS
    assert (report["ranks"], report["processes"]) == (2, 4)


def test_info_and_the_overview_say_rank_and_process(restarted: Path) -> None:
    info = told(restarted, "info")
    assert pairs(info["ranks"]) == STEPS.keys()
    attached = [fact for fact in info["facts"] if fact["name"] == "attach"]
    assert {(f["rank"], f["process_of_rank"]) for f in attached} == STEPS.keys()
    view = told(restarted, "view")
    assert pairs(view["ranks"]) == STEPS.keys()
    assert tuple(view["layers_by_rank"]) == NAMES


def test_frames_are_exported_with_rank_and_process(restarted: Path, tmp_path: Path) -> None:
    path = tmp_path / "launches.csv"
    done = megatrace("export", restarted, "-o", path, "--table", "launches", "--all")
    assert done.returncode == 0, done.stderr
    frame = pd.read_csv(path)
    found = frame.groupby(["rank", "process"])["step"].nunique().to_dict()
    assert found == STEPS


def test_one_process_of_a_rank_can_be_asked_for(restarted: Path, tmp_path: Path) -> None:
    rows = told(restarted, "tables", "launch_times", "--rank", "0#2")["rows"]
    assert pairs(rows) == {(0, 2)}
    done = megatrace("export", restarted, "-o", tmp_path / "a.pftrace", "--rank", "0#2")
    assert "left out: all but rank 0#2, all but step" in done.stderr
    done = megatrace(
        "export", restarted, "-o", tmp_path / "b.pftrace", "--rank", "1#2", "--step", 4
    )
    assert done.returncode == 2
    assert "it has steps 1-3" in done.stderr


@pytest.mark.parametrize("verb", [("tables", "launch_times"), ("export", "-o", "x.csv")])
def test_the_number_inside_of_a_capture_is_no_rank_to_ask_for(
    restarted: Path, verb: tuple[str, ...]
) -> None:
    done = megatrace(verb[0], restarted, *verb[1:], "--rank", "256")
    assert done.returncode == 2
    assert "it has 0, 1, 0#2, 1#2" in done.stderr


def test_a_path_says_whose_it_is_where_it_may_be_of_another(restarted: Path) -> None:
    done = megatrace("tables", restarted, "critical_path", "--step", 2)
    assert "the path is of step 2 of rank 0 alone; --rank 1 is of another" in done.stderr
    done = megatrace("tables", restarted, "critical_path", "--step", 2, "--rank", "1#2")
    assert "alone" not in done.stderr
    assert {line.split()[0] for line in done.stdout.splitlines()[1:]} == {"1#2"}


def test_times_of_several_clocks_are_said_to_be(restarted: Path) -> None:
    done = megatrace("tables", restarted, "launch_times")
    assert "each rank's on a clock of its own" in done.stderr
    done = megatrace("tables", restarted, "launch_times", "--rank", 1)
    assert "own" not in done.stderr


def test_the_plain_overview_has_a_row_for_each(restarted: Path) -> None:
    lines = megatrace("view", restarted).stdout.splitlines()
    begin = next(i for i, line in enumerate(lines) if line.startswith("rank "))
    assert [line.split()[0] for line in lines[begin + 1 : begin + 5]] == list(NAMES)
    assert max(map(len, lines[begin : begin + 5])) <= 100


def test_a_trace_of_one_step_has_no_host_of_a_process_that_it_leaves_out(
    restarted: Path, tmp_path: Path
) -> None:
    path = tmp_path / "run.pftrace"
    done = megatrace("export", restarted, "-o", path)
    assert "left out: rank 0#2, rank 1#2, 5 of 6 steps" in done.stderr
    assert b"rank 1 CPU" in path.read_bytes()
    assert b"rank 1#2 CPU" not in path.read_bytes()
