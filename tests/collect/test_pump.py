"""The pump on real rings of this process: what it attaches to, what it lets go."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from megatrace.collect.pump import Pump, any_alive
from megatrace.collect.sink import Sink
from megatrace.ring.file import RingFile, RingSpec
from megatrace.ring.session import Session
from megatrace.schema.processes import rank_text
from tests.collect.fake_rank import FakeRank, make_ring

PATIENCE_S = 0.2


@pytest.fixture
def session() -> Iterator[Session]:
    session = Session.create("pump")
    yield session
    session.close(remove=True)


@pytest.fixture
def pump(session: Session, tmp_path: Path) -> Iterator[Pump]:
    sink = Sink(tmp_path / "run.mtr")
    pump = Pump(session.path, sink)
    yield pump
    pump.close()
    sink.abandon()


def ring_of(session: Session, name: str) -> RingFile:
    return make_ring(session.path, 0, blocks=1, lines=8, layers=1, name=name)


def host_ring_of(session: Session, process: str) -> RingFile:
    spec = RingSpec(0, 0, 0, 0, 0, 16, 0, 0, meta={"process": process})
    return session.create_ring(process, spec)


def end(ring: RingFile, pump: Pump) -> None:
    ring.mark_closed()
    ring.close()
    pump.retire()


def met_half_made(session: Session, pump: Pump, name: str) -> None:
    """A look between the first and the last byte of a ring that is being made."""
    path = session.path / f"{name}.ring"
    path.touch(mode=0o600)
    pump.scan(patience_s=PATIENCE_S)
    path.unlink()


def test_a_later_ring_of_a_name_is_waited_for_as_the_first_was(
    session: Session, pump: Pump
) -> None:
    for _ in range(2):
        met_half_made(session, pump, "again")
        ring = ring_of(session, "again")
        pump.scan(patience_s=PATIENCE_S)
        end(ring, pump)
        time.sleep(1.5 * PATIENCE_S)
    assert pump.refused == {}
    assert [source.name for source in pump.sources] == ["again", "again"]


def test_a_file_that_went_before_it_was_a_ring_takes_no_time_from_the_next(
    session: Session, pump: Pump
) -> None:
    met_half_made(session, pump, "again")
    pump.scan(patience_s=PATIENCE_S)
    time.sleep(1.5 * PATIENCE_S)
    met_half_made(session, pump, "again")
    assert pump.refused == {}


def test_a_recorder_with_no_file_descriptor_left_keeps_a_ring_that_lives(
    session: Session, pump: Pump
) -> None:
    ring = ring_of(session, "mine")
    pump.scan()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            os.open(ring.path, os.O_RDONLY)
        pump.retire()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert any_alive(pump.sources)
    assert ring.path.exists()
    ring.close()
    assert not any_alive(pump.sources)


def test_a_kernel_after_a_plain_server_is_of_a_run_of_its_own(
    session: Session, pump: Pump, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("megatrace.collect.pump._SAME_RUN_S", 0.0)  # no time between programs
    server = [host_ring_of(session, process) for process in ("main", "scheduler")]
    pump.scan()
    for ring in server:
        end(ring, pump)
    with ring_of(session, "kernel"):
        pump.scan()
    found = {source.name: rank_text(source.rank) for source in pump.sources}
    assert found == {"main": "0", "scheduler": "0", "kernel": "0#2"}


def test_what_ended_rings_came_to_is_added_up_once(session: Session, pump: Pump) -> None:
    for at in range(3):
        ring = ring_of(session, f"r{at}")
        fake = FakeRank(ring, 40)
        for step in range(1 + at):
            fake.step(step, timeline=True)
        pump.scan()
        end(ring, pump)
    # A ring has room for two steps, so the third one of the last overwrote its first.
    a_step = fake.launch_lines * fake.rings
    totals = pump.totals
    assert (totals.lines, totals.lines_lost) == ((1 + 2 + 2) * a_step, a_step)
    assert pump.lines_read == totals.lines
    assert all(source.released for source in pump.sources)
    assert all(source.stats is source.stats for source in pump.sources)
