"""What the end of a launch or a step waited for: known paths give exactly themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from megatrace.analysis import Trace, views
from megatrace.errors import UsageError
from tests.analysis.small import MUSE, STREAM, US, Records, build, real, trace_of
from tests.analysis.test_sync_waits import two_ranks
from tests.build import MS, Build, Launch, point, span, stall

Step = tuple[int, float, str, str]
"""Ring, us, what, why."""


def path(folder: Path, *launches: Records, step: bool = False, **facts: Any) -> list[Step]:
    """The critical path of the last launch, or of all of them."""
    made = build(*launches, **facts)
    trace = trace_of(folder, made)
    number = len(launches) - 1
    frame = (
        views.critical_path(trace, step=1) if step else views.critical_path(trace, launch_no=number)
    )
    abuts(frame)
    ring = frame["block"] * made.warps + frame["warp"]
    us = (frame["dur_ns"] / 1000).round(1)
    return list(zip(ring, us, frame["what"], frame["why"], strict=True))


def abuts(frame: pd.DataFrame) -> None:
    """Rows follow each other without a hole."""
    assert (frame["dur_ns"] > 0).all()
    assert (frame["begin_ns"].to_numpy()[1:] == frame["end_ns"].to_numpy()[:-1]).all()
    assert (frame["end_ns"] - frame["begin_ns"] == frame["dur_ns"]).all()


def test_a_warp_that_waits_for_nobody_is_the_path(tmp_path: Path) -> None:
    found = path(tmp_path, {}, warps=2, lasts_us={0: 50, 1: 40})
    assert found == [(0, 50, "not_waiting", "")]


def test_the_path_goes_through_the_publish_that_ended_a_wait(tmp_path: Path) -> None:
    body = {
        0: [*span("tile", 5 * US, 28 * US), point("done", 30 * US, 7)],
        1: [stall("input", 10 * US, 21 * US, 7), *span("phase", 31 * US, 45 * US)],
    }
    found = path(tmp_path, body, blocks=2, lasts_us={0: 40, 1: 50})
    assert found == [
        (0, 5, "not_waiting", ""),
        (0, 23, "tile", ""),
        (0, 2, "not_waiting", ""),
        (1, 1, "input", "sums"),
        (1, 14, "phase", ""),
        (1, 5, "not_waiting", ""),
    ]


def test_a_wait_whose_publisher_was_not_recorded_stays_on_its_warp(tmp_path: Path) -> None:
    body = {0: [stall("input", 10 * US, 20 * US, 7)]}
    assert path(tmp_path, body) == [
        (0, 10, "not_waiting", ""), (0, 20, "input", ""), (0, 20, "not_waiting", ""),
    ]  # fmt: skip


def test_of_a_path_it_is_said_how_much_waits_for_an_unknown_publisher(tmp_path: Path) -> None:
    """A wait of 8 us that a publish ended, one of 20 us that nobody recorded did."""
    body = {
        0: [point("done", 18 * US, 3)],
        1: [stall("input", 10 * US, 8 * US, 3), stall("input", 20 * US, 20 * US, 7)],
    }
    trace = trace_of(tmp_path, build(body, blocks=2, lasts_us={0: 30, 1: 50}))
    frame = views.critical_path(trace, launch_no=0)
    unknown = frame[frame["from_unknown_ns"] > 0]
    assert [(row.what, row.dur_ns) for row in unknown.itertuples()] == [("input", 20_000)]
    assert frame["from_unknown_ns"].sum() == 20_000


@pytest.mark.parametrize(("clocked", "unknown_ns"), [(True, 0), (False, 10_000)])
def test_a_wait_that_a_recorded_publish_of_a_peer_ended_has_no_unknown_publisher(
    tmp_path: Path, clocked: bool, unknown_ns: int
) -> None:
    """The path stays on its GPU all the same: another one's rows are on another clock."""
    trace = trace_of(tmp_path, *two_ranks(clocked=clocked))
    frame = views.critical_path(trace, launch_no=0, rank=0)
    assert frame.loc[frame["what"] == "peer", "dur_ns"].tolist() == [10_000]
    assert frame["from_unknown_ns"].sum() == unknown_ns


def test_a_wait_for_data_is_no_wait_for_an_unknown_publisher(tmp_path: Path) -> None:
    body = {0: [stall("full", 10 * US, 20 * US)]}
    frame = views.critical_path(trace_of(tmp_path, build(body)), launch_no=0)
    assert frame["from_unknown_ns"].sum() == 0


def test_the_sums_of_a_path_are_its_rows_by_layer_role_and_event() -> None:
    trace = real(MUSE)
    frame, sums = (make(trace, step=2) for make in (views.critical_path, views.critical_path_sums))
    assert sums["dur_ns"].sum() == frame["dur_ns"].sum()
    assert sums["share"].sum() == pytest.approx(1.0)
    assert sums["dur_ns"].is_monotonic_decreasing
    assert sums["times"].sum() == len(frame)
    assert sums["from_unknown_ns"].sum() == frame["from_unknown_ns"].sum() > 0
    first = sums.iloc[0]
    mine = frame[["layer", "role", "what", "event"]] == first[["layer", "role", "what", "event"]]
    assert frame[mine.all(axis=1)]["dur_ns"].sum() == first["dur_ns"]


def test_a_late_prefetch_leads_to_the_warp_that_asked_for_it(tmp_path: Path) -> None:
    body = {
        0: [stall("room", 2 * US, 10 * US), point("issue", 15 * US, 3)],
        1: [stall("arrived", 5 * US, 20 * US, 3)],
    }
    assert path(tmp_path, body, warps=2, lasts_us={0: 20, 1: 50}) == [
        (0, 2, "not_waiting", ""),
        (0, 10, "space", ""),
        (0, 3, "not_waiting", ""),
        (1, 10, "data", "weights"),
        (1, 25, "not_waiting", ""),
    ]


def test_a_chain_of_hand_offs_is_followed_to_its_begin(tmp_path: Path) -> None:
    body = {
        0: [point("done", 10 * US, 1)],
        1: [stall("input", US, 10 * US, 1), point("done", 20 * US, 2)],
        2: [stall("input", US, 20 * US, 2), point("done", 30 * US, 3)],
        3: [stall("input", US, 30 * US, 3)],
    }
    found = path(tmp_path, body, blocks=4, lasts_us={0: 40, 1: 40, 2: 40, 3: 50})
    assert [(ring, why) for ring, _, _, why in found] == [
        (0, ""), (1, "sums"), (1, ""), (2, "sums"), (2, ""), (3, "sums"), (3, ""),
    ]  # fmt: skip
    assert sum(us for _, us, _, _ in found) == 50


def test_two_warps_that_end_each_others_waits_end_the_walk(tmp_path: Path) -> None:
    """Clocks that are off by a little may make a circle."""
    body = {
        block: [stall("input", 10 * US, 10 * US, 1 - block), point("done", 20 * US, block)]
        for block in range(2)
    }
    found = path(tmp_path, body, blocks=2)
    assert sum(us for _, us, _, _ in found) == 50


def test_a_step_goes_from_launch_to_launch(tmp_path: Path) -> None:
    found = path(tmp_path, {}, {1: [stall("full", US, 4 * US)]}, step=True, warps=2,
                 lasts_us={0: 30, 1: 50})  # fmt: skip
    assert found == [
        (1, 50, "not_waiting", ""),
        (1, 50, "launch gap", "launch order"),
        (1, 1, "not_waiting", ""),
        (1, 4, "data", ""),
        (1, 45, "not_waiting", ""),
    ]


def test_what_a_dependent_launch_does_early_hides_behind_the_one_before(tmp_path: Path) -> None:
    made = Build(ghz=2.0)
    for number in range(4):
        at = MS + 40_000 * number
        step = 1 if number < 2 else 9
        body = [stall("full", US, 2 * US), stall("room", 8 * US, 4 * US)] if number == 1 else []
        made.add(0, Launch(number, at, at + 50_000, step=step, layer=number, records=body))
    frame = views.critical_path(trace_of(tmp_path, made), step=1)
    abuts(frame)
    rows = list(zip(frame["launch_no"], frame["dur_ns"], frame["what"], frame["why"], strict=True))
    assert rows == [
        (0, 50_000, "not_waiting", ""),
        (1, 2_000, "space", "launch order"),
        (1, 38_000, "not_waiting", ""),
    ]


def test_a_warp_that_lost_lines_does_something_unknown(tmp_path: Path) -> None:
    noise = [point("mark", 100 * i, i, i) for i in range(1, 60)]
    made = build({0: noise})
    made.lose(0, 3)
    frame = views.critical_path(trace_of(tmp_path, made), launch_no=0)
    assert frame["what"].tolist() == ["unknown"]


@pytest.mark.parametrize("file", [MUSE, STREAM], ids=["megakernel", "example"])
def test_the_path_of_every_real_launch_and_step_is_as_long_as_it(file: Path) -> None:
    trace = real(file)
    walls = views.launch_times(trace)
    for number, dur in zip(walls["launch_no"], walls["dur_ns"], strict=True):
        frame = views.critical_path(trace, launch_no=number)
        abuts(frame)
        assert frame["dur_ns"].sum() == dur
    for step, of in walls.groupby("step"):
        frame = views.critical_path(trace, step=step)
        abuts(frame)
        assert frame["dur_ns"].sum() == of["end_ns"].max() - of["begin_ns"].min()
        assert frame["launch_no"].is_monotonic_increasing
        assert set(frame["launch_no"]) == set(of["launch_no"])


@pytest.fixture(scope="module")
def trace() -> Trace:
    return real(STREAM)


def test_neither_or_both_of_launch_and_step_are_refused(trace: Trace) -> None:
    with pytest.raises(UsageError, match="one launch or of one step"):
        views.critical_path(trace)
    with pytest.raises(UsageError, match="one launch or of one step"):
        views.critical_path(trace, launch_no=1, step=1)


def test_a_launch_that_is_not_there_is_refused(trace: Trace) -> None:
    with pytest.raises(UsageError, match="no launch 999"):
        views.critical_path(trace, launch_no=999)
    with pytest.raises(UsageError, match="of rank 3"):
        views.critical_path(trace, step=1, rank=3)
