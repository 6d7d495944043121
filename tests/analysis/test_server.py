"""The steps of the host in a report, with a traced kernel and without one."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from megatrace.analysis import Report, summarise, to_text
from megatrace.analysis.report import HostStepRow
from megatrace.capture.reader import Capture
from tests.build import MS, Build, demo

Opener = Callable[..., Capture]


def server(rank: int = 0) -> Build:
    """Twenty steps of draft and verify after one prefill, the first half as CUDA graphs."""
    build = Build(rank=rank, traced=False)
    build.host("step", 0, 9 * MS, 1, (2, 30, 0, -1))
    build.host("extend", MS, 8 * MS, 1, (2, 30, 0, -1))
    for request in ("a", "b"):
        build.host("request", 0, 0, 1, text=request)
    for i in range(20):
        at, number, graph = 10 * MS * (i + 1), i + 2, int(i < 10)
        build.host("step", at, at + (1 + i) * MS, number, (2, 8, graph, 6))
        build.host("draft", at, at + MS // 2, number, (2, 6, graph, -1))
        build.host("verify", at + MS // 2, at + MS, number, (2, 8, graph, 6 if i else -1))
        build.host("request", at, at, number, text="a")
        build.host("request", at, at, number, text="b" if i < 5 else "c")
    build.host("window", 0, 300 * MS)
    return build


def row(report: Report, event: str, rank: int = 0) -> HostStepRow:
    (found,) = [r for r in report.host_steps if (r.event, r.rank) == (event, rank)]
    return found


@pytest.fixture
def report(captured: Opener) -> Report:
    return summarise(captured(server()))


def test_steps_and_forwards_are_timed_on_the_host(report: Report) -> None:
    step = row(report, "step")
    assert step.count == 21
    assert step.total_ms == pytest.approx(9 + sum(range(1, 21)))
    assert step.median_ms == pytest.approx(10)
    assert step.p95_ms == pytest.approx(19)
    assert row(report, "verify").total_ms == pytest.approx(20 * 0.5)


def test_only_stages_that_ran_have_a_row_in_the_order_of_the_schema(report: Report) -> None:
    assert [r.event for r in report.host_steps] == ["step", "extend", "draft", "verify"]


def test_batches_tokens_and_graphs_are_summed_up(report: Report) -> None:
    draft = row(report, "draft")
    assert (draft.mean_batch_size, draft.tokens, draft.graph_share) == (2.0, 120, 0.5)


def test_accept_length_is_of_a_request_and_of_verifies_that_know_it(report: Report) -> None:
    assert row(report, "verify").accept_length == 3.0
    assert row(report, "draft").accept_length is None


def test_requests_are_counted_once_each(report: Report) -> None:
    assert row(report, "extend").requests == 2
    assert row(report, "step").requests == 3


def test_every_rank_has_rows_of_its_own(captured: Opener) -> None:
    report = summarise(captured(server(), server(3)))
    assert row(report, "verify", 3).count == row(report, "verify", 0).count == 20


def test_a_capture_of_the_host_alone_prints_no_empty_tables(report: Report) -> None:
    text = to_text(report)
    assert "no traced kernel; host spans only, 1 rank, 21 steps seen, complete" in text
    assert "Host steps" in text
    for title in ("Loss", "Overhead", "Clocks", "device="):
        assert title not in text
    assert max(map(len, text.splitlines())) <= 100


def test_json_has_the_steps_under_the_words_of_the_schema(report: Report) -> None:
    body = json.loads(report.to_json())
    verify = body["host_steps"][-1]
    assert (verify["event"], verify["count"], verify["accept_length"]) == ("verify", 20, 3.0)
    assert (body["ranks"], body["lines_lost"], body["host_records_lost"]) == (0, 0, 0)


def test_steps_stand_beside_a_traced_kernel(captured: Opener) -> None:
    report = summarise(captured(*demo(ranks=2, steps=4)))
    assert [(r.rank, r.event, r.count) for r in report.host_steps] == [
        (0, "step", 4),
        (1, "step", 4),
    ]
    assert "Host steps" in to_text(report)


def test_a_host_capture_cut_short_does_not_know_its_loss(captured: Opener) -> None:
    report = summarise(captured(server(), complete=False))
    assert "loss: unknown" in to_text(report)
    assert report.to_dict()["host_records_lost"] is None
    assert row(report, "verify").count == 20


def test_steps_of_any_program_say_nothing_of_requests_and_forwards(captured: Opener) -> None:
    build = Build(traced=False)
    for number in range(1, 4):
        build.host("step", number * MS, number * MS + 500, number, (-1, -1, 0, -1))
    report = summarise(captured(build))
    text = to_text(report)
    assert "event  rank  count  total ms  median ms  p95 ms  graph\n" in text
    assert "Times are of the host.\n" in text
    for word in ("forward", "accept", "requests", "batch", "tokens"):
        assert word not in text
    (step,) = report.host_steps
    assert (step.mean_batch_size, step.tokens, step.graph_share) == (None, None, 0.0)


def test_spans_without_values_have_no_column_of_zeros(captured: Opener) -> None:
    build = Build(traced=False)
    build.host("step", MS, 2 * MS, 1)
    text = to_text(summarise(captured(build)))
    assert "event  rank  count  total ms  median ms  p95 ms\n" in text
    assert "%" not in text


def test_accept_length_is_explained_where_a_verify_knows_it(report: Report) -> None:
    text = to_text(report)
    assert "accept: mean accept length of a request" in text
    assert "a forward returns when its work is queued" in text
