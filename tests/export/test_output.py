"""Files are whole or not there, and nobody's file is lost."""

from __future__ import annotations

import gzip
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from megatrace.export.output import OutputError, output_file


def write(path: Path, content: bytes, then: Callable[[], object]) -> None:
    """Write a file and, before it is closed, do something more."""
    with output_file(path) as file:
        file.write(content)
        then()


def test_the_name_appears_only_when_all_is_written(tmp_path: Path) -> None:
    path = tmp_path / "a.pftrace"
    with output_file(path) as file:
        file.write(b"12")
        assert [p.name for p in tmp_path.iterdir()] == ["a.pftrace.part"]
    assert path.read_bytes() == b"12"
    assert [p.name for p in tmp_path.iterdir()] == ["a.pftrace"]


def test_only_its_owner_can_read_it(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        with output_file(tmp_path / "a") as file:
            file.write(b"x")
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o600


def test_an_error_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        write(tmp_path / "a.gz", b"x", then=lambda: 1 / 0)
    assert list(tmp_path.iterdir()) == []


def test_an_existing_file_is_refused_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"dear")
    with pytest.raises(OutputError) as caught, output_file(path):
        pass
    assert "--force" in caught.value.hint
    assert path.read_bytes() == b"dear"


def test_an_existing_file_is_replaced_by_force_only_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"old")
    with output_file(path, force=True) as file:
        file.write(b"new")
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new"


def test_a_file_that_appears_meanwhile_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "a"
    with pytest.raises(OutputError):
        write(path, b"ours", then=lambda: path.write_bytes(b"theirs"))
    assert path.read_bytes() == b"theirs"
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


def test_a_stale_part_is_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / "a.part").write_bytes(b"of a killed export")
    with output_file(tmp_path / "a") as file:
        file.write(b"x")
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


def test_a_link_in_the_way_is_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"dear")
    (tmp_path / "a.part").symlink_to(victim)
    with output_file(tmp_path / "a") as file:
        file.write(b"x")
    assert victim.read_bytes() == b"dear"


@pytest.mark.parametrize("name", ["there", "missing/a"])
def test_a_place_that_cannot_be_written_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / "there").mkdir()
    with pytest.raises(OutputError, match=name.split("/")[0]), output_file(tmp_path / name):
        pass


def test_a_full_disk_is_said_and_leaves_nothing(tmp_path: Path) -> None:
    # /dev/full fails as a full disk does.
    with pytest.raises(OutputError, match="no space") as caught:
        write(tmp_path / "a", b"x", then=lambda: Path("/dev/full").write_bytes(b"x"))
    assert "fewer steps" in caught.value.hint
    assert list(tmp_path.iterdir()) == []


def test_a_compressed_file_is_the_same_each_time(tmp_path: Path) -> None:
    for name in ("a.gz", "b.gz"):
        with output_file(tmp_path / name) as file:
            file.write(b"x" * 1000)
    first, second = ((tmp_path / name).read_bytes() for name in ("a.gz", "b.gz"))
    assert first == second
    assert gzip.decompress(first) == b"x" * 1000
