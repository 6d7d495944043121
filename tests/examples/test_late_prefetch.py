"""The layer with a late prefetch: its two variants here, and as they were recorded on an H200."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from megatrace.analysis import Trace, decode
from megatrace.capture.reader import open_capture
from megatrace.schema import EventTable
from megatrace.schema.emit import table_header
from tests.examples.course import COURSE
from tests.tools import sass

FOLDER = COURSE / "04_late_prefetch"
VARIANTS = ("before", "after")
LAUNCH = ["step", "layer"]
STEPS, LAYERS, BLOCKS, WARPS, TILES = 3, 3, 4, 5, 4
HOST_HALF = '#include "host.cuh"'


def table() -> EventTable:
    """The example's events, under a name that no other example's has."""
    spec = importlib.util.spec_from_file_location("late_prefetch_events", FOLDER / "events.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found: EventTable = module.LAYER
    return found


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Trace]:
    """Both variants in the host build; the program itself checks its answers."""
    traces = {}
    for variant in VARIANTS:
        out = tmp_path_factory.mktemp(variant) / "run.mtr"
        record = [sys.executable, "-m", "megatrace", "record", "--every", "1", "-o", str(out), "--"]
        program = [sys.executable, str(FOLDER / "run.py"), "--target", "host"]
        subprocess.run(
            [*record, *program, "--variant", variant, "--steps", str(STEPS)],
            check=True,
            capture_output=True,
        )
        traces[variant] = decode(open_capture(out, strict=True))
    return traces


def of_h200(variant: str) -> Trace:
    return decode(open_capture(FOLDER / f"{variant}.mtr", strict=True))


def asked_and_published(trace: Trace) -> tuple[pd.Series[int], pd.Series[int]]:
    """By launch: the first request for down's weights, the last block's sum, both in ns."""
    records = trace.records
    asked = records[records.event == "ask_down"].groupby(LAUNCH).begin_ns.min()
    published = records[records.event == "sum"].groupby(LAUNCH).begin_ns.max()
    return asked, published


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_launch_of_every_warp_is_in_the_capture(host: dict[str, Trace], variant: str) -> None:
    launches = host[variant].launches
    assert len(launches) == STEPS * LAYERS * BLOCKS * WARPS
    assert launches.complete.all()
    counts = host[variant].records.event.value_counts()
    assert counts["ask_down"] == STEPS * LAYERS * BLOCKS * TILES
    assert counts["down_weights"] == counts["ask_down"] * (WARPS - 1)


def test_before_asks_for_the_weights_when_the_last_block_has_handed_over(
    host: dict[str, Trace],
) -> None:
    asked, published = asked_and_published(host["before"])
    assert (asked >= published).all()


def test_after_asks_for_the_weights_without_waiting_for_anybody(host: dict[str, Trace]) -> None:
    asked, published = asked_and_published(host["after"])
    assert (asked < published).all()
    records = host["after"].records
    assert not ((records.role == "loader") & (records.event == "sum_wait")).any()


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_h200_capture_is_of_the_events_of_today(variant: str) -> None:
    capture = open_capture(FOLDER / f"{variant}.mtr", strict=True)
    assert capture.tables[0].hash == table().hash
    launches = decode(capture).launches
    assert launches.complete.all()
    assert launches.layer.nunique() == 4


def test_on_the_h200_the_first_use_waits_before_and_not_after() -> None:
    waited = {}
    for variant in VARIANTS:
        records = of_h200(variant).records
        uses = records[records.event == "down_weights"]
        waited[variant] = uses.groupby([*LAUNCH, "block", "slot"]).dur_ns.max()
    assert (waited["before"] > 0).mean() > 0.5
    assert (waited["after"] > 0).mean() < 0.25
    assert waited["after"].mean() < waited["before"].mean() / 4


def test_on_the_h200_every_layer_is_faster_after() -> None:
    launches = {v: of_h200(v).launches.groupby(LAUNCH) for v in VARIANTS}
    medians = {
        v: (of.end_ns.max() - of.begin_ns.min()).groupby("layer").median()
        for v, of in launches.items()
    }
    assert (medians["after"] < medians["before"]).all()


@pytest.mark.parametrize("arch", sass.ARCHS)
def test_nothing_spills(arch: str, tmp_path: Path) -> None:
    (tmp_path / "layer_events.cuh").write_text(table_header(table()))
    timeline = "Tracer<Level::timeline>"
    instances = "".join(
        f"template __global__ void layer<{timeline}, {early}>(Work, {timeline}::Params);\n"
        for early in ("true", "false")
    )
    kernel = (FOLDER / "kernel.cu").read_text()
    source = tmp_path / "kernel.cu"
    source.write_text(kernel.replace(HOST_HALF, instances))
    usage = sass.compile_cubin(source, arch, "-DMEGATRACE_TILE_BYTES=16384").usage
    assert len(usage) == 2
    assert {(u.stack_bytes, u.spill_bytes) for u in usage.values()} == {(0, 0)}


def test_code_on_the_page_is_code_of_the_kernel() -> None:
    blocks = re.findall(r"^```cpp\n(.*?)^```$", (FOLDER / "README.md").read_text(), re.M | re.S)
    kernel = " ".join((FOLDER / "kernel.cu").read_text().split())
    assert blocks
    assert [block for block in blocks if " ".join(block.split()) not in kernel] == []
