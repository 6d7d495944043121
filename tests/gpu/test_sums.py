"""Launches that count: their running sums are what the kernel itself added up."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from megatrace.ring.control import Control, write_control
from megatrace.ring.file import RingFile
from megatrace.ring.records import CounterReader
from megatrace.ring.session import Session
from megatrace.schema.layout import LEVEL_COUNTERS, SUM_GROUPS, stall_counts
from tests.gpu.targets import TARGETS, chip
from tests.kernels.counted import ROUNDS, WARPS, start

BLOCKS, LAYERS = 2 * SUM_GROUPS + 3, 2


@pytest.mark.parametrize("form", [0, 1], ids=["one body", "named warps"])
@pytest.mark.parametrize("target", TARGETS)
def test_layers_and_blocks_have_what_the_kernel_counted_itself(
    target: str, form: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = Session.create("sums")
    monkeypatch.setenv("MEGATRACE_SESSION", str(session.path))
    library, agent = start(chip(target), BLOCKS, LAYERS)
    told = np.zeros((LAYERS, BLOCKS, WARPS, 4, 2), np.uint64)
    try:
        with RingFile.attach(session.ring_paths()[0], writable_control=True) as ring:
            write_control(ring, Control(level=LEVEL_COUNTERS))
            agent.begin_step()
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
