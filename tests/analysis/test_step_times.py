"""Steps of the host beside their launches, and the experts that layers hit."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from megatrace.analysis import decode, views
from megatrace.capture.reader import open_capture
from megatrace.muse.events import MUSE as EVENTS
from tests.analysis.small import MUSE, build, real, trace_of
from tests.build import MS, Build, Launch, demo, point, write


def served() -> Build:
    """Three steps of a server that drafts and verifies, two launches each."""
    made = Build(ghz=2.0, layers=2)
    for step in range(1, 4):
        start = MS * step
        for layer in range(2):
            at = start + 60_000 * layer
            made.add(0, Launch(2 * step + layer, at, at + 50_000, step=step, layer=layer))
        host = start + made.host_offset_ns
        made.sample_clock(start - 100_000, round_trip_ns=200)
        made.host("step", host - 50_000, host + 250_000, step, (4, 64, 1, 10))
        made.host("draft", host - 40_000, host - 10_000, step, (4, 64, 1, -1))
        made.host("verify", host, host + 200_000, step, (4, 64, 1, 10))
    return made


def steps(folder: Path, made: Build) -> pd.DataFrame:
    return views.step_times(trace_of(folder, made, steps=None))


def test_a_step_has_its_launches_and_the_time_in_which_one_ran(tmp_path: Path) -> None:
    frame = steps(tmp_path, served())
    step = frame[frame["stage"] == "step"]
    assert step["step"].tolist() == [1, 2, 3]
    assert step["launches"].tolist() == [2, 2, 2]
    assert step["device_ns"].tolist() == [100_000] * 3
    assert step["dur_ns"].tolist() == [300_000] * 3


def test_the_host_gap_is_since_the_same_stage_before(tmp_path: Path) -> None:
    gaps = steps(tmp_path, served()).groupby("stage", observed=True)["host_gap_ns"].agg(list)
    assert gaps["step"] == [-1, 700_000, 700_000]
    assert gaps["draft"] == [-1, 970_000, 970_000]
    assert gaps["verify"] == [-1, 800_000, 800_000]


def test_a_verify_says_how_many_tokens_each_request_got(tmp_path: Path) -> None:
    frame = steps(tmp_path, served()).set_index(["step", "stage"])
    assert frame.loc[(2, "verify"), "accept_length"] == 2.5
    assert frame.loc[(2, "draft"), ["accepted", "accept_length"]].tolist() == [-1, -1]


def test_host_times_are_on_the_gpus_clock(tmp_path: Path) -> None:
    frame = steps(tmp_path, served()).set_index(["step", "stage"])
    assert abs(frame.loc[(2, "verify"), "begin_ns"] - 2 * MS) < 500


def test_launches_that_no_host_tells_of_are_a_step_of_their_own(tmp_path: Path) -> None:
    frame = steps(tmp_path, build({}, {}))
    assert frame["stage"].tolist() == ["", ""]
    assert frame["launches"].tolist() == [2, 3]
    assert frame["dur_ns"].tolist() == [150_000, 250_000]


def test_launches_that_overlap_count_once_in_the_devices_time(tmp_path: Path) -> None:
    made = Build(ghz=2.0)
    for number in range(4):
        at = MS + 40_000 * number
        made.add(0, Launch(number, at, at + 50_000, layer=number))
    (row,) = steps(tmp_path, made).to_dict("records")
    assert row["device_ns"] == row["dur_ns"] == 170_000


def test_a_host_without_a_kernel_has_steps_too(tmp_path: Path) -> None:
    made = Build(traced=False)
    made.host("decode", MS, 2 * MS, 1, (1, 1, 0, -1))
    (row,) = steps(tmp_path, made).to_dict("records")
    assert (row["stage"], row["launches"], row["device_ns"], row["begin_ns"]) == (
        "decode",
        -1,
        -1,
        -1,
    )


def test_of_a_step_without_a_timeline_nobody_knows_the_launches(tmp_path: Path) -> None:
    made = served()
    made.host("step", 10 * MS, 11 * MS, 9, (4, 64, 1, 10))
    row = steps(tmp_path, made).set_index(["step", "stage"]).loc[(9, "step")]
    assert row[["launches", "device_ns"]].tolist() == [-1, -1]


def test_every_rank_has_its_steps(tmp_path: Path) -> None:
    frame = views.step_times(trace_of(tmp_path, *demo(ranks=2), steps=None))
    assert frame.groupby("rank").size().to_dict() == {0: 3, 1: 3}
    assert (frame["launches"] == 2).all()


def test_the_host_of_the_megakernels_capture_holds_its_launches() -> None:
    frame = views.step_times(real(MUSE))
    assert frame["step"].tolist() == [1, 2, 3, 4]
    assert (frame["device_ns"] < frame["dur_ns"]).all()
    assert (frame["host_gap_ns"].iloc[1:] > 0).all()


def experts() -> Build:
    """Three layers of the megakernel, of which two count their experts."""
    body = [point("distinct_experts", 2000, 9, table=EVENTS)]
    less = [point("distinct_experts", 2000, 7, table=EVENTS)]
    return build({0: less, 1: body}, {}, {0: less}, warps=2, table=EVENTS)


def test_the_experts_of_a_launch_are_the_most_that_a_block_counted(tmp_path: Path) -> None:
    frame = views.expert_traffic(trace_of(tmp_path, experts()))
    assert frame["layer"].tolist() == [0, 2]
    assert frame["distinct_experts"].tolist() == [9, 7]
    assert frame["dur_ns"].tolist() == [50_000, 50_000]


def test_a_capture_without_that_counter_has_no_traffic(tmp_path: Path) -> None:
    with open_capture(write(tmp_path / "a.mtr", *demo())) as capture:
        assert len(views.expert_traffic(decode(capture))) == 0
