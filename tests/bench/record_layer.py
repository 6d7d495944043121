"""Runs steps of the Muse Spark layer kernel for a recorder.

    megatrace record -o layer.mtr -- python -m tests.bench.record_layer [--layers 4] [--rows 16]

On a GPU at released sizes, one rank of TP8/EP8 with its peers emulated. The capture says what
a launch must read and what a copy on this GPU delivered, so that its views have the floor.
"""

from __future__ import annotations

import argparse
import sys
import time

import torch

from megatrace.agent.kernel import KernelAgent, RingSize
from megatrace.muse.events import MUSE, ROLES
from megatrace.muse.plan import launch_bytes
from megatrace.muse.program import KERNELS, Build, Program
from megatrace.schema.traffic import COPY_BANDWIDTH, LAUNCH_BYTES
from tests.bench.layer_setup import Setup, copy_bandwidth


def main() -> int:
    """Build, run, stop."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--context", type=int, default=4096)
    parser.add_argument("--form", choices=("fused", "twin"), default="fused")
    options = parser.parse_args()
    bandwidth = copy_bandwidth()
    torch.cuda.empty_cache()
    build = Build(target="sm_90a", level="timeline")
    setup = Setup.make(options.layers, options.rows, options.context, build)
    engine = setup.engine
    agent = KernelAgent.start(
        MUSE,
        blocks=engine.blocks,
        roles=ROLES,
        kernels=KERNELS,
        device="cuda",
        size=RingSize(lines=256, layers=options.layers),
    )
    kinds = [layer.kind for layer in engine.layers]
    said = launch_bytes(
        engine.model, engine.rank, kinds, context=options.context, rows=options.rows
    )
    agent.fact(LAUNCH_BYTES, said.to_fact())
    agent.fact(COPY_BANDWIDTH, {"bytes_per_s": bandwidth, "how": "a copy of 2 GiB"})
    launches = engine.step(options.rows, options.form, embed=True)
    with agent, Program(launches, build, trace=agent.params) as program:
        engine.empty()
        torch.cuda.synchronize()
        for _ in range(options.steps):
            engine.tokens.random_(0, 4096)
            torch.cuda.synchronize()
            begin_ns = time.monotonic_ns()
            agent.begin_step(program.stream)
            program.replay()
            program.synchronize()
            agent.span("step", begin_ns, time.monotonic_ns(), (1, options.rows, 1, -1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
