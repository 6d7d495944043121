"""Frames as CSV and Parquet, read back by pandas."""

from __future__ import annotations

import stat
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq
import pytest

from megatrace.analysis import Trace
from megatrace.errors import UsageError
from megatrace.export import TableName, export_table, tabular
from megatrace.export.output import OutputError
from tests.export.traces import Builder, assemble, small_trace


@pytest.fixture(scope="module")
def trace() -> Trace:
    return small_trace(lines_lost=3)


def read_back(path: Path) -> pd.DataFrame:
    if path.suffix == ".parquet":
        return pd.read_parquet(path)
    return pd.read_csv(path, keep_default_na=False)


@pytest.mark.parametrize("suffix", [".csv", ".csv.gz", ".parquet"])
@pytest.mark.parametrize("table", ["records", "launches", "host"])
def test_a_table_comes_back_as_it_was(
    trace: Trace, tmp_path: Path, table: TableName, suffix: str
) -> None:
    result = export_table(trace, tmp_path / f"t{suffix}", table)
    frame: pd.DataFrame = getattr(trace, table)
    back = read_back(result.path)
    assert result.rows == len(back) == len(frame)
    for name in frame:
        plain = frame[name].astype(str) if frame[name].dtype == "category" else frame[name]
        pd.testing.assert_series_equal(
            back[name], plain, check_dtype=False, check_names=False, check_index_type=False
        )
    assert list(back) == list(frame)


def test_parquet_carries_loss_clock_version_and_command(trace: Trace, tmp_path: Path) -> None:
    path = export_table(trace, tmp_path / "t.parquet", command="serve").path
    facts = pq.read_schema(path).metadata
    assert b"3 of 103 lines lost" in facts[b"megatrace.loss"]
    assert facts[b"megatrace.clock"] == b"rank 0: error 40 ns"
    assert facts[b"megatrace.command"] == b"serve"
    assert facts[b"megatrace.version"].startswith(b"megatrace ")


def test_chunks_make_one_table(
    trace: Trace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tabular, "_ROWS_A_CHUNK", 1000)
    seen: list[tuple[int, int]] = []
    path = tmp_path / "t.parquet"
    result = export_table(trace, path, progress=lambda *now: seen.append(now))
    assert len(pd.read_parquet(path)) == result.rows > 2000
    assert [done for done, _ in seen] == [1000, 2000, result.rows]


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_an_empty_table_keeps_its_columns(tmp_path: Path, suffix: str) -> None:
    empty = assemble([Builder()], clocks={})
    back = read_back(export_table(empty, tmp_path / f"t{suffix}", "launches").path)
    assert list(back) == list(empty.launches)
    assert len(back) == 0


def test_a_table_is_private_and_never_overwritten_unasked(trace: Trace, tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    export_table(trace, path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with pytest.raises(OutputError, match="exists"):
        export_table(trace, path)
    export_table(trace, path, force=True)


@pytest.mark.parametrize("table", ["records", "launches"])
@pytest.mark.parametrize("budget", [1, 300, 10_000])
def test_a_budget_keeps_whole_launches_and_says_what_it_cut(
    trace: Trace, tmp_path: Path, table: TableName, budget: int
) -> None:
    result = export_table(trace, tmp_path / "t.parquet", table, budget=budget)
    back = read_back(result.path)
    rows = len(getattr(trace, table))
    numbers = trace.launches["launch"].to_numpy()
    of = back["launch"] if table == "launches" else numbers[back["launch_row"]]
    frame = getattr(trace, table)
    all_of = frame["launch"] if table == "launches" else numbers[frame["launch_row"]]
    assert result.rows == len(back) == sum(number in set(of) for number in all_of)
    assert 0 < len(back) <= budget or len(set(of)) == 1
    assert bool(result.left_out) == (len(back) < rows)


def test_a_name_that_is_no_table_is_refused(trace: Trace, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"t\.xlsx"):
        export_table(trace, tmp_path / "t.xlsx")
