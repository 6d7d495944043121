"""Launches, phases and SMs: how long, how busy, how even."""

from __future__ import annotations

from pathlib import Path

import pytest

from megatrace.analysis import views
from tests.analysis.small import MUSE, US, build, real, trace_of
from tests.bench.layer_phases import phase_table
from tests.build import MS, Build, Launch, span, stall


def test_a_phase_lasts_from_the_first_warp_in_to_the_last_one_out(tmp_path: Path) -> None:
    body = {
        0: [*span("phase", 2 * US, 10 * US), stall("full", 3 * US, 4 * US)],
        1: span("phase", 5 * US, 20 * US),
    }
    frame = views.phase_times(trace_of(tmp_path, build(body, warps=2)))
    (row,) = frame.to_dict("records")
    assert row["phase"] == "phase"
    assert (row["dur_ns"], row["busy_ns"], row["wait_ns"]) == (18_000, 19_000, 4_000)
    assert row["warps"] == 2


def test_a_wait_that_reaches_into_a_phase_counts_where_it_overlaps(tmp_path: Path) -> None:
    body = [
        stall("full", US, 4 * US),
        *span("phase", 3 * US, 9 * US),
        stall("room", 8 * US, 5 * US),
    ]
    (row,) = views.phase_times(trace_of(tmp_path, build({0: body}))).to_dict("records")
    assert (row["busy_ns"], row["wait_ns"]) == (3_000, 3_000)


def test_spans_of_one_warp_add_up(tmp_path: Path) -> None:
    body = [*span("tile", US, 3 * US), *span("tile", 7 * US, 8 * US)]
    (row,) = views.phase_times(trace_of(tmp_path, build({0: body}))).to_dict("records")
    assert (row["dur_ns"], row["busy_ns"], row["warps"]) == (7_000, 3_000, 1)


def test_a_span_whose_end_is_lost_is_no_phase(tmp_path: Path) -> None:
    body = [span("phase", US, 2 * US)[0]]
    assert len(views.phase_times(trace_of(tmp_path, build({0: body})))) == 0


def test_an_sm_that_does_more_is_over_the_median(tmp_path: Path) -> None:
    body = {block: span("phase", US, (1 + us) * US) for block, us in enumerate((4, 4, 4, 6))}
    trace = trace_of(tmp_path, build(body, blocks=4))
    frame = views.imbalance(trace).set_index("sm")
    assert frame["over_median"].to_dict() == pytest.approx({0: 1, 1: 1, 2: 1, 3: 1.5})
    assert frame["busy_ns"].to_dict() == {0: 4_000, 1: 4_000, 2: 4_000, 3: 6_000}


def test_a_launch_has_a_gap_to_the_one_before_it(tmp_path: Path) -> None:
    frame = views.launch_times(trace_of(tmp_path, build({}, {}, {}, warps=2)))
    assert frame["gap_ns"].tolist() == [-1, 50_000, 50_000]
    assert frame["dur_ns"].tolist() == [50_000] * 3
    assert frame[["blocks_seen", "warps_seen"]].to_numpy().tolist() == [[1, 2]] * 3
    assert frame["whole"].all()


def test_launches_that_overlap_have_a_gap_below_zero(tmp_path: Path) -> None:
    made = Build(ghz=2.0)
    for number in range(4):
        at = MS + 40_000 * number
        made.add(0, Launch(number, at, at + 50_000, layer=number))
    gaps = views.launch_times(trace_of(tmp_path, made))["gap_ns"]
    assert gaps.tolist() == [-1, -10_000, -10_000, -10_000]


def test_steps_that_were_not_recorded_make_no_gap(tmp_path: Path) -> None:
    made = Build(ghz=2.0)
    for number, step in enumerate((1, 2, 10, 11)):
        at = MS + 100_000 * step
        made.add(0, Launch(number, at, at + 50_000, step=step))
    gaps = views.launch_times(trace_of(tmp_path, made, steps=None))["gap_ns"]
    assert gaps.tolist() == [-1, 50_000, -1, 50_000]


def test_a_cut_launch_is_not_whole_and_its_end_is_the_last_that_is_known(tmp_path: Path) -> None:
    made = build({}, warps=2)
    made.add(0, Launch(9, 2 * MS, None, step=5))
    made.add(1, Launch(9, 2 * MS, 2 * MS + 40_000, step=5))
    made.add(0, Launch(10, 3 * MS, None, step=6))
    frame = views.launch_times(trace_of(tmp_path, made, steps=[5, 6]))
    assert frame["dur_ns"].tolist() == [40_000, -1]
    assert not frame["whole"].any()


def test_the_phases_of_the_megakernel_wait_as_their_records_say() -> None:
    """Against another way to the same numbers, record by record."""
    trace = real(MUSE)
    frame = views.phase_times(trace)
    medians = frame.groupby("phase", observed=True)["wait_ns"].sum()
    slow = phase_table(trace.records, trace.launches)
    assert set(slow.index) == set(medians.index)
    spans = trace.records[trace.records["kind"] == "span"]
    spent = spans.groupby("event", observed=True)["dur_ns"].sum()
    both = frame.groupby("phase", observed=True)[["busy_ns", "wait_ns"]].sum().sum(axis=1)
    assert both.to_dict() == spent[both.index].to_dict()
    none = set(slow.index[slow["waits_us"] == 0])
    assert {"attention"} <= none
    assert medians["attention"] == 0
