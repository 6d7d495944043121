"""The hooks of the scheduler's loop, called as SGLang calls them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from megatrace.agent.host import HostAgent
from megatrace.agent.nvtx import NvtxBridge
from megatrace.agent.steps import step_signal
from megatrace.ring.drain import HostReader
from megatrace.ring.file import RingFile
from megatrace.ring.session import Session
from megatrace.sglang.guard import Guard
from megatrace.sglang.steps import FORWARD, PROCESS_RESULT, RUN_BATCH, StepTracer
from tests.sglang.records import Row, rows_of

MODES = ("decode", "extend", "target_verify", "idle")


class Tensor:
    """A tensor of a GPU: to look at more than its shape would wait for it."""

    __slots__ = ("shape",)

    def __init__(self, *shape: int) -> None:
        self.shape = shape


@dataclass(frozen=True)
class Mode:
    """A forward mode: hashable, like SGLang's."""

    name: str

    def __getattr__(self, asked: str) -> Callable[[], bool]:
        if asked.removeprefix("is_") not in MODES:
            raise AttributeError(asked)
        return lambda: asked == f"is_{self.name}"


def forward_batch(name: str, rows: int, batch_size: int = 1) -> Any:
    return SimpleNamespace(forward_mode=Mode(name), batch_size=batch_size, input_ids=Tensor(rows))


def schedule_batch(name: str, requests: list[str], step: int = 0) -> Any:
    return SimpleNamespace(
        forward_mode=Mode(name),
        reqs=[SimpleNamespace(rid=r) for r in requests],
        extend_num_tokens=11 if name == "extend" else None,
        forward_iter=step,
    )


class Loop:
    """A scheduler's loop around the tracer."""

    def __init__(self, agent: HostAgent) -> None:
        self.reported: dict[str, str] = {}
        self.tracer = StepTracer(agent, NvtxBridge(None, "none"), Guard(self._report))
        self.scheduler = SimpleNamespace(forward_ct=0)
        self.draft = SimpleNamespace(is_draft_worker=True)
        self.target = SimpleNamespace(is_draft_worker=False)
        self._path = agent.path

    def _report(self, target: str, why: str) -> None:
        self.reported[target] = why

    def run(self, batch: Any, inside: Callable[[], Any] = lambda: "result") -> Any:
        def original(scheduler: Any, batch: Any) -> Any:
            scheduler.forward_ct += 1
            batch.forward_iter = scheduler.forward_ct
            return inside()

        return self.tracer.around_run_batch(original, self.scheduler, batch)

    def forward(self, runner: Any, batch: Any, graph: bool = False) -> Any:
        output = SimpleNamespace(can_run_graph=graph)
        result = self.tracer.around_forward(lambda *_args: output, runner, batch)
        assert result is output
        return result

    def verify(self, requests: list[str]) -> Any:
        batch = schedule_batch("decode", requests)
        self.run(
            batch,
            lambda: self.forward(
                self.target, forward_batch("target_verify", 4 * len(requests), len(requests)), True
            ),
        )
        return batch

    def settle(self, batch: Any, drafts: list[int] | None) -> None:
        outcome = SimpleNamespace(
            num_correct_drafts_per_req_cpu=drafts, num_non_draft_tokens_per_req=1
        )
        self.tracer.after_result(None, self.scheduler, batch, outcome)

    def rows(self, *events: str) -> list[Row]:
        with RingFile.attach(self._path) as ring:
            return [r for r in rows_of(HostReader(ring).drain()) if r.event in events]


@pytest.fixture
def loop() -> Iterator[Loop]:
    session = Session.create("steps")
    agent = HostAgent.from_env("scheduler", environ=session.environment)
    assert agent is not None
    yield Loop(agent)
    agent.close()
    session.close(remove=True)


def test_a_forward_keeps_stage_rows_and_graph(loop: Loop) -> None:
    loop.forward(loop.target, forward_batch("extend", 11))
    loop.forward(loop.target, forward_batch("decode", 3, 3), graph=True)
    loop.forward(loop.target, forward_batch("idle", 0, 0))
    loop.forward(loop.draft, forward_batch("target_verify", 8, 2))
    rows = loop.rows("extend", "decode", "forward", "draft")
    assert [(r.event, r.batch, r.tokens, r.graph) for r in rows] == [
        ("extend", 1, 11, 0),
        ("decode", 3, 3, 1),
        ("forward", 0, 0, 0),
        ("draft", 2, 8, 0),
    ]


def test_a_forward_outside_of_a_step_has_step_0(loop: Loop) -> None:
    loop.forward(loop.target, forward_batch("decode", 1))
    loop.run(
        schedule_batch("decode", ["a"]),
        lambda: loop.forward(loop.target, forward_batch("decode", 1)),
    )
    assert [row.step for row in loop.rows("decode")] == [0, 1]


def test_a_verify_waits_for_its_accept_lengths(loop: Loop) -> None:
    first = loop.verify(["a", "b"])
    second = loop.verify(["a", "b"])
    assert loop.rows("verify", "step") == []
    loop.settle(first, [3, 0])
    loop.settle(second, [1, 1])
    rows = loop.rows("verify", "step")
    assert [(r.event, r.step, r.accepted) for r in rows] == [
        ("verify", 1, 5),
        ("step", 1, 5),
        ("verify", 2, 4),
        ("step", 2, 4),
    ]
    assert {(r.tokens, r.graph) for r in rows} == {(8, 1)}


def test_all_of_a_step_is_written_together_when_its_result_is_known(loop: Loop) -> None:
    def inside() -> None:
        loop.forward(loop.draft, forward_batch("target_verify", 4))
        loop.forward(loop.target, forward_batch("target_verify", 4))

    events = ("request", "draft", "verify", "step", "extend")
    batch = schedule_batch("decode", ["a"])
    loop.run(batch, inside)
    assert loop.rows(*events) == []
    loop.run(
        schedule_batch("extend", ["b"]),
        lambda: loop.forward(loop.target, forward_batch("extend", 11)),
    )
    loop.settle(batch, [2])
    assert [(r.event, r.step) for r in loop.rows(*events)] == [
        *(("request", 2), ("extend", 2), ("step", 2)),
        *(("request", 1), ("draft", 1), ("verify", 1), ("step", 1)),
    ]


def test_a_verify_without_a_result_is_written_at_the_end(loop: Loop) -> None:
    loop.verify(["a"])
    loop.tracer.flush()
    assert [(r.event, r.accepted) for r in loop.rows("verify", "step")] == [
        ("verify", -1),
        ("step", -1),
    ]


def test_results_that_never_come_do_not_pile_up(loop: Loop) -> None:
    for _ in range(200):
        loop.verify(["a"])
    assert len(loop.rows("step")) > 100


def test_a_result_of_an_unknown_step_is_ignored(loop: Loop) -> None:
    batch = loop.verify(["a"])
    loop.settle(schedule_batch("decode", ["a"], step=99), [1])
    loop.settle(batch, None)
    assert [row.accepted for row in loop.rows("step")] == [-1]
    assert loop.reported == {}


def test_long_and_odd_request_ids_are_cut_and_kept(loop: Loop) -> None:
    loop.run(schedule_batch("decode", ["x" * 100, "\ud800"]))
    assert [row.text for row in loop.rows("request")] == ["x" * 56, "?"]
    assert loop.reported == {}


def test_the_device_half_hears_of_a_step_before_its_forward(loop: Loop) -> None:
    heard: list[int] = []
    step_signal().subscribe(heard.append)
    try:
        loop.run(schedule_batch("decode", ["a"]), lambda: heard.append(-1))
    finally:
        step_signal().unsubscribe(heard.append)
    assert heard == [1, -1]


def test_a_window_opened_between_steps_begins_with_the_next(loop: Loop) -> None:
    steps = [loop.tracer.current_or_next()]
    loop.run(schedule_batch("decode", ["a"]), lambda: steps.append(loop.tracer.current_or_next()))
    steps.append(loop.tracer.current_or_next())
    assert steps == [1, 1, 2]


def test_an_exception_of_the_server_passes_through(loop: Loop) -> None:
    def broken() -> None:
        raise MemoryError("the server's own")

    with pytest.raises(MemoryError, match="the server's own"):
        loop.run(schedule_batch("decode", ["a"]), broken)
    assert [row.step for row in loop.rows("step")] == [1]
    assert loop.tracer.current() == 0
    assert loop.reported == {}


def test_a_hook_that_fails_is_reported_once_and_the_call_goes_on(loop: Loop) -> None:
    strange = SimpleNamespace(reqs=[])
    assert loop.run(strange) == "result"
    assert loop.run(strange) == "result"
    assert loop.forward(SimpleNamespace(), forward_batch("decode", 1))
    assert set(loop.reported) == {RUN_BATCH, FORWARD}
    assert loop.reported[FORWARD].startswith("AttributeError: ")


def test_a_result_that_cannot_be_read_is_reported(loop: Loop) -> None:
    batch = loop.verify(["a"])
    loop.settle(batch, ["no number"])  # type: ignore[list-item]
    assert set(loop.reported) == {PROCESS_RESULT}
    loop.verify(["b"])
    loop.tracer.flush()
    assert [(row.step, row.accepted) for row in loop.rows("step")] == [(2, -1), (1, -1)]


def test_a_result_that_is_no_number_ends_nothing_but_its_own_hook(loop: Loop) -> None:
    loop.settle(loop.verify(["a"]), [1.5])  # type: ignore[list-item]
    loop.verify(["b"])
    assert set(loop.reported) == {PROCESS_RESULT}
    loop.tracer.flush()
    assert {row.step for row in loop.rows("step")} == {1, 2}
    assert {row.step for row in loop.rows("verify")} == {1, 2}


def test_a_verify_keeps_its_own_graph_whatever_the_step_runs_after_it(loop: Loop) -> None:
    def inside() -> None:
        loop.forward(loop.target, forward_batch("target_verify", 4), graph=True)
        loop.forward(loop.target, forward_batch("extend", 4), graph=False)

    batch = schedule_batch("decode", ["a"])
    loop.run(batch, inside)
    loop.settle(batch, [2])
    (verify,) = loop.rows("verify")
    assert verify.graph == 1
