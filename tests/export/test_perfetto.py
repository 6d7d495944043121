"""Exported traces, read back by Perfetto's own trace processor."""

from __future__ import annotations

import gzip
import itertools
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from megatrace.analysis import Trace
from megatrace.errors import ClockError, UsageError
from megatrace.export import ExportResult, PerfettoOptions, export_perfetto
from megatrace.export.encoder import Buffer, encode_sequence
from megatrace.export.slices import sequences
from megatrace.export.tracks import Track, Tracks, spread
from megatrace.export.viewer import sql_text
from megatrace.schema import Cause, Event, EventTable, Kind
from tests.export.pictures import NAMES, slices_of
from tests.export.trace_processor import OpenTrace
from tests.export.traces import (
    EPOCH_NS,
    HOST_EPOCH_NS,
    LAUNCH_NS,
    Builder,
    assemble,
    clock,
    host_event,
    small_trace,
)

ALL = PerfettoOptions(steps="all")
ON_WARPS = """
from slice join track on slice.track_id = track.id
join track as sm on track.parent_id = sm.id
where sm.name glob 'SM *' and slice.category is not 'warp'
"""


@dataclass(frozen=True)
class Exported:
    trace: Trace
    result: ExportResult
    opened: OpenTrace


def export(trace: Trace, path: Path, options: PerfettoOptions = ALL, **how: Any) -> Exported:
    result = export_perfetto(trace, path, options, **how)
    return Exported(trace, result, OpenTrace(path))


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    path = tmp_path_factory.mktemp("two") / "two.pftrace.gz"
    return export(small_trace(ranks=2), path, command="serve --model m")


def one_warp(*records: tuple[str, int, int], **launch: Any) -> Trace:
    builder = Builder()
    row = builder.launch(**launch)
    for event, begin, dur in records:
        builder.record(row, event, EPOCH_NS + begin, dur)
    return assemble([builder])


def of_warps(trace: Trace) -> pd.DataFrame:
    return trace.records[trace.records["kind"] != "counter"]


def test_the_trace_processor_has_no_complaint(two_ranks: Exported) -> None:
    assert two_ranks.opened.complaints() == []


def test_every_slice_that_was_announced_is_there(two_ranks: Exported) -> None:
    assert two_ranks.opened.value("select count() as n from slice") == two_ranks.result.slices
    assert two_ranks.opened.value("select count() as n from counter") == two_ranks.result.samples


def test_every_record_of_a_warp_is_a_slice_of_its_exact_duration(two_ranks: Exported) -> None:
    rows = two_ranks.opened.rows(f"select slice.name as name, slice.dur as dur {ON_WARPS}")
    records = of_warps(two_ranks.trace)
    assert Counter(rows) == Counter(
        zip(records["event"].astype(str), records["dur_ns"].tolist(), strict=True)
    )


def test_sums_by_name_are_exact(two_ranks: Exported) -> None:
    rows = two_ranks.opened.rows(
        f"select slice.name as name, sum(slice.dur) as total {ON_WARPS} group by slice.name"
    )
    records = of_warps(two_ranks.trace)
    sums = records.groupby(records["event"].astype(str))["dur_ns"].sum()
    assert dict(rows) == sums.to_dict()


def test_begin_times_of_the_first_rank_are_its_globaltimer(two_ranks: Exported) -> None:
    rows = two_ranks.opened.rows(
        "select slice.ts as ts from slice join track on track_id = track.id join track as sm "
        "on track.parent_id = sm.id join track as gpu on sm.parent_id = gpu.id "
        "where gpu.name = 'rank 0 GPU' and slice.category is not 'warp'"
    )
    records = of_warps(two_ranks.trace)
    mine = records[records["rank"] == 0]["begin_ns"]
    assert sorted(ts for (ts,) in rows) == sorted(mine.tolist())


def test_another_rank_is_placed_by_the_clock_models(two_ranks: Exported) -> None:
    first = {
        rank: two_ranks.opened.value(
            "select min(slice.ts) as ts from slice join track on track_id = track.id "
            f"where track.name = 'rank {rank} GPU' and slice.category = 'launch'"
        )
        for rank in (0, 1)
    }
    launches = two_ranks.trace.launches
    begins = launches.groupby("rank")["begin_ns"].min()
    assert first[0] == begins[0]
    assert first[1] == begins[1] - 1000


def test_warps_hang_below_sms_below_gpus(two_ranks: Exported) -> None:
    paths = two_ranks.opened.rows(
        "select gpu.name as gpu, sm.name as sm, warp.name as warp from track as warp "
        "join track as sm on warp.parent_id = sm.id "
        "join track as gpu on sm.parent_id = gpu.id where gpu.name = 'rank 1 GPU'"
    )
    warps = {path for path in paths if path[2] != "depth"}
    assert warps == {
        ("rank 1 GPU", f"SM {2 * block} (block {block})", warp)
        for block in range(3)
        for warp in ("loader w0", "consumer w1", "consumer w2", "storer w3")
    }


def test_steps_and_layers_are_on_the_gpus_own_row(two_ranks: Exported) -> None:
    rows = two_ranks.opened.rows(
        "select slice.category as category, slice.name as name from slice "
        "join track on track_id = track.id where track.name = 'rank 0 GPU' order by ts"
    )
    assert [name for category, name in rows if category == "step"] == ["step 1", "step 2", "step 3"]
    layers = [name for category, name in rows if category == "launch"]
    assert layers == [f"layer {i}" for _ in range(3) for i in range(4)]


def test_overlapping_layers_alternate_between_lanes_and_keep_their_durations(
    two_ranks: Exported,
) -> None:
    rows = two_ranks.opened.rows(
        "select slice.dur as dur, slice.track_id as lane from slice join track on "
        "track_id = track.id where track.name = 'rank 0 GPU' and category = 'launch' order by ts"
    )
    launches = two_ranks.trace.launches
    groups = launches[launches["rank"] == 0].groupby("launch")
    expected = (groups["end_ns"].max() - groups["begin_ns"].min()).sort_index()
    assert [dur for dur, _ in rows] == expected.tolist()
    assert all(a[1] != b[1] for a, b in itertools.pairwise(rows[:4]))


def test_phases_of_the_lead_warp_lie_in_the_launches_of_their_sm(two_ranks: Exported) -> None:
    rows = two_ranks.opened.rows(
        "select phase.name as name, launch.name as launch, launch.category as category "
        "from slice as phase join slice as launch on phase.parent_id = launch.id "
        "where phase.category = 'phase'"
    )
    assert {category for _, _, category in rows} == {"launch"}
    phases = two_ranks.opened.value("select count() as n from slice where category = 'phase'")
    assert len(rows) == phases == 2 * 3 * 4 * 3 * 3  # ranks, steps, layers, blocks, phases


def test_every_arrow_joins_a_producer_and_a_wait_of_its_slot(two_ranks: Exported) -> None:
    opened = two_ranks.opened
    assert opened.value("select count() as n from flow") == two_ranks.result.flows
    rows = opened.rows(
        sql_text()
        + "select p.name as made, w.name as wait, extract_arg(p.arg_set_id, 'debug.slot') as a, "
        "extract_arg(w.arg_set_id, 'debug.slot') as b, "
        "p.ts < w.ts + max(w.dur, 1) as before "
        "from megatrace_edges join slice as p on p.id = producer_id "
        "join slice as w on w.id = wait_id"
    )
    assert {(made, wait) for made, wait, *_ in rows} == {("load", "full"), ("done", "others")}
    assert all(a == b for _, _, a, b, _ in rows)
    assert all(before for *_, before in rows)


def test_arrows_stay_within_what_a_slot_names(two_ranks: Exported) -> None:
    rows = two_ranks.opened.rows(
        sql_text() + "select made.name as name, made.rank = wait.rank as gpu, "
        "made.block = wait.block as block from megatrace_edges "
        "join megatrace_records as made on made.id = producer_id "
        "join megatrace_records as wait on wait.id = wait_id"
    )
    assert all(gpu for _, gpu, _ in rows)
    # A stage is its block's own; a layer is the whole GPU's.
    assert all(block for name, _, block in rows if name == "load")
    assert not all(block for name, _, block in rows if name == "done")


def test_a_publish_to_a_peer_reaches_another_rank(tmp_path: Path) -> None:
    peer = EventTable(
        "peer",
        (
            Event(16, "send", Kind.PUBLISH, "A part is on its way.", edge="part"),
            Event(17, "recv", Kind.WAIT, "It is not there.", cause=Cause.PEER, edge="part"),
        ),
    )
    sender, receiver = Builder(0), Builder(1)
    for builder, event, begin, dur in ((sender, "send", 500, 0), (receiver, "recv", 1200, 400)):
        builder.record(
            builder.launch(begin_ns=EPOCH_NS + 1000 * builder.rank),
            event,
            EPOCH_NS + begin,
            dur,
            table=peer,
            slot=3,
        )
    trace = replace(assemble([sender, receiver]), tables={0: peer, 1: peer})
    done = export(trace, tmp_path / "t.pftrace")
    assert done.result.flows == 1
    ends = done.opened.rows(
        "select a.name as a, b.name as b from flow join slice as a on slice_out = a.id "
        "join slice as b on slice_in = b.id"
    )
    assert sorted(ends[0]) == ["recv", "send"]


def test_a_hang_names_the_wait_it_is_in(tmp_path: Path) -> None:
    builder = Builder()
    row = builder.launch(end_ns=-1, complete=False)
    builder.record(row, "hang", EPOCH_NS + 50, a0=25, slot=2)
    done = export(assemble([builder]), tmp_path / "t.pftrace")
    rows = done.opened.rows(
        "select slice.name as name, extract_arg(slice.arg_set_id, 'debug.waits_in') as wait, "
        f"extract_arg(slice.arg_set_id, 'debug.slot') as slot {ON_WARPS}"
    )
    assert rows == [("HANG", "full", 2)]


def test_host_steps_are_above_their_gpu_and_launch_its_steps(two_ranks: Exported) -> None:
    rows = two_ranks.opened.rows(
        "select host.name as name, gpu.name as step from flow "
        "join slice as host on flow.slice_out = host.id "
        "join slice as gpu on flow.slice_in = gpu.id "
        "where host.category = 'host'"
    )
    assert Counter(rows) == Counter(
        ("verify", f"step {number}") for number in (1, 2, 3) for _rank in (0, 1)
    )
    accepted = two_ranks.opened.rows(
        "select value from counter join track on track_id = track.id "
        "where track.name = 'accepted tokens' order by ts"
    )
    assert [value for (value,) in accepted] == [6.0, 6.0, 7.0, 7.0, 8.0, 8.0]


def test_the_trace_says_what_it_is(two_ranks: Exported) -> None:
    rows = two_ranks.opened.rows("select name, str_value from metadata where name glob 'cr-mega*'")
    facts = dict(rows)
    assert facts["cr-megatrace.loss"] == "nothing lost"
    assert facts["cr-megatrace.clock"] == "GPU clock ±1,240 ns, host ±0.6 us"
    assert facts["cr-megatrace.command"] == "serve --model m"
    assert facts["cr-megatrace.device"] == "rank 0: cuda, rank 1: cuda"
    shown = two_ranks.opened.value(
        "select slice.name as name from slice join track on track_id = track.id "
        "where track.name = 'about this trace'"
    )
    assert shown == "steps 1, 2, 3; nothing lost; GPU clock ±1,240 ns, host ±0.6 us"


def test_the_view_of_records_names_the_cause_of_each_stall(two_ranks: Exported) -> None:
    by_cause = two_ranks.opened.rows(
        sql_text() + "select cause, count() as stalls, sum(dur) as ns from megatrace_records "
        "where cause is not null group by cause"
    )
    records = two_ranks.trace.records
    stalls = records[records["cause"].astype(str) != ""]
    expected = stalls.groupby(stalls["cause"].astype(str))["dur_ns"].agg(["count", "sum"])
    assert {cause: count for cause, count, _ in by_cause} == expected["count"].to_dict()
    assert {cause: ns for cause, _, ns in by_cause} == expected["sum"].to_dict()


def test_an_overlap_gets_a_lane_and_keeps_both_durations(tmp_path: Path) -> None:
    trace = one_warp(("tile", 100, 100), ("tile", 150, 100), ("mark", 160, 0))
    done = export(trace, tmp_path / "t.pftrace")
    assert done.result.misplaced == 1
    assert "1 overlapping slices" in done.result.sentence()
    rows = done.opened.rows(f"select slice.name as name, slice.dur as dur {ON_WARPS} order by ts")
    assert rows == [("tile", 100), ("tile", 100), ("mark", 0)]


def test_abutting_and_equal_slices_keep_their_durations(tmp_path: Path) -> None:
    trace = one_warp(
        ("tile", 100, 50), ("tile", 150, 50), ("mark", 150, 0), ("qkv", 100, 100), ("tile", 200, 1)
    )
    done = export(trace, tmp_path / "t.pftrace")
    rows = done.opened.rows(
        f"select slice.name as n, slice.dur as dur, depth {ON_WARPS} order by ts, depth"
    )
    assert rows == [
        ("qkv", 100, 1),
        ("tile", 50, 2),
        ("tile", 50, 2),
        ("mark", 0, 3),
        ("tile", 1, 1),
    ]


def test_an_unfinished_span_lasts_until_its_launch_ends_and_says_so(tmp_path: Path) -> None:
    trace = one_warp(("qkv", 1000, -1), ("tile", 1100, 50))
    done = export(trace, tmp_path / "t.pftrace")
    rows = done.opened.rows(
        "select slice.name as n, slice.dur as dur, "
        f"extract_arg(slice.arg_set_id, 'debug.unfinished') as open {ON_WARPS} order by ts"
    )
    assert rows == [("qkv", LAUNCH_NS - 1000, 1), ("tile", 50, None)]
    assert done.result.unfinished == 1


def test_a_launch_without_a_closing_ends_with_its_last_sign(tmp_path: Path) -> None:
    trace = one_warp(("qkv", 1000, -1), ("tile", 1100, 50), end_ns=-1, complete=False)
    done = export(trace, tmp_path / "t.pftrace")
    dur = done.opened.value(f"select slice.dur as dur {ON_WARPS} and slice.name = 'qkv'")
    assert dur == 150


def test_without_clock_samples_the_host_is_left_out_aloud(tmp_path: Path) -> None:
    trace = small_trace(clocks={0: clock(0, host=False)})
    done = export(trace, tmp_path / "t.pftrace")
    assert done.result.host_error_ns is None
    assert any("GPU only" in phrase for phrase in done.result.left_out)
    assert "no host clock" in done.result.sentence()
    assert done.opened.value("select count() as n from slice where category = 'host'") == 0


def test_ranks_without_a_common_clock_are_not_merged(tmp_path: Path) -> None:
    trace = small_trace(ranks=2, clocks={0: clock(0), 1: clock(1, host=False)})
    with pytest.raises(ClockError, match="rank 1") as caught:
        export_perfetto(trace, tmp_path / "t.pftrace", ALL)
    assert "one rank" in caught.value.hint
    assert list(tmp_path.iterdir()) == []


def test_a_capture_of_the_host_alone_is_shown_on_its_own_clock(tmp_path: Path) -> None:
    host = pd.DataFrame([host_event("decode", 0, 4, HOST_EPOCH_NS, HOST_EPOCH_NS + 500)])
    done = export(assemble([Builder()], host=host, clocks={}), tmp_path / "t.pftrace")
    rows = done.opened.rows("select name, ts, dur from slice where category = 'host'")
    assert rows == [("decode", HOST_EPOCH_NS, 500)]
    assert done.opened.complaints() == []
    assert done.result.sentence() == ("9 slices of step 4; nothing lost; the host's own clock")


def test_launches_without_records_are_shown(tmp_path: Path) -> None:
    builder = Builder()
    builder.launch(layer=3)
    done = export(assemble([builder]), tmp_path / "t.pftrace")
    rows = done.opened.rows("select name, dur from slice where category = 'launch'")
    assert rows == [("layer 3", LAUNCH_NS)] * 2
    assert done.opened.complaints() == []


def test_the_host_build_is_named_as_such(tmp_path: Path) -> None:
    trace = replace(one_warp(("tile", 5, 5)), devices={0: "cpu"})
    done = export(trace, tmp_path / "t.pftrace")
    names = [name for (name,) in done.opened.rows("select name from track where parent_id is null")]
    assert "rank 0 GPU (host build, device=cpu)" in names


def test_ranks_stand_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    done = export(small_trace(ranks=11, steps=1, layers=1, blocks=1), tmp_path / "t.pftrace")
    names = [
        name
        for (name,) in done.opened.rows("select distinct name from track where name glob 'rank *'")
    ]
    # The viewer sorts roots by name.
    assert sorted(names) == [f"rank {n:02} {what}" for n in range(11) for what in ("CPU", "GPU")]


def test_by_default_one_step_is_shown_and_the_rest_is_said(tmp_path: Path) -> None:
    done = export(small_trace(steps=5), tmp_path / "t.pftrace", PerfettoOptions())
    assert len(done.result.steps) == 1
    assert "4 of 5 steps" in done.result.left_out
    assert "left out: 4 of 5 steps" in done.result.sentence()


def test_no_flows_means_no_flows(tmp_path: Path) -> None:
    done = export(small_trace(), tmp_path / "t.pftrace", replace(ALL, flows=False))
    assert done.result.flows == 0
    assert done.opened.value("select count() as n from flow") == 0


def test_arrows_beyond_the_limit_are_said(tmp_path: Path) -> None:
    result = export_perfetto(small_trace(), tmp_path / "t.pftrace", replace(ALL, max_flows=5))
    assert any(phrase.endswith("arrows") for phrase in result.left_out)


def test_lost_lines_are_in_the_title(tmp_path: Path) -> None:
    done = export(small_trace(lines_lost=7, complete=False), tmp_path / "t.pftrace")
    title = done.opened.value(
        "select slice.name as name from slice join track on track_id = track.id "
        "where track.name = 'about this trace'"
    )
    assert "at least 7 of 107 lines lost" in title
    assert "cut short" in title


def test_progress_ends_at_the_total(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    result = export_perfetto(
        small_trace(), tmp_path / "t.pftrace", ALL, progress=lambda *now: seen.append(now)
    )
    assert seen[-1] == (result.slices + result.samples,) * 2


def test_the_compressed_file_holds_the_plain_one(tmp_path: Path) -> None:
    trace = small_trace()
    plain = export_perfetto(trace, tmp_path / "a.pftrace", ALL).path
    packed = export_perfetto(trace, tmp_path / "a.pftrace.gz", ALL).path
    assert gzip.decompress(packed.read_bytes()) == plain.read_bytes()


def test_a_name_that_is_no_trace_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"a\.json"):
        export_perfetto(small_trace(), tmp_path / "a.json")


def test_many_slices_come_back_exactly(tmp_path: Path) -> None:
    rng = np.random.default_rng(11)
    tracks, per = 300, 500
    dur = rng.integers(1, 3000, (tracks, per))
    gap = rng.integers(0, 500, (tracks, per))
    begin = np.cumsum(dur + gap, axis=1) - dur + EPOCH_NS
    track = np.repeat(np.arange(tracks), per)
    tree = Tracks()
    for index in range(tracks):
        tree.add(Track(f"warp {index}"))
    slices, _ = spread(
        slices_of(
            list(zip(track.tolist(), begin.ravel().tolist(), dur.ravel().tolist(), strict=True))
        ),
        tree,
    )
    path = tmp_path / "many.pftrace"
    parts: list[Buffer] = [tree.descriptors()]
    for number, part in enumerate(sequences(slices), 2):
        parts += encode_sequence(number, part, NAMES)
    path.write_bytes(b"".join(parts))
    opened = OpenTrace(path)
    assert opened.complaints() == []
    total = opened.rows("select count() as n, sum(dur) as dur, max(depth) as depth from slice")
    assert total == [(tracks * per, int(dur.sum()), 0)]
    assert opened.rows(
        "select ts, dur from slice join track on track_id = track.id "
        "where track.name = 'warp 123' order by ts"
    ) == list(zip(begin[123].tolist(), dur[123].tolist(), strict=True))
