"""The fraction of the floor: known where program, counter and bandwidth say so, else why not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray

from megatrace.analysis import Trace, decode, summarise, to_text, views
from megatrace.analysis.floors import CPU, NO_LAUNCH, floors, reported
from megatrace.analysis.traffic import NO_BANDWIDTH, NOT_SAID, Bandwidth, Traffic, floor
from megatrace.analysis.windows import windows
from megatrace.capture.reader import open_capture
from megatrace.capture.writer import CaptureWriter
from megatrace.errors import UsageError
from megatrace.muse.config import RELEASED
from megatrace.muse.events import MUSE as EVENTS
from megatrace.muse.plan import launch_bytes
from megatrace.schema.processes import number_of
from megatrace.schema.traffic import COPY_BANDWIDTH, LAUNCH_BYTES, LaunchBytes
from tests.analysis.small import BLOCKS, build, real
from tests.build import Build, point
from tests.reads import counted_lines
from tests.said import with_floor

LAYER = Path(__file__).parents[2] / "examples/03_read_a_trace/layer.mtr"

SAID = LaunchBytes("decode", (8_000_000,) * 3, (4_000_000,) * 3)
MEASURED = {"bytes_per_s": 4e12, "how": "a copy of 2 GiB"}


def experts(**facts: object) -> Build:
    """Three layers, of which two count their experts: 9 and 7. Each takes 50 us."""
    body = [point("distinct_experts", 2000, 9, table=EVENTS)]
    less = [point("distinct_experts", 2000, 7, table=EVENTS)]
    kernels = {1: "decode"}
    return build({0: less, 1: body}, {}, {0: less}, warps=2, table=EVENTS, kernels=kernels, **facts)


def capture(path: Path, made: Build, **facts: object) -> Path:
    """``made`` with facts of its program."""
    writer = CaptureWriter(path)
    writer.write_meta("capture", command=["demo"], device="cuda", options={})
    for name, value in facts.items():
        writer.write_meta("fact", made.rank, name=name, process="rank0000", value=value)
    made.write_to(writer)
    writer.finish()
    return path


def both(path: Path, said: LaunchBytes = SAID, **facts: object) -> Path:
    """A capture that says bytes and bandwidth."""
    names = {LAUNCH_BYTES: said.to_fact(), COPY_BANDWIDTH: MEASURED}
    return capture(path, experts(**facts), **names)


def test_the_floor_is_what_the_bytes_of_the_program_take_at_its_bandwidth(tmp_path: Path) -> None:
    with open_capture(both(tmp_path / "a.mtr")) as opened:
        found = reported(opened).floor
    assert [(row.layer, row.launches, row.experts) for row in found.rows] == [(0, 1, 9), (2, 1, 7)]
    assert [row.bytes for row in found.rows] == [44_000_000, 36_000_000]
    assert [row.floor_us for row in found.rows] == [11.0, 9.0]
    assert [row.fraction for row in found.rows] == pytest.approx([0.22, 0.18])
    assert found.fraction == pytest.approx(0.2)
    assert found.bandwidth_from == "measured by the program that was recorded: a copy of 2 GiB"


@pytest.mark.parametrize("small_lines", [0, 1 << 18])
def test_the_report_sums_up_the_rows_of_the_table(tmp_path: Path, small_lines: int) -> None:
    for path in (LAYER, with_floor(tmp_path / "a.mtr")):
        with open_capture(path) as opened:
            traffic = Traffic.of(opened)
            parts = windows(opened, small_lines=small_lines)
            found = floors([views.floor(part, traffic) for part in parts], traffic)
            assert found.rows
            assert reported(opened).floor == found


def test_the_floor_of_a_report_takes_no_second_reading(tmp_path: Path) -> None:
    lines = []
    for report in (summarise, reported):
        path = with_floor(tmp_path / f"{report.__name__}.mtr")
        with open_capture(path) as opened, counted_lines() as read:
            assert bool(report(opened).floor.rows) == (report is reported)
        lines.append(sum(read))
    assert lines[0] == lines[1] > 0


def test_launches_go_by_a_few_steps_and_their_floor_is_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with open_capture(LAYER) as opened:
        at_once = reported(opened).floor
        monkeypatch.setattr("megatrace.analysis.floors._SOME_LAUNCHES", 1)
        frames: list[pd.DataFrame] = []

        def kept(trace: Trace, traffic: Traffic, experts: NDArray[np.int64]) -> pd.DataFrame:
            frames.append(floor(trace, traffic, experts))
            return frames[-1]

        monkeypatch.setattr("megatrace.analysis.floors.floor", kept)
        assert reported(opened).floor == at_once
    steps = [set(frame["step"].tolist()) for frame in frames]
    assert len(frames) == len(set.union(*steps)) > 1


def test_each_process_of_a_rank_is_held_against_what_it_said_itself(tmp_path: Path) -> None:
    path = tmp_path / "a.mtr"
    writer = CaptureWriter(path)
    for process, rate in ((1, 4e12), (2, 2e12)):
        number = number_of(0, process)
        facts = {LAUNCH_BYTES: SAID.to_fact(), COPY_BANDWIDTH: {**MEASURED, "bytes_per_s": rate}}
        for name, value in facts.items():
            writer.write_meta("fact", number, name=name, process="rank0000", value=value)
        experts(rank=number).write_to(writer)
    writer.finish()
    with open_capture(path) as opened:
        frame = views.floor(decode(opened), Traffic.of(opened))
        found = reported(opened).floor
    first = frame[(frame["layer"] == 0) & (frame["step"] == 1)]
    assert first[["rank", "process", "floor_ns"]].to_numpy().tolist() == [
        [0, 1, 11_000],
        [0, 2, 22_000],
    ]
    assert [(row.layer, row.launches) for row in found.rows] == [(0, 2), (2, 2)]


def test_a_bandwidth_that_is_given_goes_before_the_measured_one(tmp_path: Path) -> None:
    with open_capture(both(tmp_path / "a.mtr")) as opened:
        found = reported(opened, Bandwidth(8e12)).floor
    assert [row.floor_us for row in found.rows] == [5.5, 4.5]
    assert found.bandwidth_from == "given"


def test_a_kernel_without_experts_needs_no_counter(tmp_path: Path) -> None:
    dense = LaunchBytes("decode", (100_000_000,) * 3, (0,) * 3)
    with open_capture(both(tmp_path / "a.mtr", dense)) as opened:
        found = reported(opened).floor
    # Launches of step 9, which the clock is fitted over, are of layer 0 too.
    assert [(row.layer, row.launches) for row in found.rows] == [(0, 4), (1, 1), (2, 1)]
    assert [row.fraction for row in found.rows] == pytest.approx([0.5, 0.5, 0.5])


def test_what_is_left_out_is_said_beside_the_fraction(tmp_path: Path) -> None:
    said = replace(SAID, left_out="keys and values")
    with open_capture(both(tmp_path / "a.mtr", said)) as opened:
        report = reported(opened)
    text = " ".join(to_text(report).split())
    assert "of the floor is no less than this: not counted: keys and values" in text
    assert "at 4.00 TB/s, measured by the program that was recorded: a copy of 2 GiB" in text
    assert "All together: 20 %" in text


def test_of_a_part_of_the_blocks_it_is_at_most_this_and_never_no_less(tmp_path: Path) -> None:
    said = replace(SAID, left_out="keys and values")
    made = experts()
    made.blocks = 3  # of the grid; the first alone has left lines
    facts = {LAUNCH_BYTES: said.to_fact(), COPY_BANDWIDTH: MEASURED}
    with open_capture(capture(tmp_path / "a.mtr", made, **facts)) as opened:
        frame = views.floor(decode(opened), Traffic.of(opened))
        report = reported(opened)
    found = report.floor
    assert found.part_recorded == "1 of 3 blocks"
    assert {*zip(frame["blocks_seen"], frame["blocks"], strict=True)} == {(1, 3)}
    assert frame["clock_error_ns"].between(0, 100).all()
    text = " ".join(to_text(report).split())
    assert "at most this of the bytes counted: 1 of 3 blocks were recorded" in text
    assert "Not counted in the floor: keys and values." in text
    assert "of the floor is no less" not in text


def test_each_rank_is_held_against_the_bandwidth_that_it_measured(tmp_path: Path) -> None:
    path = tmp_path / "a.mtr"
    writer = CaptureWriter(path)
    writer.write_meta("capture", command=["demo"], device="cuda", options={})
    for rank, rate in ((0, 4e12), (1, 2e12), (2, None)):
        facts = {LAUNCH_BYTES: SAID.to_fact()}
        facts |= {} if rate is None else {COPY_BANDWIDTH: {**MEASURED, "bytes_per_s": rate}}
        for name, value in facts.items():
            writer.write_meta("fact", rank, name=name, process=f"rank{rank:04}", value=value)
        experts(rank=rank).write_to(writer)
    writer.finish()
    with open_capture(path) as opened:
        frame = views.floor(decode(opened), Traffic.of(opened))
        given = views.floor(decode(opened), Traffic.of(opened, Bandwidth(8e12)))
        found = reported(opened).floor
    first = frame[(frame["layer"] == 0) & (frame["step"] == 1)]
    assert first["floor_ns"].tolist() == [11_000, 22_000, -1]
    assert (frame.loc[frame["rank"] == 2, "fraction"] == -1).all()
    assert given.loc[first.index, "floor_ns"].tolist() == [5_500] * 3
    assert found.bandwidth_bytes_per_s == 2e12
    assert found.bandwidth_from == (
        "measured by the program that was recorded: a copy of 2 GiB; the least of its ranks, "
        "the most is 4.00 TB/s; not known of rank 2"
    )


@pytest.mark.parametrize(
    ("facts", "device", "why"),
    [
        ({}, 1, NOT_SAID),
        ({COPY_BANDWIDTH: MEASURED}, 1, NOT_SAID),
        ({LAUNCH_BYTES: SAID.to_fact()}, 1, NO_BANDWIDTH),
        ({LAUNCH_BYTES: SAID.to_fact(), COPY_BANDWIDTH: {"bytes_per_s": "fast"}}, 1, NO_BANDWIDTH),
        ({LAUNCH_BYTES: {"kernel": "decode"}, COPY_BANDWIDTH: MEASURED}, 1, NOT_SAID),
        ({LAUNCH_BYTES: SAID.to_fact(), COPY_BANDWIDTH: MEASURED}, 0, CPU),
        (
            {
                LAUNCH_BYTES: replace(SAID, kernel="other").to_fact(),
                COPY_BANDWIDTH: MEASURED,
            },
            1,
            NO_LAUNCH,
        ),
    ],
)
def test_where_it_is_not_known_the_report_says_why(
    tmp_path: Path, facts: dict[str, object], device: int, why: str
) -> None:
    path = capture(tmp_path / "a.mtr", experts(device=device), **facts)
    with open_capture(path) as opened:
        report = reported(opened)
    found = report.floor
    assert (found.rows, found.why_not) == ((), why)
    assert f"Fraction of the floor: {why}" in " ".join(to_text(report).split())


def test_the_host_build_has_bytes_and_no_fraction(tmp_path: Path) -> None:
    with open_capture(both(tmp_path / "a.mtr", device=0)) as opened:
        frame = views.floor(decode(opened), Traffic.of(opened))
    assert (frame["fraction"] == -1).all()
    assert 44_000_000 in frame["bytes"].tolist()


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan"), float("inf")])
def test_a_bandwidth_of_nonsense_is_refused(rate: float) -> None:
    with pytest.raises(UsageError, match="bandwidth of"):
        Bandwidth(rate)


def test_a_fact_comes_back_as_it_was_said() -> None:
    assert LaunchBytes.of_fact(SAID.to_fact()) == SAID
    for broken in (None, {}, {**SAID.to_fact(), "expert": [1]}, {**SAID.to_fact(), "always": [-1]}):
        assert LaunchBytes.of_fact(broken) is None


def test_the_megakernel_on_the_h200_reaches_a_part_of_its_floor() -> None:
    """Three layers at released sizes on one rank of eight, 16 rows; 4.2 TB/s of that machine."""
    model = replace(RELEASED, layers=RELEASED.layers[:3])
    rank = model.shard(0, 8, shard_projections=True)
    said = launch_bytes(model, rank, ["nvfp4"] * 3, context=4096, rows=16)
    traffic = Traffic({(0, "layer"): said}, Bandwidth(4.2e12))
    found = floors([views.floor(real(BLOCKS), traffic)], traffic)
    assert [row.layer for row in found.rows] == [0, 1, 2]
    assert all(1 <= row.experts <= 32 for row in found.rows)
    assert all(0.3 < row.fraction < 1 for row in found.rows)
    last = found.rows[-1]
    assert last.floor_us == pytest.approx(last.bytes / 4.2e6, rel=0.01)
