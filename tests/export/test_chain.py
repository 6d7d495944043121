"""From a real capture file to the trace processor."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from megatrace.analysis import Trace, decode
from megatrace.capture.reader import open_capture
from megatrace.errors import UsageError
from megatrace.export import PerfettoOptions, decode_shown, export_perfetto
from megatrace.export.select import Steps
from tests.build import demo, write
from tests.export.trace_processor import OpenTrace


@pytest.fixture
def trace(tmp_path: Path) -> Iterator[Trace]:
    with open_capture(write(tmp_path / "demo.mtr", *demo(ranks=2, steps=4))) as capture:
        yield decode(capture)


def test_every_record_of_a_capture_is_in_the_trace(trace: Trace, tmp_path: Path) -> None:
    path = tmp_path / "demo.pftrace.gz"
    result = export_perfetto(trace, path, PerfettoOptions(steps="all"))
    opened = OpenTrace(path)
    assert opened.complaints() == []
    assert opened.value("select count() as n from slice") == result.slices
    rows = opened.rows(
        "select slice.name as name, count() as n from slice "
        "join track on track_id = track.id join track as sm on track.parent_id = sm.id "
        "where sm.name glob 'SM *' and slice.category is not 'warp' group by slice.name"
    )
    records = trace.records[trace.records["kind"] != "counter"]
    assert dict(rows) == dict(Counter(records["event"].astype(str)))
    assert opened.value("select count() as n from flow") == result.flows > 0
    assert result.host_error_ns is not None


@pytest.mark.parametrize("steps", ["one", [2, 4]])
def test_decoding_only_what_is_shown_shows_the_same(
    trace: Trace, tmp_path: Path, steps: Steps
) -> None:
    whole = export_perfetto(trace, tmp_path / "whole.pftrace", PerfettoOptions(steps=steps))
    with open_capture(tmp_path / "demo.mtr") as capture:
        part, left_out = decode_shown(capture, steps=steps)
    assert len(part.records) < len(trace.records)
    shown = export_perfetto(
        part, tmp_path / "part.pftrace", PerfettoOptions(steps="all"), left_out=left_out
    )
    assert shown.steps == whole.steps
    assert shown.left_out == whole.left_out
    assert shown.slices == whole.slices


def test_a_step_that_was_not_captured_is_refused(trace: Trace, tmp_path: Path) -> None:
    with (
        open_capture(tmp_path / "demo.mtr") as capture,
        pytest.raises(UsageError, match="step 77"),
    ):
        decode_shown(capture, steps=[77])


def test_one_step_of_a_capture_is_the_default(trace: Trace, tmp_path: Path) -> None:
    result = export_perfetto(trace, tmp_path / "one.pftrace")
    assert len(result.steps) == 1
    assert result.left_out[0] == "3 of 4 steps"
