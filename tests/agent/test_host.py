"""The host half of the agent, read back through the ring it writes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from megatrace.agent.host import HOST_EVENT_IDS, HostAgent
from megatrace.errors import RingError
from megatrace.ring.control import Control, read_ack, write_control
from megatrace.ring.drain import HostReader
from megatrace.ring.file import STATE_CLOSED, STATE_LIVE, RingFile
from megatrace.ring.host import FactAssembler
from megatrace.ring.session import Session


@pytest.fixture
def session() -> Iterator[Session]:
    made = Session.create("test")
    yield made
    made.close(remove=True)


@pytest.fixture
def agent(session: Session) -> Iterator[HostAgent]:
    made = HostAgent.from_env("worker", rank=3, environ=session.environment)
    assert made is not None
    yield made
    made.close()


@pytest.fixture
def ring(agent: HostAgent) -> Iterator[RingFile]:
    with RingFile.attach(agent.path, writable_control=True) as attached:
        yield attached


def test_without_the_variable_there_is_no_agent() -> None:
    assert HostAgent.from_env("worker", environ={}) is None


def test_a_session_that_is_gone_is_said_and_ends_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert HostAgent.from_env(environ={"MEGATRACE_SESSION": str(tmp_path / "gone")}) is None
    assert "has ended" in capsys.readouterr().err


def test_the_ring_says_whose_it_is(agent: HostAgent, ring: RingFile) -> None:
    assert agent.path.name == f"worker-{os.getpid()}.host.ring"
    assert ring.rank == 3
    assert ring.meta == {"process": "worker", "pid": os.getpid()}
    assert ring.rings == 0


def test_a_second_agent_of_a_process_has_a_ring_of_its_own(
    agent: HostAgent, session: Session
) -> None:
    second = HostAgent.from_env("worker", rank=3, environ=session.environment)
    assert second is not None
    assert second.path != agent.path
    assert second.path.name.endswith(".host.ring")
    second.close()


def test_too_many_rings_of_one_name_are_refused(agent: HostAgent, session: Session) -> None:
    for number in range(2, 101):
        (session.path / f"worker-{os.getpid()}-{number}.host.ring").touch()
    with pytest.raises(RingError):
        HostAgent.from_env("worker", environ=session.environment)


def test_a_span_reaches_a_reader(agent: HostAgent, ring: RingFile) -> None:
    agent.span(HOST_EVENT_IDS["decode"], 100, 250, 7, (4, 8, 1, -1), b"abc")
    (record,) = HostReader(ring).drain()
    assert record["event"] == HOST_EVENT_IDS["decode"]
    assert (record["begin_ns"], record["end_ns"], record["step"]) == (100, 250, 7)
    assert record["values"].tolist() == [4, 8, 1, -1]
    assert record["text"].tobytes()[: record["text_bytes"]] == b"abc"


def test_a_fact_longer_than_a_record_comes_back_whole(agent: HostAgent, ring: RingFile) -> None:
    value: dict[str, object] = {"hooks": [f"module.Class.method{i}" for i in range(20)]}
    agent.fact("attach", value)
    (fact,) = FactAssembler().feed(HostReader(ring).drain())
    assert (fact.name, fact.value) == ("attach", value)


def test_control_is_what_the_recorder_wrote(agent: HostAgent, ring: RingFile) -> None:
    write_control(ring, Control(level=2, every_n=8))
    assert (agent.control().level, agent.control().every_n) == (2, 8)


def test_an_open_window_shows_in_the_ack_at_once(agent: HostAgent, ring: RingFile) -> None:
    assert read_ack(ring).window_open == 0
    agent.set_window(True, step=12)
    assert (read_ack(ring).window_open, read_ack(ring).step) == (1, 12)
    agent.set_window(False, step=20)
    assert (read_ack(ring).window_open, read_ack(ring).step) == (0, 20)


def test_a_closed_window_is_a_span_from_its_first_step(agent: HostAgent, ring: RingFile) -> None:
    agent.set_window(True, step=12)
    agent.set_window(False, step=20)
    (record,) = HostReader(ring).drain()
    assert record["event"] == HOST_EVENT_IDS["window"]
    assert record["step"] == 12
    assert 0 < record["begin_ns"] <= record["end_ns"]


def test_a_window_opened_twice_is_one_window(agent: HostAgent, ring: RingFile) -> None:
    agent.set_window(True, step=1)
    agent.set_window(True, step=5)
    agent.set_window(False)
    agent.set_window(False)
    assert HostReader(ring).drain()["step"].tolist() == [1]


def test_closing_ends_an_open_window_and_the_ring(agent: HostAgent, ring: RingFile) -> None:
    agent.set_window(True, step=1)
    agent.close()
    assert HostReader(ring).drain()["event"].tolist() == [HOST_EVENT_IDS["window"]]
    assert ring.state == STATE_CLOSED
    assert not ring.owner_alive()


def test_a_process_that_outlasts_its_agent_goes_on(agent: HostAgent) -> None:
    agent.close()
    agent.span(HOST_EVENT_IDS["forward"], 1, 2)
    agent.fact("f", {"a": 1})
    agent.set_window(True)
    assert not agent.window_open
    agent.close()


def test_a_forked_child_leaves_the_ring_to_its_parent(agent: HostAgent, ring: RingFile) -> None:
    child = os.fork()
    if child == 0:
        agent.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert ring.state == STATE_LIVE
    assert ring.owner_alive()
