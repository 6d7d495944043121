"""Prefetches one by one: late exactly, early at most, never used, or not to be seen."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from megatrace.analysis import summarise, views
from megatrace.capture.reader import open_capture
from megatrace.schema import Event, EventTable, Kind
from tests.analysis.small import BLOCKS, MUSE, STREAM, US, Records, build, real, trace_of
from tests.build import Build, Rec, point, stall, write


def timing(folder: Path, *launches: Records, **facts: object) -> pd.DataFrame:
    """The table of launches with a loader and two users in one block."""
    made = build(*launches, warps=3, roles=("load", "math", "math"), **facts)
    return views.prefetch_timing(trace_of(folder, made))


def issue(at_us: float, slot: int = 5) -> Rec:
    return point("issue", int(at_us * US), slot)


def use(at_us: float, blocked_us: float = 0, slot: int = 5) -> Rec:
    return stall("arrived", int(at_us * US), int(blocked_us * US), slot)


def test_a_late_prefetch_says_by_how_much(tmp_path: Path) -> None:
    frame = timing(tmp_path, {0: [issue(1)], 1: [use(2, 3)]})
    (row,) = frame.to_dict("records")
    assert (row["verdict"], row["late_ns"], row["early_at_most_ns"]) == ("late", 3_000, -1)
    assert row["use_ns"] - row["issue_ns"] == 1_000
    assert (row["edge"], row["slot"], row["event"]) == ("weights", 5, "issue")


def test_an_early_prefetch_is_early_by_at_most_its_lead(tmp_path: Path) -> None:
    (row,) = timing(tmp_path, {0: [issue(1)], 1: [use(8)]}).to_dict("records")
    assert (row["verdict"], row["late_ns"], row["early_at_most_ns"]) == ("early", 0, 7_000)


def test_a_prefetch_of_one_layer_is_used_in_the_next(tmp_path: Path) -> None:
    frame = timing(tmp_path, {0: [issue(40)]}, {1: [use(1, 2)]})
    (row,) = frame.to_dict("records")
    assert (row["launch_no"], row["layer"]) == (0, 0)
    assert (row["use_launch_no"], row["use_layer"]) == (1, 1)
    assert (row["late_ns"], row["use_ns"] - row["issue_ns"]) == (2_000, 61_000)


def test_a_prefetch_that_nobody_used_is_never_used(tmp_path: Path) -> None:
    frame = timing(tmp_path, {0: [issue(1), issue(2, slot=6)], 1: [use(8)]}).set_index("slot")
    assert frame.loc[6, "verdict"] == "never used"
    assert (frame.loc[6, ["use_ns", "use_launch_no", "late_ns", "early_at_most_ns"]] == -1).all()


def test_the_first_user_says_when_and_the_one_blocked_longest_how_late(tmp_path: Path) -> None:
    frame = timing(tmp_path, {0: [issue(1)], 1: [use(5, 1)], 2: [use(3, 3.5)]})
    (row,) = frame.to_dict("records")
    assert (row["use_ns"] - row["issue_ns"], row["late_ns"]) == (2_000, 3_500)


def test_who_asks_before_it_is_issued_waits_for_it_all_the_same(tmp_path: Path) -> None:
    (row,) = timing(tmp_path, {0: [issue(4)], 1: [use(2, 6)]}).to_dict("records")
    assert (row["verdict"], row["late_ns"], row["use_ns"] - row["issue_ns"]) == (
        "late", 6_000, -2_000,
    )  # fmt: skip


def test_what_was_asked_for_twice_is_used_in_that_order(tmp_path: Path) -> None:
    frame = timing(tmp_path, {0: [issue(1), issue(2)], 1: [use(10, 1), use(20)]})
    assert frame["verdict"].tolist() == ["late", "early"]
    assert (frame["use_ns"] - frame["issue_ns"]).tolist() == [9_000, 18_000]


def test_a_loader_that_runs_ahead_is_followed(tmp_path: Path) -> None:
    """Two stages in flight, as a ring of buffers has them."""
    loads = [issue(t) for t in (1, 2, 6, 11)]
    frame = timing(tmp_path, {0: loads, 1: [use(t) for t in (5, 10, 15, 20)]})
    assert (frame["use_ns"] - frame["issue_ns"]).tolist() == [4_000, 8_000, 9_000, 9_000]


def test_of_two_prefetches_with_one_use_the_later_was_used(tmp_path: Path) -> None:
    frame = timing(tmp_path, {0: [issue(1), issue(5)], 1: [use(9)]})
    assert frame["verdict"].tolist() == ["never used", "early"]


def test_a_second_look_at_the_same_stage_is_no_use_of_an_older_one(tmp_path: Path) -> None:
    body = {0: [issue(1), issue(10)], 1: [use(5), use(15), use(16)]}
    frame = timing(tmp_path, body)
    assert (frame["use_ns"] - frame["issue_ns"]).tolist() == [4_000, 5_000]


def test_other_blocks_do_not_use_this_blocks_prefetch(tmp_path: Path) -> None:
    made = build({0: [issue(1)], 1: [use(5), issue(1), use(6)]}, blocks=2)
    frame = views.prefetch_timing(trace_of(tmp_path, made)).set_index("block")
    assert frame["verdict"].to_dict() == {0: "never used", 1: "early"}


def test_waits_that_leave_no_word_make_nothing_unused(tmp_path: Path) -> None:
    frame = timing(tmp_path, {0: [issue(1), issue(2, slot=6)], 1: [use(4, 1)]}).set_index("slot")
    assert frame["verdict"].to_dict() == {5: "late", 6: "not seen"}


def test_an_l2_prefetch_has_no_arrival(tmp_path: Path) -> None:
    table = EventTable("l2", (Event(30, "warm", Kind.PREFETCH, "Into L2.", edge="l2"),))
    made = build({0: [point("warm", US, 5, table=table)]}, table=table)
    (row,) = views.prefetch_timing(trace_of(tmp_path, made)).to_dict("records")
    assert row["verdict"] == "not seen"


def test_where_a_block_lost_lines_nothing_is_called_unused(tmp_path: Path) -> None:
    noise = [point("mark", 100 * i, i, i) for i in range(200, 260)]
    made = build({0: [issue(1), issue(2, slot=6)], 1: [use(5), *noise]}, warps=2)
    made.lose(1, 3)
    frame = views.prefetch_timing(trace_of(tmp_path, made)).set_index("slot")
    assert frame["verdict"].to_dict() == {5: "early", 6: "not seen"}


def test_the_host_build_gets_no_verdict(tmp_path: Path) -> None:
    frame = timing(tmp_path, {0: [issue(1)], 1: [use(2, 3)]}, device=0)
    assert set(frame["verdict"]) == {"cpu"}
    assert frame["late_ns"].tolist() == [3_000]


def test_every_prefetch_of_the_megakernel_is_met_by_all_tensor_warps_of_its_block() -> None:
    trace = real(MUSE)
    frame = views.prefetch_timing(trace)
    assert set(frame["verdict"]) == {"late", "early"}
    assert (frame["use_launch_no"] == frame["launch_no"]).all()
    waits = trace.records[trace.records["event"] == "first_weights"]
    # A use each; which of a block's prefetches of a slot it was for, only the table says.
    assert len(waits) == 8 * len(frame)
    assert set(waits["warp"]) == set(range(8))
    where = ["step", "kernel", "layer", "block", "slot"]
    longest = waits.groupby(where, observed=True)["dur_ns"].max()
    assert frame.loc[frame["verdict"] == "late", "late_ns"].sum() == longest.sum()


@pytest.mark.parametrize("path", [MUSE, STREAM, BLOCKS], ids=lambda path: path.stem)
def test_the_prefetches_of_the_report_are_those_of_the_table(path: Path) -> None:
    with open_capture(path) as capture:
        rows = summarise(capture).prefetches
    frame = views.prefetch_timing(real(path))
    assert sum(row.count for row in rows) == len(frame)
    for row in rows:
        mine = frame[(frame["kernel"] == row.kernel) & (frame["edge"] == row.edge)]
        late, early = (mine[mine["verdict"] == verdict] for verdict in ("late", "early"))
        assert (row.late, row.early) == (len(late), len(early))
        assert abs(row.late_total_us - late["late_ns"].sum() / 1e3) <= 1e-3 * row.late
        if row.early:
            at_most_us = early["early_at_most_ns"].median() / 1e3
            # The report takes the rate of the launch's begin; where SMs follow another's clock,
            # that changes inside of a launch.
            rel = 1e-3 if path == STREAM else 0.05
            assert row.early_at_most_median_us == pytest.approx(at_most_us, rel=rel)


def test_ranks_are_not_mixed(tmp_path: Path) -> None:
    makes: list[Build] = [
        build({0: [issue(1)], 1: [use(2, rank + 1)]}, warps=2, rank=rank) for rank in range(2)
    ]
    path = write(tmp_path / "two.mtr", *makes)
    frame = views.prefetch_timing(real(path)).set_index("rank")
    assert frame["late_ns"].to_dict() == {0: 1_000, 1: 2_000}
