"""Where a warp's time goes: known stalls give exactly themselves, and all of it adds up."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megatrace.analysis import Trace, decode, views
from megatrace.analysis.columns import DATA, INPUT, PEER, SPACE
from megatrace.capture.reader import open_capture
from megatrace.schema.layout import SUM_GROUPS
from tests.analysis.launch_strategy import launches as launches_of
from tests.analysis.small import MUSE, ROOT, STREAM, US, build, real, trace_of
from tests.build import MS, Build, Launch, hang, point, span, stall, write


def classes(trace: Trace, **where: int) -> dict[str, int]:
    """ns by class of the rows where columns have some values."""
    frame = views.stall_classes(trace)
    for name, value in where.items():
        frame = frame[frame[name] == value]
    found: Mapping[str, int] = frame.groupby("class", observed=True)["dur_ns"].sum().to_dict()
    return dict(found)


def test_stalls_of_each_cause_are_classes_of_their_own(tmp_path: Path) -> None:
    stalls = [
        stall("full", 1 * US, 3 * US),
        stall("room", 5 * US, 4 * US),
        stall("input", 10 * US, 5 * US, 7),
        stall("peer", 20 * US, 6 * US),
        stall("arrived", 30 * US, 2 * US, 7),
    ]
    found = classes(trace_of(tmp_path, build({0: stalls})))
    assert found == {
        "data": 5_000, "space": 4_000, "input": 5_000, "peer": 6_000, "not_waiting": 30_000,
    }  # fmt: skip


def test_a_wait_that_did_not_block_is_running(tmp_path: Path) -> None:
    trace = trace_of(tmp_path, build({0: [stall("arrived", US, 0, 1)]}))
    assert classes(trace) == {"not_waiting": 50_000}


def test_before_its_start_and_after_its_end_a_warp_waits_for_the_launch(tmp_path: Path) -> None:
    made = Build(warps=2, ghz=2.0)
    for number in range(4):
        at = MS + 100_000 * number
        made.add(0, Launch(number, at, at + 60_000))
        made.add(1, Launch(number, at + 2_000, at + 50_000))
    trace = trace_of(tmp_path, made)
    assert classes(trace, launch_no=1, warp=0) == {"not_waiting": 60_000}
    late = classes(trace, launch_no=1, warp=1)
    assert late == {"before_start": 2_000, "not_waiting": 48_000, "tail": 10_000}


def test_the_share_is_of_the_launch(tmp_path: Path) -> None:
    trace = trace_of(tmp_path, build({0: [stall("full", US, 5 * US)]}))
    frame = views.stall_classes(trace).set_index("class")
    assert frame.loc["data", "share"] == pytest.approx(0.1)
    assert frame["share"].sum() == pytest.approx(1.0)


def test_where_lines_are_lost_what_is_not_a_known_stall_is_unknown(tmp_path: Path) -> None:
    many = [point("mark", 100 * i, i, i) for i in range(1, 60)]
    made = build({0: [*many, stall("full", 20 * US, 4 * US)], 1: []}, warps=2)
    made.lose(0, 3)
    trace = trace_of(tmp_path, made)
    assert trace.loss.any
    assert classes(trace, warp=0) == {"data": 4_000, "unknown": 46_000}
    assert classes(trace, warp=1) == {"not_waiting": 50_000}


def test_a_warp_that_was_cut_off_is_unknown_to_the_launchs_end(tmp_path: Path) -> None:
    made = build({}, warps=2)
    made.add(0, Launch(9, 2 * MS, None, step=5, records=[stall("room", US, 3 * US)]))
    made.add(1, Launch(9, 2 * MS, 2 * MS + 50_000, step=5))
    trace = trace_of(tmp_path, made, steps=[5])
    assert classes(trace, warp=0) == {"space": 3_000, "unknown": 47_000}


def test_a_hang_counts_for_what_it_waited_for(tmp_path: Path) -> None:
    made = build({}, warps=2)
    made.add(0, Launch(9, 2 * MS, None, step=5, records=[hang("peer", 40 * US, 30 * US)]))
    made.add(1, Launch(9, 2 * MS, 2 * MS + 50_000, step=5))
    trace = trace_of(tmp_path, made, steps=[5])
    assert classes(trace, warp=0) == {"peer": 30_000, "unknown": 20_000}


@pytest.mark.parametrize("path", [MUSE, STREAM], ids=["megakernel", "example"])
def test_the_classes_of_each_warp_of_a_real_capture_add_up_to_its_launch(path: Path) -> None:
    trace = real(path)
    add_up(trace)
    assert "unknown" not in classes(trace)


@settings(max_examples=40)
@given(st.lists(launches_of(most=4), min_size=1, max_size=3), st.data())
def test_the_classes_of_a_warp_add_up_to_its_launch_whatever_was_recorded(
    rings: list[list[Launch]], data: st.DataObject
) -> None:
    made = Build(warps=len(rings), straddle=True)
    for ring, launches in enumerate(rings):
        for launch in launches:
            made.add(ring, launch)
    lines = len(made.arrays()[0])
    for _ in range(data.draw(st.integers(0, 3))):
        made.lose(data.draw(st.integers(0, len(rings) - 1)), data.draw(st.integers(1, lines)))
    with tempfile.TemporaryDirectory() as folder:
        with open_capture(write(Path(folder) / "a.mtr", made)) as capture:
            trace = decode(capture)
        add_up(trace)


def add_up(trace: Trace) -> None:
    """Every warp has exactly the wall time of its launch, where that has an end."""
    frame, walls = views.stall_classes(trace), views.launch_times(trace)
    warp = ["rank", "launch_no", "block", "warp"]
    total = frame.groupby(warp)["dur_ns"].sum().rename("total").reset_index()
    seen = trace.launches.rename(columns={"launch": "launch_no"})[warp]
    both = seen.merge(total, how="left", on=warp).fillna(0)
    both = both.merge(walls[["rank", "launch_no", "dur_ns"]], on=["rank", "launch_no"])
    known = both[both["dur_ns"] >= 0]
    assert (known["total"] == known["dur_ns"]).all()
    assert (frame["dur_ns"] > 0).all()


# -- against the counters that the kernel keeps itself ---------------------------------------

CLASS_OF_SLOT = [DATA, SPACE, INPUT, PEER]
"""In the order of the counters."""


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, np.ndarray]:
    """Steps of counted.cu in the host build, every other with a timeline, and its own sums.

    The sums are [steps, blocks, warps, causes, (cycles, count)].
    """
    folder = tmp_path_factory.mktemp("counted")
    out, sums = folder / "run.mtr", folder / "sums.npy"
    record = [sys.executable, "-m", "megatrace", "record", "--every", "2", "--counters", "1"]
    record += ["-o", str(out), "--"]
    subprocess.run(
        [*record, sys.executable, "-m", "tests.kernels.counted", "host", str(sums)],
        cwd=ROOT,
        env={**os.environ, "MEGATRACE_RUNTIME_DIR": str(folder / "runtime")},
        check=True,
        capture_output=True,
    )
    return out, np.load(sums)


def test_classes_equal_the_kernels_own_sums_of_the_same_launch(
    counted: tuple[Path, np.ndarray],
) -> None:
    """To half a ns a stall, to which a record's duration is rounded, and the clock's rate."""
    path, sums = counted
    with open_capture(path) as capture:
        trace = decode(capture)
    frame = views.stall_classes(trace)
    assert set(frame["step"]) == {2, 4, 6}
    by = frame.groupby(["step", "block", "warp", "class"], observed=True)["dur_ns"].sum()
    for step in (2, 4, 6):
        for (block, warp, cause), cycles in np.ndenumerate(sums[step - 1, ..., 0]):
            key = (step, block, warp, CLASS_OF_SLOT[cause])
            stalls = int(sums[step - 1, block, warp, cause, 1])
            ns = cycles / 2  # of the host build
            assert abs(by.get(key, 0) - ns) <= stalls + 1e-6 * ns, key
    assert sums[[1, 3, 5], ..., 1].sum() > 100


def test_the_counters_of_launches_without_a_timeline_equal_them_too(
    counted: tuple[Path, np.ndarray],
) -> None:
    path, sums = counted
    with open_capture(path) as capture:
        samples = capture.counters()
    last = pd.DataFrame({"slot": samples.slot}).drop_duplicates(keep="last").index.to_numpy()
    records = samples.records[last][np.argsort(samples.slot[last])]
    without = np.zeros((SUM_GROUPS, *sums.shape[2:]), np.uint64)
    for block, one in enumerate(sums[[0, 2, 4]].sum(axis=0)):
        without[block % SUM_GROUPS] += one
    without = without.reshape(len(records), -1, 2)
    assert (records["cycles"] == without[..., 0]).all()
    assert (records["count"] == without[..., 1]).all()


def test_a_capture_of_the_host_build_says_so(counted: tuple[Path, np.ndarray]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "megatrace", "tables", str(counted[0]), "launch_times", "--json"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert len(json.loads(done.stdout)["rows"]) == 3
    assert "device=cpu" in done.stderr


def test_spans_do_not_matter_to_classes(tmp_path: Path) -> None:
    body = [*span("phase", US, 40 * US), *span("tile", 2 * US, 9 * US), stall("full", 3 * US, US)]
    assert classes(trace_of(tmp_path, build({0: body}))) == {"data": 1_000, "not_waiting": 49_000}
