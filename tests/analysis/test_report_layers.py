"""A report of some layers: their launches, the same rows as in the report of all."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from megatrace.analysis import decode, summarise, to_text
from megatrace.analysis.floors import reported
from megatrace.analysis.report import Report, StallRow
from megatrace.capture.reader import Capture, open_capture
from megatrace.errors import UsageError
from tests.analysis.small import MUSE
from tests.build import GHZ, MS, Build, Launch, demo, hang, point, stall
from tests.said import with_floor

Opener = Callable[..., Capture]
US = int(1000 * GHZ)
"""Cycles."""


def of_layers(path: Path, *layers: int) -> Report:
    with open_capture(path) as capture:
        return reported(capture, layers=layers or None)


def test_the_rows_of_a_layer_are_those_that_the_whole_report_has_of_it() -> None:
    whole, one = of_layers(MUSE), of_layers(MUSE, 1)
    for table in ("kernels", "events"):
        of_all, mine = (json.loads(report.to_json())[table] for report in (whole, one))
        assert mine == [row for row in of_all if row["layer"] == 1]
    assert len(one.events) > 20
    assert (one.layers.chosen, one.layers.there) == ((1,), (0, 1, 2))
    assert whole.layers.chosen is None


def test_the_report_of_all_layers_by_name_is_the_report() -> None:
    whole, named = of_layers(MUSE), of_layers(MUSE, 0, 1, 2)
    # As JSON: NaN is no NaN's equal.
    assert replace(named, layers=whole.layers).to_json() == whole.to_json()


def sums_of(rows: tuple[StallRow, ...], key: tuple[str, str, str]) -> tuple[int, float]:
    mine = [row for row in rows if (row.role, row.cause, row.source) == key]
    return sum(row.count for row in mine), sum(row.total_us or 0.0 for row in mine)


def test_stalls_and_words_of_each_layer_add_up_to_those_of_all() -> None:
    whole, parts = of_layers(MUSE), [of_layers(MUSE, layer) for layer in range(3)]
    stalls = tuple(row for part in parts for row in part.stalls)
    assert {row.source for row in whole.stalls} == {"records", "counters"}
    for row in whole.stalls:
        count, total_us = sums_of(stalls, (row.role, row.cause, row.source))
        assert count == row.count
        assert total_us == pytest.approx(row.total_us)
    for name in ("records", "words", "header_words", "line_bytes", "counter_samples"):
        each = [getattr(row, name) for part in parts for row in part.overhead]
        assert sum(each) == sum(getattr(row, name) for row in whole.overhead)
        assert min(each) > 0


def test_a_share_of_stalls_is_of_the_time_in_these_layers() -> None:
    report = of_layers(MUSE, 0, 2)
    with open_capture(MUSE) as capture:
        launches = decode(capture).launches
    spent = launches[launches["layer"].isin([0, 2]) & (launches["role"] == "tensor")]
    in_us = spent["dur_ns"].sum() / 1e3
    rows = [row for row in report.stalls if (row.role, row.source) == ("tensor", "records")]
    assert rows
    for row in rows:
        assert row.share == pytest.approx((row.total_us or 0) / in_us, rel=1e-3)
    counted = [row.share for row in report.stalls if row.source == "counters"]
    roles = {row.role for row in report.stalls if row.source == "counters"}
    assert sum(counted) == pytest.approx(len(roles))


def test_loss_and_clocks_stay_those_of_the_whole_capture() -> None:
    whole, one = of_layers(MUSE), of_layers(MUSE, 1)
    for name in ("loss", "clocks", "steps", "sms", "host_steps", "lines_lost", "problems"):
        assert getattr(one, name) == getattr(whole, name)


def test_a_prefetch_is_of_the_layer_that_issued_it_whoever_uses_it(captured: Opener) -> None:
    build = Build(warps=2, roles=("load", "math"), layers=2)
    bodies = ({0: [point("issue", US, 5)]}, {1: [stall("arrived", US, 3 * US, 5)]})
    for layer, records in enumerate(bodies):
        for ring in range(2):
            at = MS * (layer + 1)
            body = records.get(ring, [])
            build.add(ring, Launch(layer, at, at + 90_000, records=body, layer=layer))
    capture = captured(build)
    (row,) = summarise(capture, layers=[0]).prefetches
    assert (row.count, row.late) == (1, 1)
    assert row.late_median_us == pytest.approx(3.0, rel=1e-3)
    assert summarise(capture, layers=[1]).prefetches == ()


def test_a_hang_is_told_in_the_report_of_its_layer_alone(captured: Opener) -> None:
    build = Build(layers=2)
    build.add(0, Launch(0, MS, MS + 9000))
    stuck = [hang("input", 10**9, 10**9 - 100, 17)]
    build.add(0, Launch(1, 2 * MS, None, stuck, layer=1))
    capture = captured(build)
    assert [len(summarise(capture, layers=[layer]).hangs) for layer in range(2)] == [0, 1]


def test_the_floor_is_of_the_launches_of_these_layers(tmp_path: Path) -> None:
    path = with_floor(tmp_path / "a.mtr")
    whole, two = of_layers(path).floor, of_layers(path, 0, 2).floor
    assert two.rows == tuple(row for row in whole.rows if row.layer in (0, 2))
    with open_capture(path) as capture:
        launches = sum(row.launches for row in reported(capture, layers=[0]).floor.rows)
    assert launches == whole.rows[0].launches
    assert two.fraction != whole.fraction


def test_a_layer_that_is_not_there_is_refused_with_those_that_are() -> None:
    with pytest.raises(UsageError, match="has no layers 7, 9") as caught:
        of_layers(MUSE, 1, 7, 9)
    assert caught.value.hint == "it has layers 0-2"


def test_layers_that_only_counters_tell_of_are_there(captured: Opener) -> None:
    build = Build(warps=2, roles=("load", "math"), layers=3)
    build.count(0, 1, [300, 0, 0, 0], [3, 0, 0, 0])
    build.count(2, 0, [0, 700, 0, 0], [0, 7, 0, 0])
    build.count(1, 0, [0, 0, 0, 0], [0, 0, 0, 0])
    capture = captured(build)
    (row,) = summarise(capture, layers=[2]).stalls
    assert (row.role, row.total_cycles, row.share) == ("load", 700, 1.0)
    with pytest.raises(UsageError) as caught:
        summarise(capture, layers=[1])
    assert caught.value.hint == "it has layers 0, 2"


def test_a_capture_of_no_launch_says_that_it_has_no_layer(captured: Opener) -> None:
    with pytest.raises(UsageError) as caught:
        summarise(captured(Build()), layers=[0])
    assert caught.value.hint == "it has no launch and no counter of any"


def test_the_text_says_first_of_which_layers_it_is(captured: Opener) -> None:
    capture = captured(*demo(layers=4))
    text = to_text(summarise(capture, layers=[3, 0, 1]))
    assert text.splitlines()[1].startswith("layers 0-1, 3 alone, of 0-3: tables and shares")
    assert "share of the warps' time in these layers" in text
    assert "issued in these layers" in text
    assert max(map(len, text.splitlines())) <= 100
    assert "layers" not in to_text(summarise(capture)).splitlines()[1]


def test_the_json_says_which_layers_it_is_of_and_which_there_are(captured: Opener) -> None:
    capture = captured(*demo(layers=2))
    one, every = (summarise(capture, layers=layers).to_json() for layers in ([1], None))
    assert json.loads(one)["layers"] == {"chosen": [1], "there": [0, 1]}
    assert json.loads(every)["layers"] == {"chosen": None, "there": [0, 1]}


def test_medians_of_a_layer_are_exact_where_its_own_times_are_few(
    captured: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("megatrace.analysis.stats.Durations.__init__.__defaults__", (300,))
    capture = captured(*demo(layers=4))
    assert not summarise(capture).quantiles_exact
    assert summarise(capture, layers=[2]).quantiles_exact
