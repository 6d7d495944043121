"""The numbers of a report, against captures whose numbers are known."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import product

import numpy as np
import pytest

from megatrace.analysis import Report, summarise, to_text
from megatrace.analysis.report import EventRow
from megatrace.capture.reader import Capture
from tests.build import GHZ, MS, Build, Launch, Rec, demo, hang, point, span

Opener = Callable[..., Capture]


def event(report: Report, name: str, *, layer: int = 0, role: str = "math") -> EventRow:
    key = (name, layer, role)
    (row,) = [r for r in report.events if (r.event, r.layer, r.role) == key]
    return row


@pytest.fixture
def report(captured: Opener) -> Report:
    return summarise(captured(*demo(ranks=2, steps=4)))


def test_every_event_is_counted_by_kernel_layer_and_role(report: Report) -> None:
    warps, steps, ranks, tiles = 4, 4, 2, 4
    assert event(report, "tile").count == warps * steps * ranks * tiles
    assert event(report, "phase", layer=1).count == warps * steps * ranks
    assert event(report, "issue", role="load").count == 2 * steps * ranks * tiles
    assert not [row for row in report.events if row.event == "tile" and row.role == "load"]


def test_times_are_microseconds_of_the_gpu(report: Report) -> None:
    phase = event(report, "phase")
    assert phase.median_us == pytest.approx(94_500 / GHZ / 1e3, rel=1e-4)
    assert phase.total_us == pytest.approx(phase.count * phase.median_us, rel=1e-4)
    assert phase.share == pytest.approx(94_500 / GHZ / 50_000, rel=1e-3)
    assert event(report, "full").median_us == pytest.approx(200 / GHZ / 1e3, rel=1e-4)


def test_a_wait_that_did_not_block_is_counted_apart(report: Report) -> None:
    arrived = event(report, "arrived")
    assert arrived.count == arrived.unblocked == 64
    assert arrived.median_us == pytest.approx(400 / GHZ / 1e3, rel=1e-4)


def test_launches_are_timed_from_the_first_warp_in_to_the_last_out(report: Report) -> None:
    first, second = report.kernels
    assert (first.kernel, first.layer, second.layer) == ("layer", 0, 1)
    assert (first.launches, first.timed) == (8, 8)
    assert first.median_us == pytest.approx(50 + 5 * 0.04, abs=0.05)


def test_stalls_add_up_by_cause_from_records_and_from_counters(report: Report) -> None:
    found = {(r.role, r.cause, r.source): r for r in report.stalls if r.rank == 1}
    data = found["math", "data", "records"]
    assert data.count == 2 * 4 * 4 * (4 + 2)  # full, and every other arrived
    assert data.total_us == pytest.approx(32 * (4 * 200 + 2 * 400) / GHZ / 1e3, rel=1e-4)
    counted = found["math", "data", "counters"]
    assert counted.total_cycles == 4 * 2 * 2000 * 4  # the last of four running sums
    assert counted.total_us == pytest.approx(counted.total_cycles / GHZ / 1e3, rel=1e-3)


def test_steps_recorded_are_told_from_steps_seen(captured: Opener) -> None:
    build = demo(steps=2)[0]
    for number in range(3, 11):
        build.host("step", number * MS, number * MS + 500, number, (1, 1, 1, 1))
    steps = summarise(captured(build)).steps
    assert (steps.recorded, steps.seen, steps.source) == (2, 10, "host step records")


def test_loss_is_exact_in_lines_and_words(captured: Opener) -> None:
    build = Build()
    body = [point("depth", 10 * i, i) for i in range(100)]
    for number in range(3):
        build.add(0, Launch(number, MS * (number + 1), MS * (number + 1) + 5000, records=body))
    build.lose(0, 3, 24)  # 24: the very last line, which no later one tells of
    (loss,) = summarise(captured(build)).loss
    assert (loss.lines_seen, loss.lines_lost) == (22, 2)
    assert loss.words_lost == 30
    assert loss.words_unknown_max == 30
    assert loss.launches_incomplete == 1


def test_launches_without_a_header_are_counted_by_number(captured: Opener) -> None:
    build = Build()
    for number in range(6):
        build.add(0, Launch(number, MS * (number + 1), MS * (number + 1) + 5000))
    build.lose(0, 1, 4, 5)
    (loss,) = summarise(captured(build)).loss
    assert loss.launches_lost == 3
    assert loss.words_lost == 3 * 12


def test_a_hang_names_who_waits_for_what(captured: Opener) -> None:
    build = Build(blocks=2, warps=2, roles=("load", "math"))
    for ring, number in product(range(4), range(2)):
        last: list[Rec] = []
        if (ring, number) == (3, 1):
            last = [point("mark", 50, 1, 2), hang("input", 10**9, 10**9 - 100, 17)]
        at = MS * (number + 1)
        build.add(ring, Launch(number, at, None if last else at + 9000, last, sm=ring // 2 + 40))
    (row,) = summarise(captured(build)).hangs
    assert (row.role, row.event, row.slot, row.block, row.warp, row.sm) == (
        "math", "input", 17, 1, 1, 41,
    )  # fmt: skip
    assert row.waited_us == pytest.approx(1e9 / GHZ / 1e3, rel=1e-3)


def test_counters_alone_make_a_report_in_cycles(captured: Opener) -> None:
    build = Build(warps=2, roles=("load", "math"))
    build.count(0, 0, [0, 700, 0, 0], [0, 7, 0, 0])
    build.count(0, 1, [300, 0, 0, 0], [3, 0, 0, 0])
    found = summarise(captured(build))
    assert [(r.role, r.cause, r.total_cycles, r.total_us) for r in found.stalls] == [
        ("load", "space", 700, None),
        ("math", "data", 300, None),
    ]
    assert "700 cycles" in to_text(found)
    assert found.clocks[0].error_ns is None


def test_a_capture_that_was_cut_short_is_reported_as_incomplete(captured: Opener) -> None:
    found = summarise(captured(*demo(), complete=False))
    assert not found.complete
    assert found.problems
    text = to_text(found)
    assert "INCOMPLETE" in text
    assert "loss: unknown" in text
    assert "nothing lost" not in text
    assert found.to_dict()["lines_lost"] is None
    assert event(found, "tile").count > 0


def test_launches_that_cannot_be_placed_are_a_problem_and_not_a_crash(captured: Opener) -> None:
    build = Build()
    build.add(0, Launch(0, MS, MS + 5000, records=span("tile", 5, 50, 1)))
    found = summarise(captured(build))
    assert any("no record of this rank can be placed" in problem for problem in found.problems)
    assert found.events == ()
    assert found.loss[0].words_seen == 9 + 3 + 3


def test_spans_without_an_end_are_counted_and_not_timed(captured: Opener) -> None:
    build = Build()
    for number in range(2):
        at = MS * (number + 1)
        body = [Rec(18, 5), *span("tile", 10, 50, 1)]
        build.add(0, Launch(number, at, at + 5000, records=body))
    phase = event(summarise(captured(build)), "phase", role="warp 0")
    assert (phase.count, phase.unfinished, phase.total_us) == (0, 2, 0.0)


def test_json_names_its_schema_and_holds_every_table(report: Report) -> None:
    body = json.loads(report.to_json())
    assert (body["schema"], body["version"]) == ("megatrace.report", 1)
    assert len(body["events"]) == len(report.events)
    assert body["device"] == "cuda"
    marks = [row for row in body["events"] if row["event"] == "mark"]
    assert marks[0]["median_us"] is None


def test_text_fits_100_columns_and_says_what_the_numbers_are_worth(report: Report) -> None:
    text = to_text(report)
    assert max(map(len, text.splitlines())) <= 100
    for words in (
        "nothing lost", "times within ±", "against the host ±", "4 steps recorded of 4 seen",
        "device=cuda", "Medians and p95 are exact", "Not measured: the time it cost",
    ):  # fmt: skip
        assert words in text


def test_long_tables_are_cut_and_say_so(report: Report) -> None:
    text = to_text(report, top=3)
    assert f"{len(report.events) - 3} more rows are in the JSON" in text


def test_long_names_are_shortened_to_fit(captured: Opener) -> None:
    builds = demo(steps=2)
    builds[0].kernels = {1: "a_kernel_with_a_very_long_name_" * 4}
    builds[0].roles = ("load", "math_with_a_name_of_some_length", "math")
    assert max(map(len, to_text(summarise(captured(*builds))).splitlines())) <= 100


def test_the_host_build_is_named_as_such(captured: Opener) -> None:
    builds = demo()
    builds[0].device = 0
    found = summarise(captured(*builds))
    assert found.device == "cpu"
    assert "host build" in to_text(found)


def test_many_chunks_say_what_one_says(captured: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    capture = captured(*demo(ranks=2, blocks=3, steps=5))
    whole = summarise(capture)
    monkeypatch.setattr("megatrace.analysis.plan.PIECE_LINES", 4)
    monkeypatch.setattr("megatrace.analysis.lines.CHUNK_LINES", 8)
    parts = summarise(capture)
    assert [(r.event, r.count, r.unfinished) for r in parts.events] == [
        (r.event, r.count, r.unfinished) for r in whole.events
    ]
    assert np.allclose([r.total_us for r in parts.events], [r.total_us for r in whole.events])
    assert parts.loss == whole.loss
