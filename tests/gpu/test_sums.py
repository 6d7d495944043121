"""Launches that count: their running sums are what the kernel itself added up."""

from __future__ import annotations

import ctypes
import time
from pathlib import Path

import numpy as np
import pytest

from megatrace.agent.kernel import KernelAgent, RingSize
from megatrace.jit import HOST, Kernel, build, load
from megatrace.ring.control import Control, read_ack, write_control
from megatrace.ring.file import RingFile
from megatrace.ring.records import CounterReader
from megatrace.ring.session import Session
from megatrace.schema.layout import LEVEL_COUNTERS, SUM_GROUPS, stall_counts
from tests.gpu.test_example import TARGETS, chip
from tests.kernels.counted import COUNTED, ROUNDS, WARPS

SOURCE = Path(__file__).parents[1] / "kernels" / "counted.cu"
BLOCKS, LAYERS = 2 * SUM_GROUPS + 3, 2


@pytest.mark.parametrize("form", [0, 1], ids=["one body", "named warps"])
@pytest.mark.parametrize("target", TARGETS)
def test_layers_and_blocks_have_what_the_kernel_counted_itself(
    target: str, form: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = Session.create("sums")
    monkeypatch.setenv("MEGATRACE_SESSION", str(session.path))
    target = chip(target)
    library = load(build(Kernel(SOURCE, (COUNTED,)), target), COUNTED)
    library.megatrace_last_error.restype = ctypes.c_char_p
    agent = KernelAgent.start(
        COUNTED,
        blocks=BLOCKS,
        roles=("feeder", *["waiter"] * (WARPS - 1)),
        kernels=("counted",),
        device="cpu" if target == HOST else "cuda",
        size=RingSize(layers=LAYERS),
    )
    told = np.zeros((LAYERS, BLOCKS, WARPS, 4, 2), np.uint64)
    try:
        with RingFile.attach(session.ring_paths()[0], writable_control=True) as ring:
            seq = write_control(ring, Control(level=LEVEL_COUNTERS))
            while read_ack(ring).seq != seq:
                agent.begin_step()
                time.sleep(0.01)
            for layer in range(LAYERS):
                out = told[layer].ctypes.data_as(ctypes.c_void_p)
                params = ctypes.byref(agent.params)
                failed = library.counted_run(params, form, layer, BLOCKS, ROUNDS, out)
                assert not failed, library.megatrace_last_error()
            agent.close()
            reader = CounterReader(ring)
            total = reader.snapshot().reshape(LAYERS, SUM_GROUPS, WARPS)
            beyond = ring.sums[:, :, SUM_GROUPS * WARPS :].any()
            by_block = reader.block_cycles().T.reshape(BLOCKS, WARPS, 4)
    finally:
        agent.close()
        session.close(remove=True)
    shared = np.zeros((LAYERS, SUM_GROUPS, WARPS, 4, 2), np.uint64)
    for block in range(BLOCKS):
        shared[:, block % SUM_GROUPS] += told[:, block]
    assert told.any(axis=(1, 2, 4)).all()
    assert (total["cycles"] == shared[..., 0]).all()
    assert (stall_counts(total) == shared[..., 1]).all()
    assert not beyond
    # Sums in registers: each place has the clocks of a lane of its own.
    np.testing.assert_allclose(by_block, told[..., 0].sum(axis=0), rtol=1e-2)
