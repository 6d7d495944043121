"""Builds the NVTX tool of nvtx_tool.c, which writes down every range it sees."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest


def build_tool(folder: Path) -> Path:
    """The tool as a library; skips without a C compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("no C compiler")
    library = folder / "nvtx_tool.so"
    source = Path(__file__).with_name("nvtx_tool.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source], check=True)
    return library


def tool_variables(library: Path, seen: Path) -> dict[str, str]:
    """What a process needs to load the tool; it appends to ``seen``."""
    return {"NVTX_INJECTION64_PATH": str(library), "NVTX_TOOL_OUT": str(seen)}
