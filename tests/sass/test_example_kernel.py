"""What nvcc makes of the example kernel, at every level, for both architectures."""

from __future__ import annotations

import importlib.util
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from megatrace.schema.emit import table_header
from tests.tools import sass
from tests.tools.strip_tracer import strip

EXAMPLE = sass.ROOT / "examples" / "01_trace_a_kernel"
# Name -> the type of the tracer, and the parts of its mangled name.
LEVELS = {
    "off": ("Tracer<Level::off>", ("LevelE0", "DetailE0")),
    "counters": ("Tracer<Level::counters>", ("LevelE1", "DetailE0")),
    "timeline": ("Tracer<Level::timeline>", ("LevelE2", "DetailE0")),
    "all": ("Tracer<Level::timeline, Detail::all>", ("LevelE2", "DetailE1")),
}
TILE = "-DMEGATRACE_TILE_BYTES=32768"
HOST_HALF = '#include "host.cuh"'


@dataclass(frozen=True, slots=True)
class Compiled:
    """The example for one architecture: as written, at each level, and stripped."""

    traced: sass.Cubin
    names: dict[str, str]
    stripped: sass.Cubin

    def usage(self, level: str) -> sass.Usage:
        return self.traced.usage[self.names[level]]

    def code(self, level: str) -> list[sass.Instruction]:
        return self.traced.instructions(self.names[level])


def write_sources(folder: Path) -> tuple[Path, Path]:
    """The traced and the stripped kernel, without the half that launches them."""
    spec = importlib.util.spec_from_file_location("events", EXAMPLE / "events.py")
    assert spec is not None
    assert spec.loader is not None
    events = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(events)
    (folder / "stream_events.cuh").write_text(table_header(events.STREAM))
    kernel = (EXAMPLE / "kernel.cu").read_text()
    assert HOST_HALF in kernel
    instances = "".join(
        f"template __global__ void stream<{t}>(Work, {t}::Params);\n" for t, _ in LEVELS.values()
    )
    traced, stripped = folder / "traced.cu", folder / "stripped.cu"
    traced.write_text(kernel.replace(HOST_HALF, instances))
    stripped.write_text(strip(kernel.replace(HOST_HALF, "")))
    return traced, stripped


@pytest.fixture(scope="module", params=sass.ARCHS)
def compiled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Compiled:
    traced_source, stripped_source = write_sources(tmp_path_factory.mktemp(request.param))
    traced = sass.compile_cubin(traced_source, request.param, TILE)
    names = {level: traced.kernel(*mangled) for level, (_, mangled) in LEVELS.items()}
    return Compiled(traced, names, sass.compile_cubin(stripped_source, request.param, TILE))


def test_off_is_byte_identical_to_the_source_without_a_tracer(compiled: Compiled) -> None:
    (plain,) = compiled.stripped.usage
    assert compiled.code("off") == compiled.stripped.instructions(plain)
    assert compiled.traced.text(compiled.names["off"]) == compiled.stripped.text(plain)


def test_off_uses_the_registers_of_the_source_without_a_tracer(compiled: Compiled) -> None:
    (plain,) = compiled.stripped.usage.values()
    assert compiled.usage("off") == plain


@pytest.mark.parametrize("level", ["counters", "timeline", "all"])
def test_a_level_that_is_on_changes_the_code(compiled: Compiled, level: str) -> None:
    off, on = (compiled.traced.text(compiled.names[name]) for name in ("off", level))
    assert on != off


@pytest.mark.parametrize("level", LEVELS)
def test_nothing_spills_and_there_is_no_stack_frame(compiled: Compiled, level: str) -> None:
    usage = compiled.usage(level)
    assert (usage.stack_bytes, usage.spill_bytes) == (0, 0)


@pytest.mark.parametrize("level", LEVELS)
def test_no_level_touches_local_memory(compiled: Compiled, level: str) -> None:
    opcodes = {instruction.opcode.partition(".")[0] for instruction in compiled.code(level)}
    assert not opcodes & {"LDL", "STL"}


@pytest.mark.parametrize(("level", "bodies"), [("counters", 2), ("timeline", 3), ("all", 3)])
def test_the_loads_of_a_tile_stay_batched_in_every_body(
    compiled: Compiled, level: str, bodies: int
) -> None:
    plain = sass.load_batches(compiled.code("off"))
    assert max(plain) > 1
    assert sass.load_batches(compiled.code(level)) == plain * bodies


def test_the_readme_says_about_how_many_registers_and_how_much_code_a_level_has(
    compiled: Compiled,
) -> None:
    if "sm_90a" not in compiled.traced.path.name:
        return
    text = " ".join((sass.ROOT / "README.md").read_text().split())
    said = re.findall(r"(off|counters|timeline) (\d+)(?: registers)? and (\d+) kB", text)
    assert [level for level, _, _ in said] == ["off", "counters", "timeline"]
    for level, registers, kilobytes in said:
        code = compiled.traced.text(compiled.names[level])
        # Compilers differ; what nvcc 13 makes is on the page.
        assert int(registers) == pytest.approx(compiled.usage(level).registers, rel=0.1)
        assert int(kilobytes) == pytest.approx(len(code) / 1000, rel=0.1)
