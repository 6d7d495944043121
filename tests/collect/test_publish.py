"""The aggregate page where the shared memory is too small for it: a real one."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from megatrace.collect import publish
from megatrace.collect.publish import Publisher
from megatrace.collect.source import Source
from megatrace.ring.aggregate import Aggregate, AggregatePage
from megatrace.ring.session import Session
from tests.collect.fake_rank import FakeRank, make_ring
from tests.collect.helpers import megatrace, recording, said, wait_until
from tests.collect.test_processes import fake
from tests.ring.mounts import small_tmpfs

ROOM = 36 << 10
"""For the files of a session and the rows of a page, not for its tables."""


@pytest.fixture(autouse=True)
def shm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A shared memory of one megabyte that holds the sessions."""
    with small_tmpfs(tmp_path / "shm", 1 << 20) as folder:
        monkeypatch.setenv("MEGATRACE_RUNTIME_DIR", str(folder / "rt"))
        yield folder


def fill(shm: Path, left: int) -> Path:
    """A file that leaves ``left`` bytes."""
    filler = shm / "filler"
    facts = os.statvfs(shm)
    with filler.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, facts.f_bavail * facts.f_frsize - left)
    return filler


def read(session: Path) -> Aggregate:
    page = AggregatePage.attach(session)
    try:
        return page.read()
    finally:
        page.close()


def test_without_room_for_its_tables_a_page_has_the_ranks_and_says_why(
    shm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publish, "_TRY_AGAIN_S", 0.0)
    session = Session.create("small")
    ring = make_ring(session.path, 3, blocks=4, lines=8, layers=4)
    FakeRank(ring, 40).step(1, timeline=False)
    source = Source.open(ring.path)
    publisher = Publisher(session.path)
    filler = fill(shm, ROOM)

    def now() -> Aggregate:
        publisher.publish([source], 0, {}, {3: 7}, {"capture": "here"})
        return read(session.path)

    for _ in range(2):
        page = now()
        assert page.ranks["rank"].tolist() == [3]
        assert page.ranks["every_n"].tolist() == [7]
        assert page.sums.cycles.size == 0
        assert page.note["no_tables"] == publisher.failure
        assert "No space left on device; it needs " in publisher.failure
    filler.unlink()
    page = now()
    assert publisher.failure == ""
    assert "no_tables" not in page.note
    assert page.sums.count.sum() == 16 * 40
    publisher.close()
    source.close()
    ring.close()
    session.close(remove=True)


def test_record_says_once_that_viewers_have_no_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The ring goes to a memfd and leaves the room to the page, whose tables have too little.
    with small_tmpfs(tmp_path / "small", ROOM) as small:
        monkeypatch.setenv("MEGATRACE_RUNTIME_DIR", str(small / "rt"))
        command = fake("a", 400, "--layers", "40", "--linger-s", "60")
        with recording(tmp_path / "run.mtr", *command) as process:

            def shown() -> bool:
                with suppress(Exception):
                    (session,) = (small / "rt").iterdir()
                    return int(read(session).ranks["step"][0]) == 400
                return False

            wait_until(shown, "the page has all steps")
            assert "1 rank" in megatrace("live", "--once").stdout
            process.send_signal(signal.SIGINT)
            text = said(process)
    assert text.count("warning: megatrace live has no tables to show: cannot make ") == 1
    assert "in a container use a larger --shm-size" in text
