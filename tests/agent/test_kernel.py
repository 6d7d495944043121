"""The agent beside a kernel, in the host build: ring, steps, and hosts that say none."""

from __future__ import annotations

import ctypes
import os
import struct
import subprocess
import sys
import threading
import time

import pytest

from megatrace.agent.kernel import IdleAgent, KernelAgent, RingSize
from megatrace.agent.steps import capture_window, step_signal
from megatrace.errors import UsageError
from megatrace.jit.compilers import gpu_chip
from megatrace.ring.control import Control, read_ack, write_control
from megatrace.ring.drain import HostReader
from megatrace.ring.file import STATE_CLOSED, RingFile
from megatrace.ring.session import Session
from megatrace.schema import HOST, Cause, Event, EventTable, Kind
from megatrace.schema.layout import (
    CONTROL_RESTS,
    CONTROL_SOME_SMS,
    LEVEL_COUNTERS,
    LEVEL_OFF,
    LEVEL_TIMELINE,
)

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


@pytest.mark.usefixtures("session")
def test_the_parameters_say_layers_and_how_the_warps_are_cut_into_blocks() -> None:
    with start(blocks=5, size=RingSize(lines=8, layers=62)) as agent:
        params = agent.params
        assert (params.warps, params.block_warps, params.layers) == (10, 2, 62)


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
        assert [int(r["event"]) for r in reader.drain()].count(sample) >= 1
    with RingFile.attach(session.ring_paths()[0]) as ring:
        assert [int(r["event"]) for r in HostReader(ring).drain()].count(sample) >= 2


@pytest.mark.skipif(gpu_chip() is not None, reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_said_and_ends_nothing(
    session: Session, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = {"blocks": 1, "roles": ("w",), "kernels": ("k",), "device": "cuda"}
    assert isinstance(KernelAgent.start(TABLE, **arguments), IdleAgent)  # type: ignore[arg-type]
    assert "not recorded" in capsys.readouterr().err


def test_a_second_agent_of_a_rank_gets_a_ring_of_its_own(session: Session) -> None:
    with start() as first, start() as second:
        assert first.params.lines != second.params.lines
        names = [path.name for path in session.ring_paths()]
    pid = os.getpid()
    assert sorted(names) == [f"rank0000-{pid}-2.ring", f"rank0000-{pid}.ring"]


def test_a_session_that_is_gone_ends_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MEGATRACE_SESSION", "/nonexistent/session")
    agent = KernelAgent.start(TABLE, blocks=1, roles=("w",), kernels=("k",), device="cpu")
    assert isinstance(agent, IdleAgent)
    assert "has ended" in capsys.readouterr().err


@pytest.mark.parametrize(("own", "asked"), [(0, 7), (5, 5)])
def test_a_step_is_written_on_the_agents_stream_or_on_that_of_the_framework(
    session: Session, monkeypatch: pytest.MonkeyPatch, own: int, asked: int
) -> None:
    monkeypatch.setattr(step_signal(), "stream", 7)
    streams: list[int] = []
    with start() as agent:
        agent.stream = own
        monkeypatch.setattr(
            agent._memory, "write_step", lambda step, level, stream: streams.append(stream)
        )
        agent.on_step(1)
        monkeypatch.undo()
    assert streams == [asked]


def test_steps_that_a_plugin_says_reach_the_kernel_on_its_stream(session: Session) -> None:
    with start() as agent, RingFile.attach(session.ring_paths()[0], writable_control=True) as ring:
        write_control(ring, Control(level=LEVEL_TIMELINE, every_n=1))
        step_signal().emit(100)
        assert read_ack(ring).step == 100
        assert control_word(agent) == (100, LEVEL_TIMELINE)


def test_a_step_that_rests_is_said_to_the_kernel_beside_its_level(session: Session) -> None:
    with start() as agent, RingFile.attach(session.ring_paths()[0], writable_control=True) as ring:
        write_control(ring, Control(level=LEVEL_TIMELINE, every_n=4, counters_every=2))
        words = []
        for step in range(1, 6):
            agent.begin_step(step=step)
            words.append(control_word(agent)[1])
        rests = LEVEL_COUNTERS | CONTROL_RESTS
        assert words == [LEVEL_COUNTERS, rests, LEVEL_COUNTERS, LEVEL_TIMELINE, rests]


def test_launches_after_the_last_step_that_was_said_count_again(session: Session) -> None:
    with start() as agent, RingFile.attach(session.ring_paths()[0], writable_control=True) as ring:
        write_control(ring, Control(level=LEVEL_COUNTERS, counters_every=1000))
        agent.begin_step(step=1)
        agent.begin_step(step=2)
        assert control_word(agent) == (2, LEVEL_COUNTERS | CONTROL_RESTS)
        give_up = time.monotonic() + 10
        while control_word(agent)[1] != LEVEL_COUNTERS and time.monotonic() < give_up:
            time.sleep(0.05)
        assert control_word(agent) == (2, LEVEL_COUNTERS)


def test_a_step_that_rests_says_so_beside_the_sms_that_record(session: Session) -> None:
    with start() as agent, RingFile.attach(session.ring_paths()[0], writable_control=True) as ring:
        write_control(ring, Control(level=LEVEL_COUNTERS, counters_every=2, sm_mask=0b11))
        agent.begin_step(step=1)
        agent.begin_step(step=2)
        flags = CONTROL_RESTS | CONTROL_SOME_SMS
        assert control_word(agent)[1] == LEVEL_COUNTERS | flags


def test_launches_of_a_host_that_says_no_steps_all_count(session: Session) -> None:
    with start() as agent, RingFile.attach(session.ring_paths()[0], writable_control=True) as ring:
        seq = write_control(ring, Control(level=LEVEL_COUNTERS, counters_every=1000))
        give_up = time.monotonic() + 5
        while read_ack(ring).seq != seq and time.monotonic() < give_up:
            time.sleep(0.02)
        assert control_word(agent)[1] == LEVEL_COUNTERS


def test_an_open_capture_window_records_the_very_next_step(session: Session) -> None:
    with start() as agent, RingFile.attach(session.ring_paths()[0], writable_control=True) as ring:
        write_control(ring, Control(level=LEVEL_TIMELINE, every_n=1000, timeline_limit=1))
        levels = []
        for step in range(1, 7):
            capture_window().is_open = 3 <= step <= 4
            agent.begin_step(step=step)
            levels.append(read_ack(ring).level)
        assert levels == [1, 1, 2, 2, 1, 1]


def test_a_recorder_that_died_while_writing_its_wishes_stops_nothing(session: Session) -> None:
    with start() as agent, RingFile.attach(session.ring_paths()[0], writable_control=True) as ring:
        write_control(ring, Control(level=LEVEL_TIMELINE, every_n=1))
        agent.begin_step()
        struct.pack_into("<I", ring.control_page, 0, 7)
        agent.begin_step()
        assert read_ack(ring).step == 2
        assert read_ack(ring).level == LEVEL_TIMELINE


def test_a_closed_agent_has_switched_the_tracer_off(session: Session) -> None:
    agent = start()
    with RingFile.attach(session.ring_paths()[0], writable_control=True) as ring:
        write_control(ring, Control(level=LEVEL_TIMELINE, every_n=1))
    agent.begin_step()
    assert control_word(agent)[1] == LEVEL_TIMELINE
    agent.close()
    assert control_word(agent)[1] == LEVEL_OFF


def test_a_forked_child_leaves_its_parents_ring_alone(session: Session) -> None:
    with start() as agent:
        child = os.fork()
        if child == 0:
            agent.begin_step(step=77)
            agent.close()
            os._exit(0)
        os.waitpid(child, 0)
        with RingFile.attach(session.ring_paths()[0]) as ring:
            assert ring.state != STATE_CLOSED
            assert ring.owner_alive()
            assert read_ack(ring).step != 77


def control_word(agent: KernelAgent) -> tuple[int, int]:
    """Step and level as a kernel would read them."""
    step, level = (ctypes.c_uint32 * 2).from_address(agent.params.control)
    return int(step), int(level)


def test_a_program_that_outlasts_its_agent_goes_on(session: Session) -> None:
    agent = start()
    agent.close()
    agent.span("forward", 1, 2)
    agent.fact("f", {"a": 1})
    agent.begin_step()
    agent.close()


def test_steps_that_are_said_while_the_agent_closes_are_taken_or_dropped(session: Session) -> None:
    agent, failures = start(), []

    def say_steps() -> None:
        try:
            while not agent._stop.is_set():
                agent.begin_step()
            agent.begin_step()
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=say_steps) for _ in range(2)]
    for thread in threads:
        thread.start()
    time.sleep(0.1)
    agent.close()
    for thread in threads:
        thread.join()
    assert failures == []


@pytest.mark.parametrize("lines", [0, 1, 100])
def test_a_ring_of_any_other_number_of_lines_is_refused(lines: int) -> None:
    with pytest.raises(UsageError, match=f"{lines} lines a warp"):
        RingSize(lines=lines)


@pytest.mark.parametrize("layers", [0, 1 << 16])
def test_a_ring_of_no_layer_or_more_than_a_launch_can_name_is_refused(layers: int) -> None:
    with pytest.raises(UsageError, match=f"{layers} layers"):
        RingSize(layers=layers)


@pytest.mark.parametrize("changes", [{"blocks": 0}, {"roles": ()}])
def test_an_agent_of_no_warp_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(UsageError, match=r"blocks of \d warps"):
        start(**changes)


def test_a_program_without_memory_for_a_ring_is_not_recorded_and_goes_on(session: Session) -> None:
    code = """
import resource
from megatrace.agent.kernel import KernelAgent, RingSize
from megatrace.schema import EventTable
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20),) * 2)
agent = KernelAgent.start(EventTable("t", ()), blocks=64, roles=("w",) * 4, kernels=("k",),
                          device="cpu", size=RingSize(lines=4096))
print(type(agent).__name__)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "IdleAgent\n"), done.stderr
    assert "this process's kernels are not recorded: cannot make " in done.stderr
    assert session.ring_paths() == []
