"""Each shipped header stands alone, and the README's kernel is one that compiles."""

from __future__ import annotations

from pathlib import Path

import pytest

from megatrace.schema.emit import table_header
from tests.tools import readme, sass

HEADERS = sorted(path.name for path in (sass.INCLUDE / "megatrace").glob("*.cuh"))

INSTANCES = """
template __global__ void gemv<Tracer<Level::off>>(Work, Tracer<Level::off>::Params);
template __global__ void gemv<Tracer<Level::counters>>(Work, Tracer<Level::counters>::Params);
template __global__ void gemv<Tracer<Level::timeline>>(Work, Tracer<Level::timeline>::Params);
"""


@pytest.mark.parametrize("header", HEADERS)
def test_a_header_compiles_alone(header: str, tmp_path: Path) -> None:
    source = tmp_path / "alone.cu"
    source.write_text(f'#include "megatrace/{header}"\n__global__ void kernel() {{}}\n')
    cubin = sass.compile_cubin(source, "sm_90a", "-Werror", "all-warnings")
    assert cubin.kernel("kernel")


@pytest.mark.parametrize("arch", sass.ARCHS)
def test_the_kernel_of_the_readme_compiles_with_its_host_half(arch: str, tmp_path: Path) -> None:
    (tmp_path / "gemv_events.cuh").write_text(table_header(readme.table()))
    source = tmp_path / "gemv.cu"
    source.write_text(readme.kernel() + readme.host_half() + INSTANCES)
    assert len(sass.compile_cubin(source, arch).usage) == 3
