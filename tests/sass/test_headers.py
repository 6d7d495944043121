"""Each shipped header stands alone, and the README's kernel is one that compiles."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from megatrace.schema import EventTable
from megatrace.schema.emit import table_header
from tests.tools import sass

HEADERS = sorted(path.name for path in (sass.INCLUDE / "megatrace").glob("*.cuh"))

# What the README's kernel leaves to its reader.
SURROUNDINGS = """
struct Work { uint32_t tiles; float* sums; };
constexpr uint32_t kStages = 4;
extern __shared__ uint64_t full[];
MEGATRACE_DEVICE void consume(Work work, uint32_t i) { work.sums[i] += 1; }
"""
INSTANCES = """
template __global__ void gemv<Tracer<Level::off>>(Work, Tracer<Level::off>::Params);
template __global__ void gemv<Tracer<Level::counters>>(Work, Tracer<Level::counters>::Params);
template __global__ void gemv<Tracer<Level::timeline>>(Work, Tracer<Level::timeline>::Params);
"""


def readme_block(language: str, holding: str) -> str:
    text = (sass.ROOT / "README.md").read_text()
    blocks = re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)
    (block,) = (block for block in blocks if holding in block)
    return str(block)


@pytest.mark.parametrize("header", HEADERS)
def test_a_header_compiles_alone(header: str, tmp_path: Path) -> None:
    source = tmp_path / "alone.cu"
    source.write_text(f'#include "megatrace/{header}"\n__global__ void kernel() {{}}\n')
    cubin = sass.compile_cubin(source, "sm_90a", "-Werror", "all-warnings")
    assert cubin.kernel("kernel")


@pytest.mark.parametrize("arch", sass.ARCHS)
def test_the_kernel_of_the_readme_compiles(arch: str, tmp_path: Path) -> None:
    names: dict[str, EventTable] = {}
    exec(readme_block("python", "EventTable"), names)
    (tmp_path / "gemv_events.cuh").write_text(table_header(names["GEMV"]))
    kernel = readme_block("cpp", "__global__")
    alias = "namespace ev = megatrace::events::gemv;\n"
    assert alias in kernel
    source = tmp_path / "gemv.cu"
    source.write_text(kernel.replace(alias, alias + SURROUNDINGS) + INSTANCES)
    assert len(sass.compile_cubin(source, arch).usage) == 3
