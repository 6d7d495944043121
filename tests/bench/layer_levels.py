"""What the tracer costs the layer kernel, over the same kernel without one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from megatrace.collect.options import COUNTERS_EVERY
from megatrace.muse.program import Build, Level, Program
from megatrace.schema.layout import CONTROL_RESTS, LEVEL_COUNTERS, LEVEL_TIMELINE
from tests.bench.layer_setup import PrivateTrace, Setup, Timed, quantiles

RECORDED = COUNTERS_EVERY


def level_overhead(setup: Setup, rows: int, build: Build, rounds: int) -> dict[str, Any]:
    """Percent over level off, in turn with it: of each level and of off itself."""
    engine = setup.engine
    cases: dict[str, tuple[Level, int]] = {
        "off": ("off", 0),
        "off again": ("off", 0),
        "counters": ("counters", LEVEL_COUNTERS),
        "timeline": ("timeline", LEVEL_TIMELINE),
        "timeline built, counters on": ("timeline", LEVEL_COUNTERS),
        "timeline built, rests": ("timeline", LEVEL_COUNTERS | CONTROL_RESTS),
    }
    launches = engine.step(rows, "fused", embed=True)
    traces = {
        name: PrivateTrace(engine.blocks, setup.layers, level) for name, (_, level) in cases.items()
    }
    timed = {
        name: Timed(Program(launches, replace(build, level=level), trace=traces[name].params))
        for name, (level, _) in cases.items()
    }
    engine.empty()
    torch.cuda.synchronize()
    ratios: dict[str, list[float]] = {name: [] for name in cases if name != "off"}
    for round_ in range(rounds + 4):
        engine.tokens.random_(0, 4096)
        torch.cuda.synchronize()
        order = list(cases) if round_ % 2 == 0 else list(cases)[::-1]
        ms = {name: timed[name].ms() for name in order}
        if round_ >= 4:
            for name in ratios:
                ratios[name].append(100 * (ms[name] / ms["off"] - 1))
    return {name: quantiles(values) for name, values in ratios.items()}


def recorded_overhead(
    setup: Setup, rows: int, build: Build, rounds: int
) -> dict[str, dict[str, float]]:
    """Percent over level off of RECORDED steps in a row: one with a timeline, one that counts.

    Each row of steps stands between two of level off, and is held against their mean.
    """
    engine = setup.engine
    launches = engine.step(rows, "fused", embed=True)
    trace = PrivateTrace(engine.blocks, setup.layers, 0)
    levels = [LEVEL_COUNTERS | CONTROL_RESTS] * RECORDED
    levels[1], levels[RECORDED // 2] = LEVEL_COUNTERS, LEVEL_TIMELINE
    words = [
        torch.tensor([step, level], dtype=torch.int32).pin_memory()
        for step, level in enumerate(levels)
    ]
    plain, again = (Timed(Program(launches, build)) for _ in range(2))
    traced = Timed(Program(launches, replace(build, level="timeline"), trace=trace.params))
    recorded = f"recorded, one step in {RECORDED}"
    cases = {
        "off": lambda: plain.ms_of(words),
        recorded: lambda: traced.ms_of(words, trace.word),
        "off again": lambda: again.ms_of(words),
    }
    ratios: dict[str, list[float]] = {name: [] for name in ("off again", recorded)}
    for round_ in range(rounds + 1):
        engine.tokens.random_(0, 4096)
        torch.cuda.synchronize()
        order = list(cases) if round_ % 2 == 0 else list(cases)[::-1]
        ms = {name: cases[name]() for name in order}
        if round_ >= 1:
            ratios["off again"].append(100 * (ms["off again"] / ms["off"] - 1))
            around = (ms["off"] + ms["off again"]) / 2
            ratios[recorded].append(100 * (ms[recorded] / around - 1))
    return {name: quantiles(values) for name, values in ratios.items()}
