"""The fraction of the floor on the command line, of the megakernel on an H200."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.collect.helpers import megatrace
from tests.said import with_floor, without_floor


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return with_floor(tmp_path_factory.mktemp("floor") / "layer.mtr")


@pytest.fixture(scope="module")
def unmeasured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return with_floor(tmp_path_factory.mktemp("floor") / "layer.mtr", bandwidth=False)


def test_the_report_has_a_row_a_layer_and_says_which_bandwidth(path: Path) -> None:
    done = megatrace("report", path)
    assert done.returncode == 0, done.stderr
    assert "median us  of the floor" in done.stdout
    text = " ".join(done.stdout.split())
    assert "4.20 TB/s, measured by the program that was recorded" in text
    assert max(map(len, done.stdout.splitlines())) <= 100


def test_the_json_has_the_same_rows_as_the_table(path: Path) -> None:
    report = json.loads(megatrace("report", path, "--json").stdout)["floor"]
    rows = json.loads(megatrace("tables", path, "floor", "--json").stdout)["rows"]
    assert [row["layer"] for row in report["rows"]] == [0, 1, 2]
    assert sum(row["launches"] for row in report["rows"]) == len(rows) == 6
    total = sum(row["floor_ns"] for row in rows) / sum(row["dur_ns"] for row in rows)
    assert report["fraction"] == pytest.approx(total, abs=1e-5)
    assert 0.3 < total < 1


def test_half_the_bandwidth_is_twice_the_fraction(path: Path) -> None:
    full, half = (
        json.loads(megatrace("report", path, "--json", "--bandwidth", rate).stdout)["floor"]
        for rate in ("4TB/s", "2000 GB/s")
    )
    assert full["bandwidth_from"] == "given"
    assert half["fraction"] == pytest.approx(2 * full["fraction"], rel=1e-3)


def test_without_a_bandwidth_there_are_bytes_and_the_reason(unmeasured: Path) -> None:
    done = megatrace("tables", unmeasured, "floor", "--json")
    rows = json.loads(done.stdout)["rows"]
    assert {row["fraction"] for row in rows} == {-1.0}
    assert min(row["bytes"] for row in rows) > 100e6
    assert "no bandwidth is known" in done.stderr
    assert "--bandwidth 4.2TB/s" in done.stderr
    assert "Fraction of the floor: no bandwidth is known" in megatrace("report", unmeasured).stdout
    view = json.loads(megatrace("view", unmeasured, "--json").stdout)
    assert any("no fraction of the floor" in note for note in view["notes"])


def test_a_program_that_said_no_bytes_has_no_floor_at_any_bandwidth(tmp_path: Path) -> None:
    unsaid = without_floor(tmp_path / "layer.mtr")
    done = megatrace("tables", unsaid, "floor", "--bandwidth", "4TB/s")
    assert "the program did not say what a launch must read" in done.stderr
    assert "floor has no rows" in done.stderr


def test_the_overview_of_a_capture_has_the_fraction_beside_the_time(path: Path) -> None:
    assert "of floor" in megatrace("view", path, "--once").stdout
    layers = json.loads(megatrace("view", path, "--json").stdout)["layers"]
    known = {row["layer"]: row["floor"] for row in layers if row["kernel"] == "layer"}
    assert all(0.3 < known[layer] < 1 for layer in (0, 1, 2))
    assert [row["floor"] for row in layers if row["kernel"] == "embed"] == [None]


def test_of_few_sms_every_view_says_that_it_is_at_most_this(path: Path) -> None:
    says = "is at most this: 9 of 132 blocks were recorded"
    assert says in " ".join(megatrace("report", path).stdout.split())
    floor = json.loads(megatrace("report", path, "--json").stdout)["floor"]
    assert floor["part_recorded"] == "9 of 132 blocks"
    table = megatrace("tables", path, "floor", "--json")
    assert says in table.stderr
    assert {(row["blocks_seen"], row["blocks"]) for row in json.loads(table.stdout)["rows"]} == {
        (9, 132)
    }
    notes = json.loads(megatrace("view", path, "--json").stdout)["notes"]
    assert any(says in note for note in notes)


@pytest.mark.parametrize("rate", ["4.2", "fast", "4.2TB", "-1TB/s", "0TB/s", "4TiB/s"])
def test_what_is_no_bandwidth_is_refused(path: Path, rate: str) -> None:
    done = megatrace("report", path, "--bandwidth", rate)
    assert done.returncode == 2
    assert "write it as 4.2TB/s" in done.stderr
