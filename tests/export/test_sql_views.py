"""The SQL modules in Perfetto's own trace processor, against the tables of the capture."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from megatrace.analysis import Trace, decode, views
from megatrace.analysis.columns import TABLES
from megatrace.capture.reader import open_capture
from megatrace.export import PerfettoOptions, export_perfetto
from megatrace.export.select import Steps
from megatrace.export.viewer import sql_package, sql_text
from megatrace.schema import Cause, Event, EventTable, Kind
from megatrace.schema.processes import number_of
from tests.build import demo, write
from tests.export.trace_processor import OpenTrace
from tests.export.traces import EPOCH_NS, LAUNCH_NS, Builder, assemble, small_trace
from tests.house.tree import ROOT

CAPTURES = ("tests/muse/h200.mtr", "examples/01_trace_a_kernel/h200.mtr")
VIEWS = {
    "layer_times": "launch_times",
    "stalls": "stall_classes",
    "prefetch": "prefetch_timing",
    "sync_waits": "sync_waits",
}
"""View, without ``megatrace_``, which is also its module -> table."""
PROCESSES = {(0, 1), (1, 1), (0, 2), (1, 2)}
OWN_CLOCK = {"begin_ns", "end_ns", "issue_ns", "use_ns", "publish_ns", "delay_ns"}
"""Columns that say when, on the clock of the rank; the trace has one axis for all."""


@dataclass(frozen=True)
class Both:
    """A trace and what the trace processor made of its export."""

    trace: Trace
    opened: OpenTrace

    def view(self, name: str, columns: list[str]) -> Counter[tuple[Any, ...]]:
        return Counter(
            self.opened.rows(
                f"include perfetto module megatrace.{name}; "
                f"select {', '.join(f'{of} as c{i}' for i, of in enumerate(columns))} "
                f"from megatrace_{name}"
            )
        )

    def table(self, name: str) -> pd.DataFrame:
        make: Callable[[Trace], pd.DataFrame] = getattr(views, VIEWS[name])
        return make(self.trace)


def both(trace: Trace, path: Path, steps: Steps = "all") -> Both:
    export_perfetto(trace, path, PerfettoOptions(steps=steps))
    return Both(trace, OpenTrace(path, sql_package()))


def rows_of(table: pd.DataFrame) -> Counter[tuple[Any, ...]]:
    columns = (table[name].tolist() for name in table)
    return Counter(zip(*columns, strict=True))


@pytest.fixture(scope="module", params=CAPTURES)
def real(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Both:
    with open_capture(ROOT / request.param) as capture:
        trace = decode(capture)
    return both(trace, tmp_path_factory.mktemp("sql") / "run.pftrace")


@pytest.mark.parametrize("name", VIEWS)
def test_a_view_is_the_table_of_a_real_capture(real: Both, name: str) -> None:
    table = real.table(name)
    assert len(table)
    assert real.view(name, list(table)) == rows_of(table)
    assert real.opened.complaints() == []


def test_a_view_of_one_step_is_that_part_of_the_table(tmp_path: Path) -> None:
    with open_capture(ROOT / CAPTURES[0]) as capture:
        trace = decode(capture)
    shown = both(trace, tmp_path / "run.pftrace", steps=[2])
    for name in VIEWS:
        table = shown.table(name)
        assert shown.view(name, list(table)) == rows_of(table[table["step"] == 2]), name


@pytest.mark.parametrize("name", VIEWS)
def test_of_other_ranks_all_but_the_times_on_their_own_clock_agree(
    tmp_path: Path, name: str
) -> None:
    shown = both(small_trace(ranks=2), tmp_path / "two.pftrace")
    table = shown.table(name)
    columns = [column for column in table if column not in OWN_CLOCK]
    assert shown.view(name, columns) == rows_of(table[columns])


def test_a_second_process_of_each_rank_is_told_apart_in_views_as_in_tables(tmp_path: Path) -> None:
    builds = demo(ranks=2) + demo(ranks=2, steps=2, tiles=6)
    for rank, again in enumerate(builds[2:]):
        again.rank = number_of(rank, 2)
    with open_capture(write(tmp_path / "twice.mtr", *builds)) as capture:
        trace = decode(capture)
    shown = both(trace, tmp_path / "twice.pftrace")
    for name in VIEWS:
        table = shown.table(name)
        assert set(table[["rank", "process"]].itertuples(index=False, name=None)) == PROCESSES
        columns = [column for column in table if column not in OWN_CLOCK]
        assert shown.view(name, columns) == rows_of(table[columns]), name
    gpus = shown.opened.rows("select name as c0 from track where name glob 'rank*GPU*'")
    assert set(gpus) == {(f"rank {name} GPU",) for name in ("0", "1", "0#2", "1#2")}


def test_sums_over_a_launch_do_not_mix_the_processes_of_a_rank(tmp_path: Path) -> None:
    builds = demo() + demo(tiles=6)
    builds[1].rank = number_of(0, 2)
    with open_capture(write(tmp_path / "twice.mtr", *builds)) as capture:
        trace = decode(capture)
    shown = both(trace, tmp_path / "twice.pftrace")
    sums = shown.opened.rows(
        "include perfetto module megatrace.stalls; "
        "select rank, process, launch_no, round(sum(warp_us) * 1000) as ns, "
        "round(sum(percent)) as percent "
        "from megatrace_stalls_by_layer group by rank, process, launch_no"
    )
    times = views.launch_times(trace)
    spent = times["dur_ns"] * times["warps_seen"]
    told = zip(times["rank"], times["process"], times["launch_no"], spent, strict=True)
    assert set(sums) == {(*key, 100) for key in told}
    late = shown.opened.rows(
        "include perfetto module megatrace.prefetch; "
        "select process, sum(prefetches) as many from megatrace_late_prefetches group by process"
    )
    timing = views.prefetch_timing(trace)
    assert dict(late) == timing[timing["verdict"] == "late"].groupby("process").size().to_dict()


def test_a_launch_that_lost_its_end_is_told_as_the_tables_tell_it(tmp_path: Path) -> None:
    builder = Builder()
    whole = builder.launch(warp=0)
    cut = builder.launch(warp=1, role="consumer", end_ns=-1, complete=False, lost_lines=3)
    builder.record(whole, "space", EPOCH_NS + 100, 700)
    builder.record(cut, "others", EPOCH_NS + 200, 900, slot=3)
    shown = both(assemble([builder]), tmp_path / "cut.pftrace")
    for name in VIEWS:
        table = shown.table(name)
        assert shown.view(name, list(table)) == rows_of(table), name
    classes = shown.view("stalls", ["warp", "class"])
    assert (1, "unknown") in classes


def test_what_came_in_the_wrong_order_is_told_as_the_tables_tell_it(tmp_path: Path) -> None:
    """A user that asked before the prefetch, a publish seen after its wait's end."""
    builder = Builder()
    warps = [builder.launch(warp=warp) for warp in range(2)]
    builder.record(warps[0], "load", EPOCH_NS + 500, slot=1)
    builder.record(warps[1], "full", EPOCH_NS + 300, 400, slot=1)
    builder.record(warps[1], "others", EPOCH_NS + 2000, 500, slot=3)
    builder.record(warps[0], "done", EPOCH_NS + 2530, slot=3)
    shown = both(assemble([builder]), tmp_path / "order.pftrace")
    for name in VIEWS:
        table = shown.table(name)
        assert shown.view(name, list(table)) == rows_of(table), name
    assert shown.view("prefetch", ["use_ns - issue_ns", "late_ns"]) == {(-200, 400): 1}
    assert shown.view("sync_waits", ["delay_ns", "from_warp"]) == {(-30, 0): 1}


def test_events_of_one_name_and_two_meanings_keep_their_edges(tmp_path: Path) -> None:
    tables = {
        rank: EventTable(
            edge,
            (
                Event(16, "send", Kind.PUBLISH, "It is on its way.", edge=edge),
                Event(17, "recv", Kind.WAIT, "Not there.", cause=Cause.INPUT, edge=edge),
            ),
        )
        for rank, edge in enumerate(("part", "whole"))
    }
    builders = [Builder(rank) for rank in tables]
    for builder in builders:
        launch = builder.launch(begin_ns=EPOCH_NS + 1000 * builder.rank)
        for event, begin, dur in (("send", 1500, 0), ("recv", 1200, 400)):
            at = EPOCH_NS + 1000 * builder.rank + begin
            builder.record(launch, event, at, dur, table=tables[builder.rank], slot=3)
    trace = replace(assemble(builders), tables=tables)
    shown = both(trace, tmp_path / "two.pftrace")
    assert shown.view("sync_waits", ["rank", "edge"]) == {(0, "part"): 1, (1, "whole"): 1}


@pytest.mark.parametrize("drawn_on", [None, 7, 2], ids=["not drawn", "elsewhere", "there"])
def test_the_sm_of_a_publisher_is_told_wherever_its_other_launches_are(
    drawn_on: int | None, tmp_path: Path
) -> None:
    builder = Builder()
    row = builder.launch(launch=1, step=1, layer=0, block=3, sm=2, warp=3, role="storer")
    builder.record(row, "done", EPOCH_NS + 19000, slot=0)
    at = EPOCH_NS + LAUNCH_NS
    later = {"launch": 2, "step": 2, "layer": 1, "warp": 1, "role": "consumer"}
    row = builder.launch(**later, block=9, sm=1, begin_ns=at - 1500, end_ns=at + 5000)
    builder.record(row, "others", at - 1400, 600, slot=0, a0=3)
    if drawn_on is not None:
        builder.launch(**later, block=3, sm=drawn_on, begin_ns=at, end_ns=at + 5000)
    shown = both(assemble([builder]), tmp_path / "run.pftrace", steps=[2])
    columns = ["from_block", "from_sm"]
    assert shown.view("sync_waits", columns) == {(3, 2): 1}
    assert rows_of(shown.table("sync_waits")[columns]) == {(3, 2): 1}


def test_times_of_the_host_build_get_no_verdict(tmp_path: Path) -> None:
    trace = replace(small_trace(steps=1, layers=1), devices={0: "cpu"})
    shown = both(trace, tmp_path / "cpu.pftrace")
    assert set(shown.view("prefetch", ["verdict"])) == {("cpu",)}
    gpu = (
        "include perfetto module megatrace.tracks; select distinct is_cpu from megatrace_gpu_track"
    )
    assert shown.opened.rows(gpu) == [(1,)]


def test_a_trace_without_a_kernel_gives_empty_views(tmp_path: Path) -> None:
    shown = both(assemble([Builder()], clocks={}), tmp_path / "none.pftrace")
    for name in VIEWS:
        assert not shown.view(name, ["rank", "launch_no"]), name


def test_stalls_by_layer_add_up_to_the_time_of_all_warps(real: Both) -> None:
    rows = real.opened.rows(
        "include perfetto module megatrace.stalls; "
        "select launch_no, sum(warp_us) as us, sum(percent) as percent "
        "from megatrace_stalls_by_layer group by rank, launch_no"
    )
    times = views.launch_times(real.trace)
    for (launch, us, percent), dur, warps in zip(
        rows, times["dur_ns"], times["warps_seen"], strict=True
    ):
        assert us == pytest.approx(dur * warps / 1e3), launch
        assert percent == pytest.approx(100, abs=0.5)


def test_arrows_are_the_rows_of_the_tables(real: Both) -> None:
    """Each arrow from a publish is a sync wait's, each from a prefetch is a first use."""
    rows = real.opened.rows(
        "include perfetto module megatrace.records; include perfetto module megatrace.sync_waits; "
        "include perfetto module megatrace.prefetch; "
        "select made.ts, made.block, wait.ts as began, sync.publish_ns, sync.from_block, "
        "prefetch.use_ns from megatrace_edges "
        "join megatrace_records as made on made.id = producer_id "
        "join megatrace_records as wait on wait.id = wait_id "
        "left join megatrace_sync_waits as sync on sync.id = wait_id "
        "left join megatrace_prefetch as prefetch on prefetch.id = producer_id"
    )
    assert rows
    for made, block, began, published, from_block, used in rows:
        if used is None:
            assert (published, from_block) == (made, block)
        else:
            assert used == began
    assert any(used is not None for *_, used in rows)


def test_one_text_of_all_modules_is_for_a_viewer_without_packages(real: Both) -> None:
    alone = sql_text()
    assert "INCLUDE" not in alone.upper()
    counted = real.opened.value(alone + "select count() as n from megatrace_stalls")
    assert counted == len(views.stall_classes(real.trace))


@pytest.mark.parametrize("path", sorted(sql_package().glob("*.sql")), ids=lambda path: path.stem)
def test_every_view_and_column_says_what_it_is(path: Path) -> None:
    lines = path.read_text().splitlines()
    assert lines[0].startswith("-- ")
    opened = [i for i, line in enumerate(lines) if re.match("CREATE.*(VIEW|TABLE)", line)]
    assert opened
    for begin in opened:
        assert lines[begin - 1].startswith("-- "), lines[begin]
        end = lines.index(") AS", begin)
        columns = [i for i in range(begin + 1, end) if not lines[i].strip().startswith("--")]
        assert columns
        for at in columns:
            assert re.fullmatch(r"  [a-z_]+ [A-Z]+(\([a-z.]+\))?,?", lines[at]), lines[at]
            assert lines[at - 1].startswith("  -- "), lines[at]


@pytest.mark.parametrize("name", VIEWS)
def test_a_view_has_the_columns_of_its_table_and_says_their_units(name: str) -> None:
    text = (sql_package() / f"{name}.sql").read_text()
    for column in TABLES[VIEWS[name]].columns:
        (doc,) = re.findall(rf"((?:  -- .*\n)+)  {column.name} [A-Z]", text)[:1]
        if column.unit == "ns":
            assert "ns" in doc.split() or "ns," in doc or "ns;" in doc or "ns." in doc, column.name
