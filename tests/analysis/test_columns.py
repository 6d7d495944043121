"""The tables are what their declarations say, on real captures and on nothing at all."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest

from megatrace.analysis import Trace, decode, views
from megatrace.analysis.columns import CLASSES, TABLES, VERDICTS
from megatrace.analysis.traffic import Bandwidth, Traffic
from megatrace.capture.reader import open_capture
from megatrace.schema.traffic import LaunchBytes
from tests.analysis.small import MUSE, STREAM, real


def floor(trace: Trace) -> pd.DataFrame:
    said = {(0, name): LaunchBytes(name, (1,) * 99, (1,) * 99) for name in ("layer", "stream")}
    return views.floor(trace, Traffic(said, Bandwidth(1e9)))


PATHS = ("critical_path", "critical_path_sums")


def path(name: str) -> Callable[[Trace], pd.DataFrame]:
    def of(trace: Trace) -> pd.DataFrame:
        if not len(trace.launches):
            return TABLES[name].empty()
        make: Callable[..., pd.DataFrame] = getattr(views, name)
        return make(trace, launch_no=int(trace.launches["launch"].iloc[0]))

    return of


MAKE: dict[str, Callable[[Trace], pd.DataFrame]] = {
    **{name: getattr(views, name) for name in TABLES if name not in ("floor", *PATHS)},
    "floor": floor,
    **{name: path(name) for name in PATHS},
}


@pytest.fixture(scope="module", params=["muse", "stream", "nothing"])
def trace(request: pytest.FixtureRequest) -> Trace:
    if request.param == "nothing":
        with open_capture(MUSE) as capture:
            return decode(capture, steps=[])
    return real(MUSE if request.param == "muse" else STREAM)


@pytest.mark.parametrize("name", sorted(TABLES))
def test_a_frame_has_the_columns_that_its_table_declares(name: str, trace: Trace) -> None:
    frame = MAKE[name](trace)
    declared = {column.name: column.dtype for column in TABLES[name].columns}
    assert {str(n): str(kind) for n, kind in frame.dtypes.items()} == declared
    assert list(frame.columns) == list(declared)


@pytest.mark.parametrize("name", sorted(TABLES))
def test_no_value_is_missing(name: str, trace: Trace) -> None:
    assert not MAKE[name](trace).isna().to_numpy().any()


@pytest.mark.parametrize("name", ["stall_classes", "prefetch_timing", "sync_waits", "phase_times"])
def test_a_real_capture_has_rows(name: str) -> None:
    assert len(MAKE[name](real(MUSE))) > 100


def test_every_table_is_documented_to_the_last_column() -> None:
    for table in TABLES.values():
        assert table.doc.endswith(".")
        assert all(column.doc for column in table.columns)
        times = [c for c in table.columns if c.name.endswith("_ns")]
        assert all((c.unit, c.dtype) == ("ns", "int64") for c in times)
        assert len({c.name for c in table.columns}) == len(table.columns)


def test_classes_and_verdicts_are_those_declared() -> None:
    trace = real(MUSE)
    assert set(views.stall_classes(trace)["class"]) <= set(CLASSES)
    assert set(views.prefetch_timing(trace)["verdict"]) <= set(VERDICTS)


def test_times_lie_in_their_launch() -> None:
    trace = real(MUSE)
    walls = views.launch_times(trace).set_index(["rank", "launch_no"])
    for frame in (views.phase_times(trace), views.sync_waits(trace)):
        mine = walls.loc[list(zip(frame["rank"], frame["launch_no"], strict=True))]
        assert (frame["begin_ns"].to_numpy() >= mine["begin_ns"].to_numpy()).all()
        assert np.all(
            frame["begin_ns"].to_numpy() + frame["dur_ns"].to_numpy() <= mine["end_ns"].to_numpy()
        )
