"""The device and the host half of the ptx headers: the same names, the same signatures."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from megatrace.paths import asset_dir, include_dir
from tests.host.cases import compiler

DECLARATION = re.compile(r"^MEGATRACE_DEVICE (.+?)(\w+)\(((?:[^()]|\([^()]*\))*)\)", re.MULTILINE)
HOST_ONLY = {"check_aligned", "load_matrices"}
# Of the called tracer alone, which the host build does not have.
DEVICE_ONLY = {"fetch_async_wait_all", "fetch_state_async", "mbar_try_at", "undefined"}
PAIRS = [("ptx.cuh", "ptx_host.hpp"), ("ptx_math.cuh", "ptx_math_host.hpp")]


def functions(text: str) -> set[tuple[str, str, tuple[str, ...]]]:
    """(return type, name, parameter types) of every device function."""
    text = re.sub(r"/\*.*?\*/", "", text)
    found = set()
    for result, name, parameters in DECLARATION.findall(text):
        types = [re.sub(r"(?<=[*\s])\w+$", "", p.strip()) for p in parameters.split(",") if p]
        found.add((result.strip(), name, tuple("".join(t.split()) for t in types)))
    return found


@pytest.mark.parametrize(("device_name", "host_name"), PAIRS)
def test_the_host_half_has_every_function_of_the_device_half(
    device_name: str, host_name: str
) -> None:
    device = functions((include_dir() / "megatrace" / device_name).read_text())
    host = functions((asset_dir() / "kernels" / "host" / host_name).read_text())
    assert len(device) > 15
    assert {f for f in host if f[1] not in HOST_ONLY} == {
        f for f in device if f[1] not in DEVICE_ONLY
    }


def test_a_shared_variable_is_refused_with_the_way_out(tmp_path: Path) -> None:
    source = tmp_path / "kernel.cu"
    source.write_text('#include "megatrace/ptx.cuh"\nvoid kernel() { __shared__ int sum; }\n')
    words = [compiler(), "-std=c++17", "-fsyntax-only", "-DMEGATRACE_HOST_BUILD", "-x", "c++"]
    words += [f"-I{p}" for p in (include_dir(), asset_dir() / "kernels" / "host")]
    done = subprocess.run([*words, str(source)], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "use megatrace::ptx::dynamic_shared()" in done.stderr
