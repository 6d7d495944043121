"""What the recorder sees in passing equals what the analysis decodes of the same lines."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from megatrace.analysis.rank import load_rank
from megatrace.capture.reader import open_capture
from megatrace.collect import observe
from megatrace.collect.observe import Budget, Observer
from megatrace.schema import CAUSES
from megatrace.tui.flat import load
from tests.build import TABLE, demo, write

H200 = Path(__file__).resolve().parents[2] / "examples/01_trace_a_kernel/h200.mtr"


def observed(path: Path, rank: int = 0, pieces: int = 7) -> Observer:
    """An observer that was fed the lines of a capture, some at a time, in the file's order."""
    with open_capture(path) as capture:
        facts, index = capture.rings[rank], capture.line_index()
        names = list(dict.fromkeys(facts.roles))
        observer = Observer(
            capture.tables[rank],
            [names.index(r) for r in facts.roles],
            facts.rings,
            facts.layers,
            Budget(grace_s=60.0),
        )
        rows = np.flatnonzero(index.rank == rank)
        for part in np.array_split(rows, pieces):
            observer.feed(index.ring[part], capture.gather(part))
    return observer


def cycles_of(path: Path) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Stalled ``(layers, roles, causes)`` and busy ``(layers, roles)`` in ns, as decoded."""
    with open_capture(path) as capture:
        flat = load(capture)
    shape = (len(flat.layers), len(flat.roles))
    stalled, busy = np.zeros((*shape, len(CAUSES))), np.zeros(shape)
    numbers = np.array([number for _, number in flat.layers])
    at = (numbers[flat.warps.layer], flat.warps.role)
    np.add.at(stalled, at, flat.warps.stalled)
    np.add.at(busy, at, flat.warps.dur)
    return stalled, busy


@pytest.mark.parametrize("source", ["h200", "demo"])
def test_its_sums_are_those_of_the_analysis(tmp_path: Path, source: str) -> None:
    path = H200 if source == "h200" else write(tmp_path / "demo.mtr", *demo(steps=4))
    seen = observed(path)
    stalled, busy = cycles_of(path)
    rate = seen.ns_per_cycle
    # The rate is of two headers, the analysis fits all of them.
    assert seen.cycles * rate == pytest.approx(stalled, rel=2e-3)
    assert seen.busy * rate == pytest.approx(busy, rel=2e-3)
    assert seen.sm_cycles.sum(axis=0) == pytest.approx(seen.cycles.sum(axis=0))
    assert seen.sm_busy.sum(axis=0) == pytest.approx(seen.busy.sum(axis=0))


def test_every_launch_of_a_warp_counts_once_however_the_drains_cut_it() -> None:
    with open_capture(H200) as capture:
        launches = load_rank(capture, 0, capture.tables[0]).scan.launches
    for pieces in (1, 2, 50, 1734):
        seen = observed(H200, pieces=pieces)
        assert int(seen.launches.sum()) == len(launches) == int(launches.complete.sum())


def test_a_first_use_that_was_blocked_is_late() -> None:
    seen = observed(H200)
    with open_capture(H200) as capture:
        from megatrace.analysis import summarise

        uses = [e for e in summarise(capture).events if e.event == "first_use"]
    assert seen.prefetch[:, 0].tolist() == [e.count + e.unblocked for e in uses]
    assert seen.prefetch[:, 1].tolist() == [e.count for e in uses]


def test_a_launch_with_a_gap_in_it_counts_for_nothing(tmp_path: Path) -> None:
    build = demo(steps=1, layers=1, blocks=1, tiles=30)[0]
    path = write(tmp_path / "whole.mtr", build)
    whole = observed(path)
    ring, lines = build.arrays()
    mine = np.flatnonzero(ring == 1)
    assert len(mine) > 3
    observer = Observer(TABLE, [0, 1, 1], 3, 1)
    observer.feed(ring[mine[:1]], lines[mine[:1]])
    observer.feed(ring[mine[2:]], lines[mine[2:]])
    assert not observer.cycles.any()
    assert not observer.launches.any()
    assert whole.launches.any()


@pytest.mark.parametrize("seed", range(8))
def test_damaged_lines_are_no_crash_and_stay_within_its_tables(seed: int) -> None:
    random = np.random.default_rng(seed)
    ring, lines = demo(steps=3)[0].arrays()
    lines = lines.copy()
    at = random.integers(0, lines.size, 400)
    lines.reshape(-1)[at] = random.integers(0, 1 << 32, 400, np.uint32)
    observer = Observer(TABLE, [0, 1, 1], 6, 2)
    observer.feed(ring, lines)


def test_of_a_large_drain_it_looks_at_some_rings_and_what_it_counts_is_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = observed(H200)
    monkeypatch.setattr(observe, "_MAX_LINES", 64)
    some = observed(H200, pieces=12)
    assert some.skipped > 0
    assert 0 < some.launches.sum() < whole.launches.sum()
    share = some.cycles.sum() / some.busy.sum()
    assert share == pytest.approx(whole.cycles.sum() / whole.busy.sum(), rel=0.05)


def test_beyond_its_share_of_a_core_it_looks_at_nothing() -> None:
    budget = Budget()
    budget.spend(10.0)
    observer = Observer(TABLE, [0, 1, 1], 6, 2, budget)
    ring, lines = demo()[0].arrays()
    observer.feed(ring, lines)
    assert observer.skipped == len(lines)
    assert not observer.launches.any()
    observer = Observer(TABLE, [0, 1, 1], 6, 2, Budget(grace_s=20.0))
    observer.feed(ring, lines)
    assert observer.launches.any()


def test_without_a_table_there_is_nothing_to_see(tmp_path: Path) -> None:
    from megatrace.ring.file import RingFile, RingSpec

    spec = RingSpec(
        rank=0, blocks=1, warps=1, lines=8, layers=1, host_capacity=8, device=0, table_hash=1,
        meta={"table": "not JSON"},
    )  # fmt: skip
    with RingFile.create(tmp_path / "rank0.ring", spec) as ring:
        assert Observer.of(ring, ["a"]) is None
