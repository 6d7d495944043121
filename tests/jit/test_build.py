"""Kernels are built once, say what is wrong, and are refused where they are stale."""

from __future__ import annotations

import multiprocessing
import os
import shutil
from pathlib import Path

import pytest

from megatrace.errors import BuildError, SchemaMismatch
from megatrace.jit import HOST, Kernel, build, load
from megatrace.jit.compilers import default_target, host_compiler
from megatrace.schema import Event, EventTable, Kind
from megatrace.schema.emit import table_header

TABLE = EventTable("toy", (Event(16, "tile", Kind.SPAN, "A tile."),))
SOURCE = """
#include "megatrace/ptx.cuh"
#include "toy_events.cuh"
extern "C" uint64_t megatrace_table_hash() { return megatrace::events::toy::kTableHash; }
extern "C" int answer() { return ANSWER; }
"""


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kernel:
    """A small kernel file, an empty cache, and a compiler that counts its calls."""
    real = host_compiler().path
    counting = tmp_path / "bin" / "c++-counting"
    counting.parent.mkdir()
    counting.write_text(
        f'#!/bin/sh\n[ "$1" = --version ] || echo x >> {tmp_path}/calls\nexec {real} "$@"\n'
    )
    counting.chmod(0o755)
    monkeypatch.setenv("CXX", str(counting))
    monkeypatch.setenv("MEGATRACE_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "kernel"
    folder.mkdir()
    (folder / "toy.cu").write_text(SOURCE)
    return Kernel(folder / "toy.cu", (TABLE,), {"ANSWER": "42"})


def calls(kernel: Kernel) -> int:
    log = kernel.source.parents[1] / "calls"
    return len(log.read_text().split()) if log.exists() else 0


def test_a_kernel_is_compiled_once_and_then_found(kernel: Kernel) -> None:
    first, second = build(kernel, HOST), build(kernel, HOST)
    assert first == second
    assert calls(kernel) == 1
    assert load(first, TABLE).answer() == 42


def test_a_changed_header_is_a_new_kernel(kernel: Kernel) -> None:
    header = kernel.source.with_name("more.cuh")
    header.write_text("// one\n")
    first = build(kernel, HOST)
    header.write_text("// two\n")
    assert build(kernel, HOST) != first
    assert calls(kernel) == 2


def test_a_changed_table_is_a_new_kernel(kernel: Kernel) -> None:
    other = EventTable("toy", (Event(20, "tile", Kind.SPAN, "A tile."),))
    assert build(kernel, HOST) != build(Kernel(kernel.source, (other,), kernel.defines), HOST)


def test_an_old_header_beside_the_source_is_refused_and_what_to_do_is_said(kernel: Kernel) -> None:
    other = EventTable("toy", (Event(20, "tile", Kind.SPAN, "A tile."),))
    header = kernel.source.with_name("toy_events.cuh")
    header.write_text(table_header(other))
    with pytest.raises(BuildError, match="is not the header of today's table 'toy'") as caught:
        build(kernel, HOST)
    assert caught.value.hint.startswith(f"rm {header}")
    assert calls(kernel) == 0


def test_todays_header_beside_the_source_is_no_matter(kernel: Kernel) -> None:
    kernel.source.with_name("toy_events.cuh").write_text(table_header(TABLE))
    assert load(build(kernel, HOST), TABLE).answer() == 42


def test_of_several_processes_one_builds(kernel: Kernel) -> None:
    context = multiprocessing.get_context("spawn")
    with context.Pool(3) as pool:
        paths = pool.starmap(build, [(kernel, HOST)] * 3)
    assert len(set(paths)) == 1
    assert calls(kernel) == 1


def test_the_compilers_own_error_is_what_is_said(kernel: Kernel) -> None:
    kernel.source.write_text(SOURCE + "int broken = missing_name;\n")
    with pytest.raises(BuildError, match="missing_name") as caught:
        build(kernel, HOST)
    assert "toy.cu" in caught.value.hint


def test_a_failed_build_leaves_nothing_that_is_taken_for_one(kernel: Kernel) -> None:
    kernel.source.write_text("#error no\n")
    with pytest.raises(BuildError):
        build(kernel, HOST)
    cache = Path(os.environ["MEGATRACE_CACHE"])
    assert not list(cache.rglob("*.so"))


def test_a_kernel_of_another_table_is_refused_with_both_named(kernel: Kernel) -> None:
    other = EventTable("toy", (Event(18, "tile", Kind.SPAN, "A tile."),))
    with pytest.raises(SchemaMismatch, match=f"{TABLE.build_hash:016x}.*{other.build_hash:016x}"):
        load(build(kernel, HOST), other)


def test_a_kernel_of_another_tracer_is_refused(kernel: Kernel) -> None:
    said = f"{TABLE.build_hash - 1}ull"
    kernel.source.write_text(SOURCE.replace("megatrace::events::toy::kTableHash", said))
    with pytest.raises(SchemaMismatch, match="tracer version"):
        load(build(kernel, HOST), TABLE)


def test_a_library_that_is_no_traced_kernel_is_refused(tmp_path: Path) -> None:
    shutil.copy("/bin/true", tmp_path / "kernel.so")
    with pytest.raises(BuildError, match="is no traced kernel"):
        load(tmp_path / "kernel.so", TABLE)


def test_without_a_compiler_the_way_out_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(BuildError) as caught:
        host_compiler()
    assert "apt-get install" in caught.value.hint


def test_the_target_can_be_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEGATRACE_TARGET", "sm_103a")
    assert default_target() == "sm_103a"
