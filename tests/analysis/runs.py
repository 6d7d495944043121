"""Runs of a small kernel, made with known times: what a comparison must find in them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from megatrace.capture.writer import CaptureWriter
from tests.build import GHZ, MS, Build, Launch, Rec, stall

WARPS = ("load", "math")
LAUNCH_NS = 50_000
NOISE_NS = 400
"""Standard deviation of a launch's time: under one per cent."""


def run(
    path: Path,
    *,
    seed: int,
    steps: int = 20,
    layers: int = 3,
    extra_ns: Mapping[int, float] | None = None,
    stalled_ns: Mapping[int, float] | None = None,
    early_ns: Mapping[int, float] | None = None,
    device: int = 1,
    gpu: str = "NVIDIA H200",
    kernel: str = "decode",
    tokens: int = 16,
    shift_ns: float = 0.0,
    one_step: bool = False,
    lose: bool = False,
    blocks: int = 2,
    seldom: int | None = None,
) -> Path:
    """Write a capture of one rank, one launch a layer and step.

    ``extra_ns`` makes a layer so much longer, ``stalled_ns`` makes its math warps wait so much
    longer for weights, ``early_ns`` its load warps end so much earlier.
    ``shift_ns`` is the spread over steps of what all layers of a step
    have in common. ``one_step``: all launches have one step id. Layer ``seldom`` runs in the
    first three steps only.
    """
    rng = np.random.default_rng(seed)
    build = Build(
        blocks=blocks, warps=len(WARPS), layers=layers, roles=WARPS, kernels={1: kernel},
        device=device,
    )  # fmt: skip
    at, number = 50 * MS, 0
    for step in range(1, steps + 1):
        host = at + build.host_offset_ns
        build.sample_clock(at - 20_000)
        common = rng.normal(0, shift_ns) if shift_ns else 0.0
        for layer in range(layers):
            if layer == seldom and step > 3:
                continue
            took = LAUNCH_NS + common + rng.normal(0, NOISE_NS) + (extra_ns or {}).get(layer, 0)
            waited = 4000 + rng.normal(0, 100) + (stalled_ns or {}).get(layer, 0)
            for ring in range(build.rings):
                is_math = ring % len(WARPS) == 1
                ends = took if is_math else took - (early_ns or {}).get(layer, 0)
                build.add(ring, Launch(
                    number, at, at + round(ends), step=1 if one_step else step, layer=layer,
                    records=[_wait(waited)] if is_math else [], edge=True,
                ))  # fmt: skip
            at += round(took) + 1000
            number += 1
        build.host("step", host - 5000, at + build.host_offset_ns, step, (1, tokens, 1, -1))
        at += 200_000
    build.sample_clock(at)
    if lose:
        build.lose(1, 3)
    writer = CaptureWriter(path)
    writer.write_meta("capture", command=["demo"], device="cuda", options={})
    writer.write_meta("fact", 0, name="gpus", process="recorder", value={"gpus": [{"name": gpu}]})
    build.write_to(writer)
    writer.finish()
    return path


def _wait(ns: float) -> Rec:
    return stall("full", 2000, round(ns * GHZ))
