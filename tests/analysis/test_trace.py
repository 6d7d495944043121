"""Frames of a capture: what stands in them, and when it was."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest

from megatrace.analysis import Trace, decode
from megatrace.capture.reader import Capture
from tests.build import GHZ, MS, Build, Launch, Rec, demo, point, span, stall

Opener = Callable[..., Capture]


@pytest.fixture
def trace(captured: Opener) -> Trace:
    return decode(captured(*demo(ranks=2, steps=4)))


def test_launches_stand_where_they_were_within_the_stated_error(trace: Trace) -> None:
    first = trace.launches.query("rank == 0 and launch == 0 and ring == 4").iloc[0]
    assert abs(first.begin_ns - (50 * MS + 160)) <= first.clock_error_ns
    assert abs(first.dur_ns - 50_000) <= 2
    assert (first.block, first.warp, first.role, first.kernel) == (1, 1, "math", "layer")
    assert first.complete
    assert not first.time_uncertain
    assert first.words == 9 + 3 + _words_of_demo(trace, first.name)


def _words_of_demo(trace: Trace, row: int) -> int:
    records = trace.records[trace.records.launch_row == row]
    args = {"span": 1, "stall": 2, "wait": 3, "counter": 2, "publish": 2}
    extra = (records.event == "tile").sum() + (records.kind == "span").sum()
    return int(records.kind.astype(str).map(args).sum() + extra)


def test_records_stand_within_their_launch_and_carry_their_arguments(trace: Trace) -> None:
    launch = trace.launches.index[
        (trace.launches["rank"] == 1) & (trace.launches.ring == 2) & (trace.launches.launch == 3)
    ][0]
    owner = trace.launches.loc[launch]
    records = trace.records[trace.records.launch_row == launch]
    tiles = records[records.event == "tile"]
    assert tiles.a0.tolist() == [0, 1, 2, 3]
    assert trace.arg_names["tile"] == ("index",)
    began = tiles.begin_ns - owner.begin_ns
    expected = [1500 / GHZ, 21_900 / GHZ, 41_500 / GHZ, 61_900 / GHZ]
    assert began.tolist() == pytest.approx(expected, abs=1.5)
    assert (records.begin_ns + records.dur_ns <= owner.end_ns + 2).all()
    assert records.begin_ns.is_monotonic_increasing


def test_events_keep_their_kind_cause_edge_and_slot(trace: Trace) -> None:
    rows = trace.records.drop_duplicates("event").set_index("event")
    assert rows.loc["arrived", ["kind", "cause", "edge", "slot"]].tolist() == [
        "wait", "data", "weights", 0,
    ]  # fmt: skip
    assert rows.loc["issue", ["kind", "edge", "slot"]].tolist() == ["prefetch", "weights", 0]
    assert rows.loc["mark", ["a0", "a1", "slot"]].tolist() == [7, 9, -1]
    assert rows.loc["depth", ["kind", "a0"]].tolist() == ["counter", 4]
    assert rows.loc["tile", "category"] == "math"


def test_host_events_are_mapped_to_the_gpu_of_each_rank(trace: Trace) -> None:
    steps = trace.host[trace.host.event == "step"]
    assert len(steps) == 8
    for rank in (0, 1):
        first = steps[steps["rank"] == rank].iloc[0]
        error = trace.clock[rank].host_error_ns
        assert abs(first.begin_ns - (50 * MS + 61_000 * rank - 10_000)) <= error
        assert (first.batch_size, first.tokens, first.graph, first.accepted) == (1, 8, 1, 3)


def test_one_step_alone_is_the_same_as_that_step_of_all(captured: Opener, trace: Trace) -> None:
    alone = decode(captured(*demo(ranks=2, steps=4)), steps=[3])
    same = trace.records[trace.records.step == 3].drop(columns="launch_row")
    got = alone.records.drop(columns="launch_row").reset_index(drop=True)
    pd.testing.assert_frame_equal(got, same.reset_index(drop=True), check_categorical=False)
    assert set(alone.launches.step) == {3}
    assert (alone.launches.loc[alone.records.launch_row].step == 3).all()
    assert [row.words_seen for row in alone.loss.rows] == [r.words_seen for r in trace.loss.rows]


def test_abutting_spans_never_overlap_by_rounding(captured: Opener) -> None:
    build = Build()
    edges = [10 + 7 * i + i * i % 5 for i in range(400)]
    body = [rec for a, b in pairwise(edges) for rec in span("tile", a, b, 1)]
    for number in range(2):
        at = MS * (number + 1)
        build.add(0, Launch(number, at, at + 5000, records=body))
    for _, tiles in decode(captured(build)).records.groupby("launch_row"):
        ends = (tiles.begin_ns + tiles.dur_ns).to_numpy()
        assert len(tiles) == 399
        assert ends[:-1].tolist() == tiles.begin_ns.to_numpy()[1:].tolist()


def test_host_events_come_without_a_traced_kernel(captured: Opener) -> None:
    build = Build(rank=2, traced=False)
    build.host("decode", 5 * MS, 6 * MS, 4, (2, 2, 1, -1))
    trace = decode(captured(build))
    (row,) = trace.host.itertuples()
    assert (row.rank, row.event, row.step, row.batch_size) == (2, "decode", 4, 2)
    assert (row.begin_ns, row.host_begin_ns, row.host_end_ns) == (-1, 5 * MS, 6 * MS)
    assert len(decode(captured(build), ranks=[1]).host) == 0


def test_ranks_and_rings_can_be_chosen(captured: Opener) -> None:
    chosen = decode(captured(*demo(ranks=2)), ranks=[1], rings=[0, 4])
    assert set(chosen.launches["rank"]) == {1}
    assert set(chosen.launches.ring) == {0, 4}
    assert list(chosen.clock) == [1]


def test_an_unfinished_span_has_no_duration(captured: Opener) -> None:
    build = Build()
    for number in range(2):
        body = [Rec(18, 100), *span("tile", 200, 300, 4)]
        build.add(0, Launch(number, MS * (number + 1), MS * (number + 1) + 5000, records=body))
    records = decode(captured(build)).records
    assert records[records.event == "phase"].dur_ns.tolist() == [-1, -1]
    assert (records[records.event == "tile"].dur_ns > 0).all()


def test_a_launch_without_a_closing_has_no_end(captured: Opener) -> None:
    build = Build()
    build.add(0, Launch(0, MS, MS + 5000))
    build.add(0, Launch(1, 2 * MS, None, records=[point("mark", 50, 1, 2)]))
    found = decode(captured(build))
    assert found.launches.end_ns.tolist()[1] == found.launches.dur_ns.tolist()[1] == -1
    assert found.records.event.tolist() == ["mark"]


def test_frames_without_records_have_all_columns(captured: Opener) -> None:
    empty = decode(captured(Build()))
    full = decode(captured(*demo()))
    assert len(empty.launches) == len(empty.records) == 0
    assert list(empty.launches.columns) == list(full.launches.columns)
    fixed = [c for c in full.records.columns if c not in ("a0", "a1")]
    assert list(empty.records.columns) == fixed


def test_without_clock_samples_host_times_are_not_invented(captured: Opener) -> None:
    build = Build()
    for number in range(3):
        build.add(0, Launch(number, MS * (number + 1), MS * (number + 1) + 5000))
    build.host("step", 5, 9, 1)
    found = decode(captured(build))
    assert found.host.begin_ns.tolist() == [-1]
    assert found.host.host_begin_ns.tolist() == [5]
    assert any("host events cannot be placed" in problem for problem in found.problems)


def test_a_capture_of_a_host_build_takes_the_same_path(captured: Opener) -> None:
    build = Build(device=0, ghz=2.6, quantum_ns=1)
    rng = np.random.default_rng(1)
    at = MS
    for number in range(50):
        body = [stall("full", 100, 4_000_000), *span("tile", 4_100_000, 4_100_500, 1)]
        build.add(0, Launch(number, at, at + 2_000_000, records=body))
        at += 2_000_000 + int(rng.integers(1000, 300_000))
    found = decode(captured(build))
    assert found.devices == {0: "cpu"}
    assert found.clock[0].quantum_ns == 1
    assert found.clock[0].error_ns < 10
    assert not found.launches.time_uncertain.any()
    stalls = found.records[found.records.event == "full"]
    assert stalls.dur_ns.tolist() == pytest.approx([4_000_000 / 2.6] * 50, rel=1e-5)


def test_lines_of_rings_that_do_not_exist_are_a_problem(captured: Opener) -> None:
    build = Build(blocks=2)
    for ring in (0, 1):
        for number in range(2):
            at = MS * (number + 1)
            build.add(ring, Launch(number, at, at + 5000))
    build.blocks = 1
    found = decode(captured(build))
    assert set(found.launches.ring) == {0}
    assert any("2 lines of rings that it does not have" in problem for problem in found.problems)


def test_no_rank_gives_frames_without_rows(captured: Opener) -> None:
    found = decode(captured(*demo()), ranks=[7])
    assert len(found.launches) == len(found.records) == len(found.host) == 0
    assert list(found.host.columns) == list(decode(captured(*demo())).host.columns)
