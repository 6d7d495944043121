"""What a kernel's author gets wrong is said in the host build, in words."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest

from megatrace.agent.kernel import KernelAgent, RingSize
from megatrace.agent.memory import TraceParams
from megatrace.jit import HOST, Kernel, build, load
from megatrace.ring.session import Session
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
    params = TraceParams(control=1, warps=4, layers=2, block_warps=4)
    assert library.misuse_layer(1, ctypes.byref(params)) == 0
    assert library.misuse_layer(2, ctypes.byref(params)) == 1
    assert "layer 2 of a ring with 2 layers" in library.megatrace_last_error().decode()


TOLD = TraceParams(control=1, warps=12, layers=1, block_warps=3)
"""What a kernel is given by an agent that was told of 4 blocks and 3 roles."""


@pytest.mark.parametrize(
    ("blocks", "rows", "threads", "words"),
    [
        (8, 1, 96, "8 blocks of 3 warps has 24 warps, the agent was told of 4 blocks of 3:"),
        (4, 1, 64, "4 blocks of 2 warps has 8 warps, the agent was told of 4 blocks of 3:"),
        (6, 1, 64, "6 blocks of 2 warps has 12 warps, the agent was told of 4 blocks of 3:"),
        (3, 1, 128, "3 blocks of 4 warps has 12 warps, the agent was told of 4 blocks of 3:"),
        (1, 1, 384, "1 blocks of 12 warps has 12 warps, the agent was told of 4 blocks of 3:"),
        (4, 1, 100, "100 threads a block: a traced kernel has whole warps"),
        (4, 3, 32, "a grid of 4 x 3 x 1 blocks: a traced kernel's has one dimension"),
    ],
)
def test_a_launch_that_the_agent_was_not_told_of_is_refused_with_both_numbers(
    library: ctypes.CDLL, blocks: int, rows: int, threads: int, words: str
) -> None:
    assert library.misuse_grid(blocks, rows, threads, ctypes.byref(TOLD)) == 1
    assert words in library.megatrace_last_error().decode()


def test_a_launch_that_the_agent_was_told_of_is_taken(library: ctypes.CDLL) -> None:
    assert library.misuse_grid(4, 1, 96, ctypes.byref(TOLD)) == 0


@pytest.mark.parametrize(("blocks", "taken"), [(6, True), (4, False)])
def test_parameters_that_do_not_say_the_warps_of_a_block_are_checked_by_all_of_them(
    library: ctypes.CDLL, blocks: int, taken: bool
) -> None:
    told = TraceParams(control=1, warps=12, layers=1)
    assert library.misuse_grid(blocks, 1, 64, ctypes.byref(told)) == (0 if taken else 1)
    assert taken or b"was told of 12:" in library.megatrace_last_error()


def test_as_many_warps_cut_into_other_blocks_are_not_what_an_agent_was_told_of(
    library: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MEGATRACE_SESSION", str(Session.create("cut").path))
    size, roles = RingSize(lines=8, layers=1), ("loader", "math")
    with KernelAgent.start(
        TABLE, blocks=8, roles=roles, kernels=("k",), device="cpu", size=size
    ) as agent:
        told = ctypes.byref(agent.params)
        assert library.misuse_grid(8, 1, 64, told) == 0
        assert library.misuse_grid(4, 1, 128, told) == 1
    assert library.megatrace_last_error().decode() == (
        "a launch of 4 blocks of 4 warps has 16 warps, the agent was told of 8 blocks of 2: give "
        "it these blocks, and a role for each warp of a block"
    )


def test_where_nobody_records_any_grid_is_taken(library: ctypes.CDLL) -> None:
    assert library.misuse_grid(4, 3, 40, ctypes.byref(TraceParams())) == 0
