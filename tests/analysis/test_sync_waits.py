"""Who waited for whom, and for how long."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from megatrace.analysis import views
from megatrace.analysis.waits import FLIGHT_NS
from megatrace.schema import Cause, Event, EventTable, Kind
from tests.analysis.small import MUSE, STREAM, US, Records, build, real, trace_of
from tests.build import MS, Build, Launch, point, stall


def waits(folder: Path, *launches: Records, **facts: Any) -> list[dict[str, Any]]:
    """The rows of the table, of three blocks of one warp unless told otherwise."""
    made = build(*launches, **{"blocks": 3, **facts})
    rows: list[dict[str, Any]] = views.sync_waits(trace_of(folder, made)).to_dict("records")
    return rows


def test_a_wait_was_for_the_block_that_published_its_slot(tmp_path: Path) -> None:
    rows = waits(tmp_path, {0: [stall("input", 5 * US, 4 * US, 2)], 2: [point("done", 8 * US, 2)]})
    (row,) = rows
    assert (row["block"], row["from_block"], row["from_sm"], row["from_warp"]) == (0, 2, 2, 0)
    assert (row["dur_ns"], row["from_rank"], row["edge"], row["slot"]) == (4_000, 0, "sums", 2)
    assert abs(row["delay_ns"] - 1_000) < 32
    assert row["publish_ns"] == row["begin_ns"] + row["dur_ns"] - row["delay_ns"]


def test_of_several_warps_that_publish_a_slot_the_last_ended_the_wait(tmp_path: Path) -> None:
    body = {
        0: [stall("input", 5 * US, 10 * US, 1)],
        2: [point("done", 7 * US, 1)],
        3: [point("done", 14 * US, 1)],
        4: [point("done", 30 * US, 1)],
    }
    (row,) = waits(tmp_path, body, warps=2)
    assert (row["from_block"], row["from_warp"]) == (1, 1)


def test_a_publish_long_before_the_wait_did_not_end_it(tmp_path: Path) -> None:
    begin = 10 * US + FLIGHT_NS * 2
    body = {0: [stall("input", begin, 4 * US, 1)], 1: [point("done", 2 * US, 1)]}
    (row,) = waits(tmp_path, body)
    unknown = ("from_rank", "from_block", "from_sm", "from_warp", "publish_ns", "delay_ns")
    assert [row[name] for name in unknown] == [-1] * 6


def test_a_publisher_that_was_not_recorded_is_not_known(tmp_path: Path) -> None:
    body = {0: [stall("input", 5 * US, 4 * US, 2)], 1: [point("done", 8 * US, 1)]}
    assert [row["from_block"] for row in waits(tmp_path, body)] == [-1]


def test_a_wait_that_did_not_block_and_a_wait_for_a_prefetch_are_no_rows(tmp_path: Path) -> None:
    body = {
        0: [stall("input", 5 * US, 0, 1), stall("arrived", 9 * US, US, 1), stall("full", 20, 9)],
        1: [point("done", 4 * US, 1), point("issue", US, 1)],
    }
    assert waits(tmp_path, body) == []


def test_a_publish_in_the_launch_before_can_end_a_wait(tmp_path: Path) -> None:
    """As under dependent launch, where the next launch has begun already."""
    made = Build(blocks=2, ghz=2.0)
    for number in range(4):
        for block in range(2):
            begin = MS + 100_000 * number - 60_000 * (block == 0)
            body = {
                (1, 0): [stall("input", 10 * US, 45 * US, 9)],
                (0, 1): [point("done", 94 * US, 9)],
            }.get((number, block), [])
            launch = Launch(number, begin, begin + 99_000, records=body, layer=number)
            made.add(block, launch)
    (row,) = views.sync_waits(trace_of(tmp_path, made)).to_dict("records")
    assert (row["launch_no"], row["from_block"]) == (1, 1)


def after_the_end(us: float) -> Records:
    """A wait that ends before its publish is written down: the data was out already."""
    late = point("done", int((9 + us) * US), 2)
    return {0: [stall("input", 5 * US, 4 * US, 2)], 2: [late]}


def test_a_publish_written_down_just_after_the_wait_ended_it_all_the_same(tmp_path: Path) -> None:
    (row,) = waits(tmp_path, after_the_end(0.5))
    assert (row["from_block"], row["delay_ns"]) == (2, -500)


def test_a_publish_long_after_the_wait_did_not_end_it(tmp_path: Path) -> None:
    (row,) = waits(tmp_path, after_the_end(1 + 2 * FLIGHT_NS / 1000))
    assert row["from_block"] == -1


def test_in_the_host_build_a_publish_of_the_same_launch_is_near_enough(tmp_path: Path) -> None:
    (row,) = waits(tmp_path, after_the_end(1 + 2 * FLIGHT_NS / 1000), device=0)
    assert row["from_block"] == 2


def test_in_the_host_build_another_launchs_publish_is_not(tmp_path: Path) -> None:
    body = {2: [point("done", 49 * US, 2)]}, {0: [stall("input", 5 * US, 4 * US, 2)]}
    (row,) = waits(tmp_path, *body, device=0)
    assert row["from_block"] == -1


TABLE = EventTable(
    "peers",
    (
        Event(22, "row", Kind.WAIT, "A row.", cause=Cause.PEER, edge="rows"),
        Event(23, "sent", Kind.PUBLISH, "A row is out.", edge="rows"),
    ),
)


def two_ranks(*, clocked: bool) -> list[Build]:
    """Rank 0 waits for a row that rank 1 sends; their globaltimers are 7 ms apart."""
    wait = stall("row", 5 * US, 10 * US, 3, table=TABLE)
    sent = point("sent", 13 * US, 3, table=TABLE)
    own = point("sent", 4 * US, 3, table=TABLE)
    made = []
    for rank, body in enumerate([[own, wait], [sent]]):
        ahead = 7 * MS * rank
        one = Build(rank=rank, table=TABLE, ghz=2.0, host_offset_ns=500 * MS - ahead)
        for number in range(4):
            at = MS + ahead + 100_000 * number
            one.add(0, Launch(number, at, at + 50_000, records=[] if number else body))
        for tick in range(5 * clocked):
            one.sample_clock(ahead + tick * MS, round_trip_ns=200)
        made.append(one)
    return made


def test_a_wait_for_a_peer_was_for_the_rank_that_sent_last(tmp_path: Path) -> None:
    frame = views.sync_waits(trace_of(tmp_path, *two_ranks(clocked=True)))
    (row,) = frame.to_dict("records")
    assert (row["rank"], row["from_rank"]) == (0, 1)
    assert abs(row["delay_ns"] - 2_000) < 500


def test_without_a_common_clock_nobody_says_which_rank(tmp_path: Path) -> None:
    frame = views.sync_waits(trace_of(tmp_path, *two_ranks(clocked=False)))
    assert frame["from_rank"].tolist() == [-1]


def test_where_every_block_is_recorded_every_wait_knows_who_ended_it(tmp_path: Path) -> None:
    out = tmp_path / "run.mtr"
    record = [sys.executable, "-m", "megatrace", "record", "--every", "1", "-o", str(out), "--"]
    program = [sys.executable, str(STREAM.parent / "run.py"), "--target", "host"]
    subprocess.run(
        [*record, *program, "--steps", "2", "--launches", "2"], check=True, capture_output=True
    )
    frame = views.sync_waits(real(out))
    assert len(frame) > 0
    assert (frame["from_block"] == frame["slot"]).all()
    assert (frame["from_warp"] == 1).all()


def test_two_recorded_sms_of_the_megakernel_know_hardly_any_publisher_but_of_row_sums() -> None:
    """Those are of few blocks; what else is waited for comes from all SMs."""
    frame = views.sync_waits(real(MUSE))
    assert len(frame) > 700
    sums = frame["edge"] == "row_sum"
    assert (frame.loc[~sums, "from_block"] == -1).mean() > 0.9
    known = frame[frame["from_block"] >= 0]
    assert set(known["from_sm"]) == {0, 1}
    assert (frame["dur_ns"] > 0).all()


def test_where_the_example_recorded_the_publisher_it_is_that_block() -> None:
    """A slot of its hand-off is the block that publishes it."""
    frame = views.sync_waits(real(STREAM))
    known = frame[frame["from_block"] >= 0]
    assert len(known) > 0
    assert (known["from_block"] == known["slot"]).all()
    assert (known["from_warp"] == 1).all()
