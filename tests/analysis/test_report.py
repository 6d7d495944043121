"""The numbers of a report, against captures whose numbers are known."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from itertools import product

import numpy as np
import pytest

from megatrace.analysis import Report, decode, summarise, to_text
from megatrace.analysis.report import EventRow
from megatrace.capture.reader import Capture
from megatrace.documents import JSON_VERSION
from megatrace.schema.layout import SLOT_UNKNOWN
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
    assert loss.launches_cut == 1
    assert loss.tail_words_at_most == 30


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


def test_a_hang_of_a_step_that_rested_does_not_say_whom(captured: Opener) -> None:
    build = Build(warps=1)
    for sample in range(4):
        build.sample_clock(sample * MS)
    build.add(0, Launch(1, MS, MS + 5000, [hang("input", 4000, 3000, SLOT_UNKNOWN)]))
    found = summarise(captured(build))
    assert [row.slot for row in found.hangs] == [None]
    assert any({"input", "?"} <= set(line.split()) for line in to_text(found).splitlines())


@pytest.mark.parametrize(("options", "said"), [({"counters_every": 32}, True), ({}, False)])
def test_counters_of_some_steps_are_said_to_be(
    captured: Opener, options: dict[str, int], said: bool
) -> None:
    build = Build(warps=1)
    build.add(0, Launch(1, MS, MS + 5000))
    build.count(0, 0, [300, 0, 0, 0], [3, 0, 0, 0])
    found = summarise(captured(build, **options))
    assert found.steps.counters_every == options.get("counters_every", 1)
    assert ("of steps without one 1 in 32" in to_text(found)) == said


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
    assert (body["schema"], body["version"]) == ("megatrace.report", JSON_VERSION)
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


def killed(warps: int = 3) -> Build:
    """Every warp ends one launch and is cut in the next."""
    build = Build(warps=warps)
    for ring in range(warps):
        body = [point("depth", 10 * i, i) for i in range(20)]
        build.add(ring, Launch(0, MS, MS + 5000, records=body))
        build.add(ring, Launch(1, 2 * MS, None, records=body, step=2))
    return build


def test_a_killed_kernel_has_an_unknown_tail_and_is_not_called_whole(captured: Opener) -> None:
    report = summarise(captured(killed()))
    sentence = "nothing lost but the unknown tail of 3 warp launches cut (up to 30 words each)"
    assert f"loss: {sentence}\n" in to_text(report)
    body = report.to_dict()
    assert (body["lines_lost"], body["launches_cut"], body["tail_words_at_most"]) == (0, 3, 90)
    (row,) = report.loss
    assert (row.words_lost, row.launches_cut, row.tail_words_at_most) == (0, 3, 90)


def test_the_loss_of_a_trace_is_any_where_a_launch_is_cut(captured: Opener) -> None:
    assert not decode(captured(*demo())).loss.any
    loss = decode(captured(killed(1))).loss
    assert loss.any
    assert loss.sentence().endswith("of 1 warp launch cut (up to 30 words each)")


def test_cut_launches_of_an_incomplete_capture_are_the_least_that_is_lost(
    captured: Opener,
) -> None:
    text = to_text(summarise(captured(killed(), complete=False)))
    assert "loss: at least the unknown tail of 3 warp launches cut" in text
    assert "nothing lost" not in text


def test_cut_launches_stand_beside_lost_lines(captured: Opener) -> None:
    build = killed()
    build.lose(0, 1)
    sentence = summarise(captured(build)).loss_sentence()
    assert "1 of 12 lines lost" in sentence
    assert "3 warp launches cut (unknown tail of up to 90 words)" in sentence


def test_a_launch_whose_closing_was_lost_has_no_tail_once_a_later_one_is_whole(
    captured: Opener,
) -> None:
    build = Build()
    body = [point("depth", 10 * i, i) for i in range(20)]
    for number in range(3):
        build.add(0, Launch(number, MS * (number + 1), MS * (number + 1) + 5000, records=body))
    build.lose(0, 2)
    (row,) = summarise(captured(build)).loss
    assert (row.launches_cut, row.tail_words_at_most) == (1, 0)
    assert (row.words_lost, row.words_unknown_max) == (23, 0)


def without_end(*, again: bool = True) -> Build:
    """Two blocks whose load warps never close a launch; ``again``: of two launches each."""
    build = Build(blocks=2, warps=2, roles=("load", "math"))
    for number in range(1 + again):
        at = MS * (number + 1)
        for ring in range(4):
            loads = ring % 2 == 0
            records = span("phase", 100, 900) if loads else ()
            end = None if loads else at + 5000
            build.add(ring, Launch(number, at, end, step=number + 1, records=records))
    return build


def test_a_role_that_never_closes_is_named_and_its_shares_are_unknown(captured: Opener) -> None:
    report = summarise(captured(without_end()))
    assert report.loss[0].never_closed == ("load",)
    assert report.loss_sentence().endswith("; role load never closes: without t.end()?")
    text = to_text(report)
    assert re.search(r"load +phase .* unknown$", text, re.MULTILINE)
    assert not re.search(r"load +phase .* 0\.0 %$", text, re.MULTILINE)
    (row,) = [r for r in report.to_dict()["events"] if r["event"] == "phase"]  # type: ignore[attr-defined]
    assert row["share"] is None


def test_a_role_that_was_killed_in_its_first_launch_is_not_said_to_never_close(
    captured: Opener,
) -> None:
    report = summarise(captured(without_end(again=False)))
    assert report.launches_cut == 2
    assert report.loss[0].never_closed == ()


def test_steps_seen_go_on_after_the_last_launch_with_a_timeline(captured: Opener) -> None:
    """The agent of a kernel samples the clock when it closes, in its fourth step."""
    build = on_sms(0, blocks=1)
    build.host("clock_sample", 9 * MS, 9 * MS + 100, 4, (9 * MS,))
    report = summarise(captured(build))
    assert (report.steps.recorded, report.steps.seen) == (2, 4)
    assert "2 steps recorded of 4 seen" in title(report)


def test_the_times_of_a_cpu_are_not_said_to_be_of_a_gpu(captured: Opener) -> None:
    builds = {name: demo() for name in ("cpu", "cuda")}
    builds["cpu"][0].device = 0
    clocks = {
        name: next(line for line in to_text(summarise(captured(*of))).splitlines() if "±" in line)
        for name, of in builds.items()
    }
    assert "on each GPU" in clocks["cuda"]
    assert "GPU" not in clocks["cpu"]


def test_one_step_is_no_steps(captured: Opener) -> None:
    build = Build()
    build.add(0, Launch(0, MS, MS + 5000))
    assert "1 step recorded of 1 seen" in title(summarise(captured(build)))


def title(report: Report) -> str:
    return to_text(report).split("\nloss:")[0]


def on_sms(*sms: int, blocks: int = 8, shared: bool = False) -> Build:
    """Launches of the first blocks, on the SMs given; ``shared``: two blocks on each."""
    build = Build(blocks=blocks, warps=2)
    for number in range(2):
        for block, sm in enumerate(np.repeat(sms, 1 + shared).tolist()):
            for warp in range(2):
                at = MS * (number + 1)
                build.add(2 * block + warp, Launch(number, at, at + 5000, step=number + 1, sm=sm))
    return build


def test_the_title_says_when_only_some_sms_were_recorded(captured: Opener) -> None:
    report = summarise(captured(on_sms(5, 7, 9), sms=[5, 7, 9]))
    assert "1 rank, 3 of 8 SMs recorded, 2 steps recorded" in title(report)
    assert report.to_dict()["sms"] == {"chosen": [5, 7, 9], "recorded": 3, "of": 8}


def test_how_many_sms_there_are_is_not_guessed_where_blocks_share_one(captured: Opener) -> None:
    report = summarise(captured(on_sms(5, 7, shared=True), sms=[5, 7]))
    assert "only 2 SMs recorded" in title(report)
    assert report.sms.of is None


def test_the_title_says_nothing_of_sms_where_all_were_recorded(captured: Opener) -> None:
    report = summarise(captured(on_sms(0, 1, blocks=2), sms="all"))
    assert "SM" not in title(report)
    assert report.sms.chosen is None


@pytest.mark.parametrize("sms", [None, "some", [], {"a": 1}, ["x", None]])
def test_odd_options_do_not_break_a_report(captured: Opener, sms: object) -> None:
    assert title(summarise(captured(on_sms(0, 1), sms=sms)))


def test_without_host_samples_the_clock_line_says_so(captured: Opener) -> None:
    clock = next(
        line for line in to_text(summarise(captured(on_sms(0, 1)))).splitlines()
        if line.startswith("clock:")
    )  # fmt: skip
    assert clock.startswith("clock: times within ±")
    assert clock.endswith(", host unknown")


def test_ranks_without_host_samples_are_not_covered_by_those_that_have_them(
    captured: Opener,
) -> None:
    bare = on_sms(0, 1)
    bare.rank = 1
    text = to_text(summarise(captured(*demo(), bare)))
    assert re.search(r"against the host ±\S+ us, host unknown for 1 rank\n", text)


def test_every_column_of_loss_has_a_name_of_its_own(report: Report) -> None:
    lines = section(report, "Loss")
    heads = [re.split(r"\s{2,}", line.strip()) for line in lines if line.startswith("rank  ")]
    names = [name for head in heads for name in head if name != "rank"]
    assert len(names) == len(set(names)) == 11
    for name in names:
        if name not in ("lines", "words"):
            assert any(line.startswith(name.removesuffix(" <=") + ": ") for line in lines), name


def test_the_json_counts_loss_under_the_words_of_the_text(report: Report) -> None:
    (row, _) = json.loads(report.to_json())["loss"]
    for name in ("lines lost", "words lost", "launches cut", "launches lost"):
        assert name in " ".join(section(report, "Loss"))
        assert row[name.replace(" ", "_")] == 0


def test_share_and_held_out_are_explained_below_their_tables(report: Report) -> None:
    assert any(line.startswith("share: ") for line in section(report, "Events by total time"))
    assert section(report, "Clocks")[-1].startswith("held out: ")


def section(report: Report, name: str) -> list[str]:
    """Lines of one part of the text, its tables included."""
    text = to_text(report).split(f"\n\n{name}\n")[1]
    return re.split(r"\n\n(?=[A-Z])", text)[0].strip("\n").split("\n")
