"""Runs steps of a small model in the host build for a recorder: one fused, one of the twin.

    megatrace record -o steps.mtr -- python -m tests.muse.with_torch.record_steps FACTS.json

``FACTS.json`` gets what the reference knows of them, and whether being traced changed a bit.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import replace
from pathlib import Path

import torch

from megatrace.agent.kernel import KernelAgent, RingSize
from megatrace.muse.engine import Form
from megatrace.muse.events import MUSE, ROLES
from megatrace.muse.program import KERNELS, Build, Program
from tests.muse.models import model
from tests.muse.with_torch.steps import Inputs, Steps, digests

INPUTS: Inputs = (11, 37)
FORMS: tuple[Form, ...] = ("fused", "twin")


def experts_hit(steps: Steps) -> list[list[int]]:
    """Of this rank, by the rows of each layer, as the reference routes them."""
    streams = steps.streams(INPUTS)
    steps.restore(INPUTS)
    _, *taps = steps.reference(INPUTS, streams)
    local = [tap["route"]["ids"] - steps.rank.first_expert for tap in taps]
    mine = [ids[(ids >= 0) & (ids < steps.rank.local_experts)] for ids in local]
    return [ids.unique().tolist() for ids in mine]


def main() -> int:
    """Record, then compare with an untraced build."""
    torch.set_num_threads(1)
    small = model()
    steps = Steps(small, small.shard(1, 2, True), Build(level="timeline"), 64)
    agent = KernelAgent.start(
        MUSE,
        blocks=steps.blocks,
        roles=ROLES,
        kernels=KERNELS,
        device="cpu",
        size=RingSize(lines=1024, layers=len(small.layers)),
    )
    traced = []
    with agent:
        for form in FORMS:
            launches = steps.launches(INPUTS[0], form)
            with Program(launches, steps.build, blocks=steps.blocks, trace=agent.params) as program:
                begin_ns = time.monotonic_ns()
                agent.begin_step(program.stream)
                steps.replay(program, INPUTS)
                agent.span("step", begin_ns, time.monotonic_ns(), (1, INPUTS[0], 1, -1))
            traced.append(steps.digest(INPUTS))
            steps.restore(INPUTS)
    plain = replace(steps, build=Build())
    facts = {
        "traced": traced,
        "plain": [digests(plain, [INPUTS], form)[0] for form in FORMS],
        "experts": experts_hit(plain),
        "launches": [len(steps.launches(INPUTS[0], form)) for form in FORMS],
    }
    Path(sys.argv[1]).write_text(json.dumps(facts))
    return 0


if __name__ == "__main__":
    sys.exit(main())
