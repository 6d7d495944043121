from __future__ import annotations

import math
import stat
from pathlib import Path

import numpy as np
import pytest

from megatrace.errors import RingError, SchemaMismatch
from megatrace.ring.aggregate import NOTE_BYTES, PAGE_NAME, RANK_ROW, AggregatePage
from megatrace.ring.sums import TABLES, Shape, Sums
from tests.ring.processes import python

ROLES = ("load", "math", "größe")


def publish(page: AggregatePage, value: int) -> None:
    rows = np.zeros(page.shape.ranks, RANK_ROW)
    rows["step"] = value
    note = {"value": value}
    page.publish(
        ranks=rows,
        sums=filled(page.shape, value),
        file_bytes=value,
        clock_error_ns=value,
        note=note,
    )


def filled(shape: Shape, value: int) -> Sums:
    return Sums(**{name: np.full(shape.of(name), value, np.uint64) for name in TABLES})


def values(sums: Sums) -> set[int]:
    return {int(v) for name in TABLES for v in np.unique(getattr(sums, name))}


def test_viewers_read_what_the_recorder_published(tmp_path: Path) -> None:
    page = AggregatePage.create(tmp_path, ranks=2, layers=5, roles=ROLES, blocks=7)
    viewers = [AggregatePage.attach(tmp_path) for _ in range(3)]
    publish(page, 7)
    for viewer in viewers:
        seen = viewer.read()
        assert seen.roles == ROLES
        assert seen.sums.cycles.shape == (2, 5, 3, 4)
        assert seen.sums.seen_busy.shape == (2, 5, 3)
        assert seen.sums.sm_cycles.shape == (2, 256, 3, 4)
        assert seen.sums.block_cycles.shape == (2, 7, 3, 4)
        assert values(seen.sums) == {7}
        assert seen.note == {"value": 7}
        assert seen.ranks["step"].tolist() == [7, 7]
        assert (seen.file_bytes, seen.clock_error_ns) == (7, 7.0)
        assert seen.updated_ns >= seen.started_ns > 0
        viewer.close()
    page.close()


def test_a_clock_error_nobody_knows_is_nan(tmp_path: Path) -> None:
    page = AggregatePage.create(tmp_path, ranks=1, layers=1, roles=())
    assert math.isnan(page.read().clock_error_ns)
    page.close()


def test_the_page_is_for_its_user_alone(tmp_path: Path) -> None:
    AggregatePage.create(tmp_path, ranks=1, layers=1, roles=ROLES).close()
    page = tmp_path / PAGE_NAME
    assert stat.S_IMODE(page.stat().st_mode) == 0o600
    page.chmod(0o644)
    with pytest.raises(RingError, match="no aggregate page of this user"):
        AggregatePage.attach(tmp_path)


def test_a_page_of_another_shape_replaces_the_old_and_says_so(tmp_path: Path) -> None:
    old = AggregatePage.create(tmp_path, ranks=1, layers=1, roles=ROLES)
    viewer = AggregatePage.attach(tmp_path)
    publish(old, 3)
    assert [viewer.replaced] == [False]
    new = AggregatePage.create(tmp_path, ranks=4, layers=2, roles=ROLES)
    assert viewer.replaced
    assert (viewer.read().sums.count == 3).all()
    assert AggregatePage.attach(tmp_path).shape == Shape(4, 2, 3, 0)
    assert [path.name for path in tmp_path.iterdir()] == [PAGE_NAME]
    new.close()


def test_without_a_page_there_is_an_error_with_a_next_step(tmp_path: Path) -> None:
    with pytest.raises(RingError, match="no aggregate page") as caught:
        AggregatePage.attach(tmp_path)
    assert caught.value.hint


def test_another_version_is_a_mismatch(tmp_path: Path) -> None:
    AggregatePage.create(tmp_path, ranks=1, layers=1, roles=ROLES).close()
    data = bytearray((tmp_path / PAGE_NAME).read_bytes())
    data[8] = 9
    (tmp_path / PAGE_NAME).write_bytes(data)
    with pytest.raises(SchemaMismatch, match="version 9"):
        AggregatePage.attach(tmp_path)


def test_a_damaged_page_is_refused_or_read_never_more(tmp_path: Path) -> None:
    AggregatePage.create(tmp_path, ranks=1, layers=1, roles=ROLES).close()
    path = tmp_path / PAGE_NAME
    data = path.read_bytes()
    for at in range(200):
        for bit in (0, 5, 7):
            path.write_bytes(data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :])
            try:
                page = AggregatePage.attach(tmp_path)
            except (RingError, SchemaMismatch):
                continue
            if not int(page._header["seq"]) % 2:
                page.read()
            page.close()
    for size in range(0, len(data), 1009):
        path.write_bytes(data[:size])
        with pytest.raises(RingError):
            AggregatePage.attach(tmp_path)


WRITER = """
    import sys
    from pathlib import Path
    import numpy as np
    from megatrace.ring.aggregate import RANK_ROW, AggregatePage
    from megatrace.ring.sums import TABLES, Sums
    page = AggregatePage.create(Path(sys.argv[1]), ranks=2, layers=64, roles=["a", "b", "c"])
    print("ready", flush=True)
    for n in range(1, 1001):
        rows = np.zeros(2, RANK_ROW)
        rows["step"] = n
        tables = {name: np.full(page.shape.of(name), n, np.uint64) for name in TABLES}
        page.publish(ranks=rows, sums=Sums(**tables), file_bytes=n, note={"n": n})
"""


def test_no_half_of_an_update_is_seen_while_another_process_writes(tmp_path: Path) -> None:
    with python(WRITER, tmp_path):
        page = AggregatePage.attach(tmp_path)
        seen = 0
        while seen < 1000:
            now = page.read(timeout_s=5)
            assert values(now.sums) == {now.file_bytes}
            assert now.note.get("n", 0) == now.file_bytes
            assert (now.ranks["step"] == now.file_bytes).all()
            seen = now.file_bytes
        page.close()


def test_a_recorder_killed_in_mid_write_is_an_error_and_no_wait(tmp_path: Path) -> None:
    page = AggregatePage.create(tmp_path, ranks=1, layers=1, roles=ROLES)
    page._header["seq"] = 5
    with pytest.raises(RingError, match="half written"):
        page.read(timeout_s=0)
    publish(page, 1)
    assert page.read().file_bytes == 1
    page.close()


def test_a_page_of_version_1_is_a_mismatch_whatever_its_size(tmp_path: Path) -> None:
    page = tmp_path / PAGE_NAME
    page.write_bytes(b"MEGAGGRE" + (1).to_bytes(4, "little") + bytes(3000))
    page.chmod(0o600)
    with pytest.raises(SchemaMismatch, match="version 1, this megatrace reads 2"):
        AggregatePage.attach(tmp_path)


def test_a_note_too_long_for_the_page_is_left_out(tmp_path: Path) -> None:
    page = AggregatePage.create(tmp_path, ranks=1, layers=1, roles=ROLES)
    rows, sums = np.zeros(1, RANK_ROW), Sums.zeros(page.shape)
    page.publish(ranks=rows, sums=sums, note={"text": "x" * NOTE_BYTES})
    assert page.read().note == {}
    page.publish(ranks=rows, sums=sums, note={"text": "x"})
    assert page.read().note == {"text": "x"}
    page.close()


def test_what_came_since_is_a_difference_and_a_sum_that_went_back_begins_anew(
    tmp_path: Path,
) -> None:
    shape = Shape(1, 2, 3, 4)
    assert values(filled(shape, 9).since(filled(shape, 4))) == {5}
    assert values(filled(shape, 3).since(filled(shape, 4))) == {3}
