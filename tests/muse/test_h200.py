"""The committed capture of the fused layer kernel on an H200: 16 rows, three layers, two SMs."""

from __future__ import annotations

from pathlib import Path

import pytest

from megatrace.analysis import decode
from megatrace.analysis.trace import Trace
from megatrace.capture.reader import open_capture
from megatrace.muse.events import MUSE, PHASES, ROLES
from tests.bench.layer_phases import phase_table

FILE = Path(__file__).with_name("h200.mtr")
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
    # The first layer's launches are two a step: the embedding's and its own.
    assert len(launches) == 4 * (3 + 1) * 2 * len(ROLES)


def test_every_phase_is_a_span_of_the_tensor_warps(trace: Trace) -> None:
    spans = trace.records[(trace.records.kind == "span") & (trace.records.role == "tensor")]
    owned_by_other_sms = {"embed", "attn_boundary", "route", "expert_sum", "ffn_boundary"}
    assert set(PHASES) - owned_by_other_sms <= set(spans.event)
    by_math = trace.records[(trace.records.kind == "span") & (trace.records.role == "math")]
    assert not TENSOR_ONLY & set(by_math.event)


def test_the_phases_of_a_layer_follow_each_other(trace: Trace) -> None:
    records, launches = (of[of.layer == 1] for of in (trace.records, trace.launches))
    table = phase_table(records, launches)
    assert table.begin_us.is_monotonic_increasing
    assert (table.lasts_us > 0).all()
    assert (table.waits_us <= table.lasts_us).all()


def test_weights_asked_for_early_meet_their_first_use(trace: Trace) -> None:
    early = trace.records[trace.records.event == "early_weights"]
    used = trace.records[trace.records.event == "first_weights"]
    keys = ["step", "layer", "launch_row"]
    assert len(early) > 0
    assert set(used.slot) <= set(early.slot)
    assert not used[[*keys, "warp", "slot"]].duplicated().all()
