"""The agent beside a kernel, in the host build: ring, steps, and hosts that say none."""

from __future__ import annotations

import time

import pytest

from megatrace.agent.kernel import IdleAgent, KernelAgent, RingSize
from megatrace.errors import RingError
from megatrace.jit.compilers import gpu_chip
from megatrace.ring.control import Control, read_ack, write_control
from megatrace.ring.drain import HostReader
from megatrace.ring.file import STATE_CLOSED, RingFile
from megatrace.ring.session import Session
from megatrace.schema import HOST, Cause, Event, EventTable, Kind
from megatrace.schema.layout import LEVEL_TIMELINE

TABLE = EventTable("t", (Event(16, "full", Kind.STALL, "Not there.", cause=Cause.DATA),))


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> Session:
    session = Session.create("agent")
    monkeypatch.setenv("MEGATRACE_SESSION", str(session.path))
    return session


def start(**changes: object) -> KernelAgent:
    arguments: dict[str, object] = {
        "blocks": 2,
        "roles": ("loader", "consumer"),
        "kernels": ("k",),
        "device": "cpu",
        "size": RingSize(lines=8, layers=1),
        **changes,
    }
    agent = KernelAgent.start(TABLE, **arguments)  # type: ignore[arg-type]
    assert isinstance(agent, KernelAgent)
    return agent


def test_outside_a_session_the_agent_does_nothing_and_the_tracer_is_off() -> None:
    agent = KernelAgent.start(TABLE, blocks=1, roles=("w",), kernels=("k",), device="cpu")
    assert isinstance(agent, IdleAgent)
    assert agent.params.control == 0
    with agent:
        agent.begin_step()
        agent.fact("f", {})


def test_the_ring_says_what_writes_it(session: Session) -> None:
    with start(rank=3):
        (path,) = session.ring_paths()
        with RingFile.attach(path) as ring:
            assert ring.rank == 3
            assert int(ring.header["table_hash"]) == TABLE.hash
            assert ring.meta["roles"] == ["loader", "consumer"]
            assert ring.owner_alive()
    with RingFile.attach(path) as ring:
        assert ring.state == STATE_CLOSED
        assert not ring.owner_alive()


def test_a_step_is_acknowledged_with_the_level_it_runs_at(session: Session) -> None:
    with start() as agent, RingFile.attach(session.ring_paths()[0], writable_control=True) as ring:
        seq = write_control(ring, Control(level=LEVEL_TIMELINE, every_n=2))
        agent.begin_step()
        agent.begin_step()
        ack = read_ack(ring)
        assert (ack.step, ack.level, ack.timeline_steps) == (2, LEVEL_TIMELINE, 1)
        assert ack.seq == seq


def test_a_host_that_says_no_steps_still_obeys_the_recorder(session: Session) -> None:
    with start(), RingFile.attach(session.ring_paths()[0], writable_control=True) as ring:
        seq = write_control(ring, Control(level=LEVEL_TIMELINE, every_n=1))
        give_up = time.monotonic() + 5
        while read_ack(ring).seq != seq and time.monotonic() < give_up:
            time.sleep(0.02)
        assert read_ack(ring).level == LEVEL_TIMELINE


def test_clock_samples_are_taken_at_both_ends(session: Session) -> None:
    sample = next(event.id for event in HOST if event.name == "clock_sample")
    with start(), RingFile.attach(session.ring_paths()[0]) as ring:
        reader = HostReader(ring)
        assert [int(r["event"]) for r in reader.drain()].count(sample) == 1
    with RingFile.attach(session.ring_paths()[0]) as ring:
        assert [int(r["event"]) for r in HostReader(ring).drain()].count(sample) >= 2


@pytest.mark.skipif(gpu_chip() is not None, reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_said(session: Session) -> None:
    with pytest.raises(RingError, match=r"no CUDA driver|no CUDA-capable|cuInit"):
        start(device="cuda")
