"""Another package's megakernel, as SGLang would find it installed: a spec, and its own records.

It covers the decode steps of one request: the kernel of examples/01_trace_a_kernel runs, on the
host, and the model's own forward gives the logits. Of megatrace it uses what any kernel may: the
header, and an agent.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

from sglang.kernels.plugin_kernels.nvidia.spec import (
    MegakernelSpec,
    Numerics,
    NumericsKind,
    Requirements,
    Step,
)
from sglang.kernels.plugin_kernels.nvidia.spec import (
    register as register_spec,
)

ARCHITECTURE = "MuseSparkForConditionalGeneration"
EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "01_trace_a_kernel"
BLOCKS, TIMELINE = 2, 2


def register() -> None:
    """The entry point ``nvidia_megakernel``."""
    register_spec(architecture=ARCHITECTURE, path="other_megakernel:SPEC")


class Built:
    """What its build returns."""

    __slots__ = ("_agent", "_chain", "draft_sampler", "widths")

    def __init__(self, widths):
        from megatrace.agent.kernel import KernelAgent, RingSize
        from megatrace.jit import HOST, Kernel, build, load

        sys.path.insert(0, str(EXAMPLE))
        run = importlib.import_module("run")
        shape, table = run.CPU, run.STREAM
        defines = {"MEGATRACE_TILE_BYTES": str(shape.tile_bytes)}
        library = load(build(Kernel(EXAMPLE / "kernel.cu", (table,), defines), HOST), table)
        self._agent = KernelAgent.start(
            table,
            blocks=BLOCKS,
            roles=run.ROLES,
            kernels=("stream",),
            device="cpu",
            size=RingSize(lines=shape.lines, layers=shape.launches),
        )
        config = run.Config(BLOCKS, shape.tiles, shape.launches, shape.buffers, TIMELINE, False)
        self._chain = run.Stream(library, config, self._agent.params)
        self.widths, self.draft_sampler = widths, None

    def summary(self):
        return "a chain of three"

    def plan(self, input_ids, forward_batch, *_args, **_kwargs):
        if input_ids is None or forward_batch.batch_size != 1:
            return None
        return Step(mode="decode", rows=1) if forward_batch.forward_mode.is_decode() else None

    def forward(self, _step, original, *args, **kwargs):
        self._chain.replay()
        self._chain.synchronize()
        return original(*args, **kwargs)


SPEC = MegakernelSpec(
    name="somebody's kernel",
    requires=Requirements(isas=frozenset({"sm_90"}), tp_sizes=frozenset({1})),
    features=frozenset(),
    numerics=Numerics(kind=NumericsKind.BITWISE),
    max_rows=1,
    build=lambda _model, _hf_config, context: Built(context.widths),
    api_version=1,
)
