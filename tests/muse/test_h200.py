"""A committed capture of the fused layer kernel on an H200: 16 rows, three layers.

``h200_blocks.mtr`` is the first nine of 132 blocks (tests/tools/cut_capture.py): who waits for a
row's chunks and who hands them over are among them.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from megatrace.analysis import decode, views
from megatrace.analysis.trace import Trace
from megatrace.capture.reader import open_capture
from megatrace.muse.events import MUSE, PHASES, ROLES
from tests.bench.layer_phases import phase_table

FILE = Path(__file__).with_name("h200_blocks.mtr")
TENSOR_ONLY = {"o_proj", "router", "post_proj", "qkv", "attention"}


@pytest.fixture(scope="module")
def trace() -> Trace:
    return decode(open_capture(FILE, strict=True))


def test_the_capture_was_made_with_the_events_of_today() -> None:
    assert open_capture(FILE).tables[0].hash == MUSE.hash


def test_every_launch_of_every_recorded_warp_is_whole(trace: Trace) -> None:
    launches = trace.launches
    assert launches.complete.all()
    assert set(launches.layer) == {0, 1, 2}
    assert set(launches.role) == set(ROLES)
    assert set(launches.kernel) == {"embed", "layer"}
    assert len(launches) == 2 * (3 + 1) * 9 * len(ROLES)


def test_every_phase_is_a_span_of_the_tensor_warps(trace: Trace) -> None:
    spans = trace.records[(trace.records.kind == "span") & (trace.records.role == "tensor")]
    assert set(spans.event) == set(PHASES)
    by_math = trace.records[(trace.records.kind == "span") & (trace.records.role == "math")]
    assert not TENSOR_ONLY & set(by_math.event)


def test_the_phases_of_a_layer_follow_each_other(trace: Trace) -> None:
    records, launches = (
        of[(of.layer == 1) & (of.kernel == "layer")] for of in (trace.records, trace.launches)
    )
    table = phase_table(records, launches)
    assert (table.begin_us + table.lasts_us).is_monotonic_increasing
    assert (table.lasts_us > 0).all()
    assert (table.waits_us <= table.lasts_us).all()


def test_weights_asked_for_early_meet_their_first_use(trace: Trace) -> None:
    early = trace.records[trace.records.event == "early_weights"]
    used = trace.records[trace.records.event == "first_weights"]
    keys = ["step", "layer", "launch_row"]
    assert len(early) > 0
    assert set(used.slot) <= set(early.slot)
    assert not used[[*keys, "warp", "slot"]].duplicated().all()


def test_most_waits_for_a_rows_sum_know_who_ended_them(trace: Trace) -> None:
    waits = views.sync_waits(trace)
    sums = waits[waits.edge == "row_sum"]
    assert len(sums) > 1000
    assert (sums.from_block >= 0).mean() > 0.7
    known = sums[sums.from_block >= 0]
    assert (known.from_block == known.slot).all()


def test_the_critical_path_of_a_launch_is_as_long_as_the_launch(trace: Trace) -> None:
    times, blocks = views.launch_times(trace), []
    for launch in times[times.kernel == "layer"].itertuples():
        path = views.critical_path(trace, launch_no=launch.launch_no)
        assert path.dur_ns.sum() == launch.dur_ns
        blocks.append(path.block.nunique())
    assert max(blocks) > 1


def test_the_experts_hit_are_counted(trace: Trace) -> None:
    traffic = views.expert_traffic(trace)
    assert len(traffic) == 2 * 3
    assert traffic.distinct_experts.between(1, 32).all()
