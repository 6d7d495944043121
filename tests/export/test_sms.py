"""The group of an SM: its launches one after the other, whichever block they ran on it."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from megatrace.analysis import Trace, decode
from megatrace.capture.reader import open_capture
from megatrace.export import ExportResult, PerfettoOptions, export_perfetto
from megatrace.export.picture import draw
from megatrace.export.viewer import First, sql_package, startup_commands
from tests.export.trace_processor import OpenTrace
from tests.export.traces import EPOCH_NS, LAUNCH_NS, Builder, assemble
from tests.house.tree import ROOT

ALL = PerfettoOptions(steps="all")
CAPTURES = ("tests/muse/h200.mtr", "examples/01_trace_a_kernel/h200.mtr")
SLICES = """
select slice.*, warp.name as warp, sm.name as sm, extract_arg(slice.arg_set_id, 'debug.block')
as block from slice join track as warp on slice.track_id = warp.id
join track as sm on warp.parent_id = sm.id where sm.name glob 'SM *'
"""


@dataclass(frozen=True)
class Shown:
    trace: Trace
    result: ExportResult
    opened: OpenTrace

    def records(self, *columns: str) -> Counter[tuple[Any, ...]]:
        return Counter(
            self.opened.rows(
                "include perfetto module megatrace.records; "
                f"select {', '.join(columns)} from megatrace_records"
            )
        )


def show(trace: Trace, folder: Path) -> Shown:
    path = folder / "run.pftrace"
    result = export_perfetto(trace, path, ALL)
    return Shown(trace, result, OpenTrace(path, sql_package()))


@pytest.fixture(scope="module", params=CAPTURES)
def real(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Shown:
    with open_capture(ROOT / request.param) as capture:
        return show(decode(capture), tmp_path_factory.mktemp("sms"))


def launched(*blocks: tuple[int, int, int, int, int], tile_ns: int = 0) -> Trace:
    """Blocks of (launch, SM, block, begin, duration) with two warps, a tile in each."""
    builder = Builder()
    for launch, sm, block, begin, dur in blocks:
        for warp, role in enumerate(("loader", "consumer")):
            row = builder.launch(
                launch=launch, layer=launch, sm=sm, block=block, warp=warp, role=role,
                begin_ns=EPOCH_NS + begin, end_ns=EPOCH_NS + begin + dur,
            )  # fmt: skip
            builder.record(row, "tile", EPOCH_NS + begin + 10, tile_ns or dur - 20, slot=block)
    return assemble([builder])


def groups(trace: Trace) -> list[str]:
    """Names of the SMs' rows, in the order in which they stand."""
    tracks = list(draw(trace, ALL).tracks)
    rows = {(track.order, track.name) for track in tracks if track.name.startswith("SM ")}
    return [name for _, name in sorted(rows)]


def test_few_sms_of_many_launches_are_as_many_groups(real: Shown) -> None:
    sms = sorted(real.trace.launches["sm"].unique())
    assert len(sms) < real.trace.launches["block"].nunique()
    assert groups(real.trace) == [f"SM {sm}" for sm in sms]
    assert real.opened.complaints() == []
    assert real.result.misplaced == 0


def test_each_launch_of_an_sm_says_its_block(real: Shown) -> None:
    rows = real.opened.rows(
        "select track.name as sm, extract_arg(slice.arg_set_id, 'debug.block') as block, ts, dur "
        "from slice join track on track_id = track.id "
        "where category = 'launch' and track.name glob 'SM *'"
    )
    launches = real.trace.launches
    each = launches.groupby(["launch", "sm", "block"]).agg(
        begin=("begin_ns", "min"), end=("end_ns", "max")
    )
    known = [
        (f"SM {sm}", block, begin, end - begin)
        for (_, sm, block), begin, end in zip(each.index, each["begin"], each["end"], strict=True)
    ]
    assert [row[:3] for row in sorted(rows)] == [row[:3] for row in sorted(known)]
    # Its records are placed by the SM's clock alone, and may end after its closing.
    assert all(row[3] >= of[3] for row, of in zip(sorted(rows), sorted(known), strict=True))


def test_each_launch_of_a_warp_says_its_block(real: Shown) -> None:
    rows = real.opened.rows(f"select sm, block, ts from ({SLICES}) where category = 'warp'")
    launches = real.trace.launches
    sms = [f"SM {sm}" for sm in launches["sm"]]
    assert Counter(rows) == Counter(
        zip(sms, launches["block"].tolist(), launches["begin_ns"].tolist(), strict=True)
    )


def test_the_view_of_records_says_sm_and_block_of_each(real: Shown) -> None:
    records = real.trace.records
    records = records[records["kind"] != "counter"]
    sm = real.trace.launches["sm"].to_numpy()[records["launch_row"]]
    columns = [records[name].tolist() for name in ("block", "warp", "begin_ns")]
    known = zip(sm.tolist(), *columns, strict=True)
    assert real.records("sm", "block", "warp", "ts") == Counter(known)


def test_an_sm_of_one_block_is_named_after_both() -> None:
    trace = launched((1, 17, 12, 0, 100), (2, 17, 12, 200, 100), (1, 4, 3, 0, 100))
    assert groups(trace) == ["SM 4 (block 3)", "SM 17 (block 12)"]


def test_sms_stand_in_the_order_of_their_numbers() -> None:
    trace = launched(*((1, sm, 140 - sm, 0, 100) for sm in (30, 4, 111, 9)))
    assert [name.split(" (")[0] for name in groups(trace)] == ["SM 4", "SM 9", "SM 30", "SM 111"]


def test_blocks_at_once_on_an_sm_have_a_group_each_and_keep_their_durations(
    tmp_path: Path,
) -> None:
    # The second block lies within the time of the first.
    blocks = [
        (launch, 3, block, 1000 * launch + begin, dur)
        for launch in (1, 2)
        for block, begin, dur in ((3, 0, 900), (7, 50, 700))
    ]
    shown = show(launched(*blocks), tmp_path)
    assert groups(shown.trace) == ["SM 3 (block 3)", "SM 3 (block 7)"]
    assert shown.result.misplaced == 0
    rows = shown.opened.rows(f"select sm, warp, category, depth, dur, block from ({SLICES})")
    for sm, warp, category, depth, dur, block in rows:
        whole = {"SM 3 (block 3)": 900, "SM 3 (block 7)": 700}[sm]
        assert warp in ("loader w0", "consumer w1")
        if category == "warp":
            assert (depth, dur, block) == (0, whole, int(sm[-2]))
        else:
            assert (depth, dur) == (1, whole - 20)
    assert set(shown.records("sm", "block")) == {(3, 3), (3, 7)}


def test_blocks_at_once_that_change_are_counted_in_the_name(tmp_path: Path) -> None:
    trace = launched(
        (1, 3, 3, 0, 900), (1, 3, 7, 0, 900), (2, 3, 4, 1000, 900), (2, 3, 9, 1000, 900)
    )
    assert groups(trace) == ["SM 3 (1 of 2 blocks)", "SM 3 (2 of 2 blocks)"]
    shown = show(trace, tmp_path)
    rows = shown.opened.rows(f"select distinct sm, block from ({SLICES}) where category = 'warp'")
    one, two = groups(trace)
    assert set(rows) == {(one, 3), (one, 4), (two, 7), (two, 9)}
    assert shown.records("sm", "block", "slot") == {(3, b, b): 2 for b in (3, 4, 7, 9)}


def test_blocks_that_follow_each_other_in_a_launch_share_the_group_of_their_sm() -> None:
    trace = launched((1, 3, 3, 0, 900), (1, 3, 135, 950, 900), (1, 3, 267, 1850, 900))
    assert groups(trace) == ["SM 3"]
    assert {track.name for track in draw(trace, ALL).tracks} >= {"loader w0", "consumer w1"}


@pytest.mark.parametrize(
    "following", [(900, 1000), (100, 200)], ids=["overlaps", "lies within the first"]
)
def test_a_launch_that_begins_before_the_last_has_ended_is_beside_it(
    following: tuple[int, int], tmp_path: Path
) -> None:
    shown = show(launched((1, 0, 5, 0, 1000), (2, 0, 8, *following)), tmp_path)
    assert groups(shown.trace) == ["SM 0"]
    assert shown.result.misplaced == 0
    rows = shown.opened.rows(
        "select parent.name as launch, slice.name, slice.dur, parent.dur as whole, "
        "extract_arg(parent.arg_set_id, 'debug.block') as block from slice "
        "join slice as parent on parent.id = slice.parent_id "
        "where slice.name = 'tile' and slice.depth = 1"
    )
    dur = following[1]
    first, second = ("layer 1", "tile", 980, 1000, 5), ("layer 2", "tile", dur - 20, dur, 8)
    # On two warps each, and as the phase of the lead warp.
    assert Counter(rows) == {first: 3, second: 3}
    assert set(shown.records("block", "slot")) == {(5, 5), (8, 8)}


def test_a_record_that_left_the_track_of_its_launch_still_has_its_block(tmp_path: Path) -> None:
    builder = Builder()
    for number, block in ((1, 5), (2, 8)):
        begin = EPOCH_NS + number * LAUNCH_NS
        row = builder.launch(launch=number, block=block, begin_ns=begin, end_ns=begin + 1000)
        builder.record(row, "tile", begin + 100, 100)
        builder.record(row, "tile", begin + 150, 100)
    shown = show(assemble([builder]), tmp_path)
    assert shown.result.misplaced == 2
    assert shown.records("block", "dur") == {(5, 100): 2, (8, 100): 2}


@pytest.mark.parametrize(
    ("launches", "known"),
    [
        # A lane that the second launch has made, and what left the track of the third.
        (
            [(5, 0, 1000, [(100, 50)]), (8, 900, 1000, [(1000, 50)]),
             (13, 2000, 1000, [(2100, 100), (2150, 100)])],
            {(5, 50): 1, (8, 50): 1, (13, 100): 2},
        ),
        # At the very ns where the next launch begins.
        (
            [(5, 0, 1000, [(1000, 0)]), (8, 1000, 1000, [(1500, 1), (1000, 2)])],
            {(5, 0): 1, (8, 1): 1, (8, 2): 1},
        ),
        # Inside of two launches of one warp at once.
        (
            [(5, 0, 1000, [(100, 100), (150, 100)]), (8, 100, 1000, [(160, 90), (200, 90)])],
            {(5, 100): 2, (8, 90): 2},
        ),
    ],
    ids=["a lane of another launch", "where the next begins", "in two launches"],
)  # fmt: skip
def test_a_record_has_its_block_where_its_time_and_place_do_not_tell(
    launches: list[tuple[int, int, int, list[tuple[int, int]]]],
    known: dict[tuple[int, int], int],
    tmp_path: Path,
) -> None:
    builder = Builder()
    for number, (block, begin, dur, records) in enumerate(launches):
        begin_ns = EPOCH_NS + begin
        row = builder.launch(
            launch=number, layer=number, block=block, begin_ns=begin_ns, end_ns=begin_ns + dur
        )
        for at, lasts in records:
            builder.record(row, "tile", EPOCH_NS + at, lasts)
    assert show(assemble([builder]), tmp_path).records("block", "dur") == known


def test_a_counter_of_the_kernel_is_the_sms(tmp_path: Path) -> None:
    builder = Builder()
    for number, block in ((1, 5), (2, 8)):
        begin = EPOCH_NS + number * LAUNCH_NS
        row = builder.launch(launch=number, block=block, begin_ns=begin, end_ns=begin + 1000)
        builder.record(row, "depth", begin + 100, a0=number)
    shown = show(assemble([builder]), tmp_path)
    rows = shown.opened.rows(
        "select sm.name as sm, value from counter join track on track_id = track.id "
        "join track as sm on track.parent_id = sm.id order by ts"
    )
    assert rows == [("SM 0", 1.0), ("SM 0", 2.0)]


@pytest.mark.parametrize("sm", [0, 130])
def test_on_opening_the_first_sm_is_expanded_and_no_other(sm: int) -> None:
    (pattern,) = [
        str(command["args"][0])  # type: ignore[index]
        for command in startup_commands(First(sm=sm))
        if "SM" in str(command["args"]) and "Expand" in str(command["id"])
    ]
    opened = [f"SM {sm}", f"SM {sm} (block 12)", f"SM {sm} (2 of 2 blocks)"]
    closed = ["SM 1", f"SM {sm}0", f"SM {sm}0 (block 0)", "stalled warps: data"]
    assert [name for name in opened + closed if re.search(pattern, name)] == opened


def test_the_metadata_says_whose_phases_an_sm_shows(real: Shown) -> None:
    text = real.opened.value(
        "select str_value from metadata where name = 'cr-megatrace.phases_of_an_SM'"
    )
    roles = real.trace.launches["role"].astype(str).unique()
    assert any(text.startswith(f"spans of {role} w") for role in roles)
