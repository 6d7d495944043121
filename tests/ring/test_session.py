from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from megatrace.errors import SessionError, SessionNotFound
from megatrace.paths import runtime_root
from megatrace.ring.drain import LineReader
from megatrace.ring.file import RingFile, RingSpec
from megatrace.ring.session import Session, list_sessions, prune
from tests.ring.processes import python

SPEC = RingSpec(0, 1, 2, 4, 1, 4, 0, 9)

RECORDER = """
    import sys, time
    from megatrace.ring.session import Session
    session = Session.create(sys.argv[1], command=["serve", "--fast"])
    print("ready", flush=True)
    time.sleep(60)
"""

TRACED = """
    import sys, time
    from megatrace.ring.file import RingSpec
    from megatrace.ring.session import Session
    ring = Session.open(sys.argv[1]).create_ring("rank0", RingSpec(0, 1, 2, 4, 1, 4, 0, 9))
    print("ready", flush=True)
    time.sleep(60)
"""


def test_a_session_is_listed_live_with_its_rings_and_command() -> None:
    session = Session.create("mine", command=["serve", "--fast"])
    session.create_ring("rank1", SPEC).close()
    session.create_ring("rank0", SPEC).close()
    (info,) = list_sessions()
    assert (info.name, info.live, info.rings) == ("mine", True, ("rank0", "rank1"))
    assert info.command == ("serve", "--fast")
    assert info.started > 1e9
    session.close(remove=True)
    assert list_sessions() == []


def test_directories_are_for_this_user_alone() -> None:
    session = Session.create()
    for path in (session.path, runtime_root(create=True)):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
    for path in session.path.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    session.close()


def test_a_live_name_is_refused_and_a_dead_one_is_taken_over() -> None:
    first = Session.create("mine")
    with pytest.raises(SessionError, match="mine is live"):
        Session.create("mine")
    assert first.path.is_dir()
    first.close()
    second = Session.create("mine")
    assert [info.name for info in list_sessions()] == ["mine"]
    second.close()


@pytest.mark.parametrize("name", ["", "..", "a/b", ".hidden", "x" * 65, "a b"])
def test_a_name_that_could_leave_the_root_is_refused(name: str) -> None:
    if name:
        with pytest.raises(SessionError, match="no session name"):
            Session.create(name)
    with pytest.raises(SessionNotFound):
        Session.open(f"{name}-none")


def test_the_traced_process_is_told_where_its_session_is() -> None:
    session = Session.create("mine")
    assert session.environment == {"MEGATRACE_SESSION": str(session.path)}
    assert Session.open(session.environment["MEGATRACE_SESSION"]).name == "mine"
    session.close()


def test_a_killed_recorder_leaves_a_dead_session_that_is_pruned() -> None:
    with python(RECORDER, "killed") as recorder:
        assert [(s.name, s.live) for s in list_sessions()] == [("killed", True)]
        assert prune() == []
        recorder.kill()
        recorder.wait()
        assert [(s.name, s.live) for s in list_sessions()] == [("killed", False)]
        assert prune() == ["killed"]
        assert list_sessions() == []
        assert list(runtime_root(create=True).iterdir()) == []


def test_a_session_whose_traced_process_lives_is_never_pruned() -> None:
    with python(RECORDER, "mine") as recorder, python(TRACED, "mine") as traced:
        recorder.kill()
        recorder.wait()
        (info,) = list_sessions()
        assert (info.live, info.recorded) == (True, False)
        assert prune() == []
        with RingFile.attach(info.path / "rank0.ring") as ring:
            assert len(LineReader(ring).drain()) == 0
        traced.kill()
        traced.wait()
        assert prune() == ["mine"]


def test_pruning_takes_the_dead_and_leaves_the_live() -> None:
    live, dead = Session.create("live"), Session.create("dead")
    dead.close()
    assert prune() == ["dead"]
    assert [s.name for s in list_sessions()] == ["live"]
    live.close()


def test_damaged_facts_do_not_hide_a_session() -> None:
    session = Session.create("mine")
    (session.path / "session.json").write_text("[")
    assert [(s.name, s.started, s.command) for s in list_sessions()] == [("mine", 0.0, ())]
    session.close()


def test_without_a_root_there_are_no_sessions() -> None:
    assert list_sessions() == []
    assert prune() == []
    assert not runtime_root().exists()


def test_a_root_others_can_enter_is_refused() -> None:
    runtime_root(create=True).chmod(0o755)
    with pytest.raises(SessionError, match="open to others"):
        Session.create("mine")


def test_a_root_that_is_a_link_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    monkeypatch.setenv("MEGATRACE_RUNTIME_DIR", str(tmp_path / "link"))
    with pytest.raises(SessionError, match="not a directory"):
        Session.create("mine")


@pytest.mark.skipif(os.geteuid() != 0, reason="giving a directory away needs root")
def test_a_root_of_another_user_is_refused() -> None:
    os.chown(runtime_root(create=True), 12345, -1)
    with pytest.raises(SessionError, match="belongs to user 12345"):
        list_sessions()


def test_the_default_root_is_shared_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MEGATRACE_RUNTIME_DIR")
    assert runtime_root() == Path(f"/dev/shm/megatrace-{os.geteuid()}")
