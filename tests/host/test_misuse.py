"""What a kernel's author gets wrong is said in the host build, in words."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest

from megatrace.agent.memory import TraceParams
from megatrace.jit import HOST, Kernel, build, load
from megatrace.schema import Event, EventTable, Kind

TABLE = EventTable("misuse", (Event(16, "work", Kind.SPAN, "The launch."),))
SOURCE = Path(__file__).parents[1] / "kernels" / "misuse.cu"


@pytest.fixture(scope="module")
def library() -> ctypes.CDLL:
    library = load(build(Kernel(SOURCE, (TABLE,)), HOST), TABLE)
    library.megatrace_last_error.restype = ctypes.c_char_p
    return library


@pytest.mark.parametrize(
    ("which", "words"),
    [(0, "a record after end(): does a span outlive it?"), (1, "end() of a tracer that has ended")],
)
def test_a_call_after_the_end_is_said(library: ctypes.CDLL, which: int, words: str) -> None:
    assert library.misuse_run(which, ctypes.byref(TraceParams())) == 1
    assert words in library.megatrace_last_error().decode()


def test_a_layer_that_has_no_sums_is_refused_before_the_launch(library: ctypes.CDLL) -> None:
    params = TraceParams(control=1, warps=4, layers=2)
    assert library.misuse_layer(1, ctypes.byref(params)) == 0
    assert library.misuse_layer(2, ctypes.byref(params)) == 1
    assert "layer 2 of a ring with 2 layers" in library.megatrace_last_error().decode()
