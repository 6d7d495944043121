"""Steps over a framework's pools inside a CUDA graph of that framework.

python3 -m pytest -q tests/muse/with_torch/test_decoder_gpu.py -m gpu
"""

from __future__ import annotations

import pytest
import torch

from megatrace.muse.plan import CacheKind
from megatrace.muse.program import Build, block_count
from tests.muse.models import model
from tests.muse.with_torch.paged import Paged

pytestmark = pytest.mark.gpu

ROWS = 4


@pytest.mark.parametrize("cache", ["bf16", "e4m3"])
def test_one_captured_step_serves_every_later_one(cache: CacheKind) -> None:
    if not torch.cuda.is_available():
        pytest.skip("this torch has no CUDA")
    build = Build.here("bf16")
    paged = Paged(
        *(model(), ("nvfp4", "bf16", "nvfp4"), build.target, "cuda"),
        blocks=block_count(build),
        cache=cache,
    )
    fixed = paged.inputs(ROWS, 0)
    paged.decoder.step(*fixed)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        stream = paged.decoder.step(*fixed).clone()
    for context in (0, 1, 15, 16, 17, 60, 61, 150, POSITIONS_LEFT):
        inputs = paged.inputs(ROWS, context)
        for place, value in zip(fixed, inputs, strict=True):
            place.copy_(value)
        graph.replay()
        torch.cuda.synchronize()
        whole = paged.in_order(ROWS, context, inputs[0])
        assert torch.equal(stream, whole.stream[:ROWS]), context


POSITIONS_LEFT = 200 - ROWS
"""The last rows of the table."""
