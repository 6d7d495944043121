"""Steps of the layer kernel as the recorder sees them: a small model in the host build."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from megatrace.analysis import Trace, decode
from megatrace.capture.reader import open_capture
from megatrace.muse.events import MUSE, PHASES, ROLES
from megatrace.muse.params import Phase
from megatrace.muse.program import KERNELS
from megatrace.schema import Kind
from tests.sglang_env.place import ENVIRONMENT, sglang_python

ROOT = Path(__file__).resolve().parents[2]
BLOCKS = 4
WORKERS = {"tensor", "math"}
PROJECTIONS = {"o_proj", "router", "post_proj", "qkv"}
PREFETCHES = {event.edge for event in MUSE if event.kind is Kind.PREFETCH}
FUSED, TWIN = 1, 2
"""Steps, by their number."""


def python_with_torch() -> Path:
    return Path(sys.executable) if find_spec("torch") else sglang_python()


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Trace, dict[str, Any]]:
    """The capture, and what its program says of it."""
    folder = tmp_path_factory.mktemp("steps")
    out, facts = folder / "steps.mtr", folder / "facts.json"
    path = os.pathsep.join([str(ENVIRONMENT / "site"), str(ROOT)])
    record = [sys.executable, "-m", "megatrace", "record", "--every", "1", "-o", str(out), "--"]
    program = [str(python_with_torch()), "-m", "tests.muse.with_torch.record_steps", str(facts)]
    done = subprocess.run(
        [*record, "env", f"PYTHONPATH={path}", *program],
        cwd=ROOT,
        env={**os.environ, "MEGATRACE_RUNTIME_DIR": str(folder / "runtime")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return decode(open_capture(out, strict=True)), json.loads(facts.read_text())


@pytest.fixture(scope="module")
def trace(recorded: tuple[Trace, dict[str, Any]]) -> Trace:
    return recorded[0]


@pytest.fixture(scope="module")
def facts(recorded: tuple[Trace, dict[str, Any]]) -> dict[str, Any]:
    return recorded[1]


@pytest.fixture(scope="module")
def records(trace: Trace) -> pd.DataFrame:
    """With the running number of the launch that each belongs to."""
    return trace.records.join(trace.launches[["launch"]], on="launch_row")


def keys(records: pd.DataFrame, *columns: str) -> pd.Series[int]:
    """How many records there are of each value of some columns."""
    return records.groupby(list(columns), observed=True).size()


def phases(records: pd.DataFrame, step: int) -> pd.DataFrame:
    """The spans of a step that are phases."""
    return records[records.event.isin(PHASES) & (records.step == step)]


def test_being_traced_changes_no_bit(facts: dict[str, Any]) -> None:
    assert facts["traced"] == facts["plain"]
    assert len(set(facts["plain"])) == 1


def test_every_launch_of_every_warp_is_there_to_its_end(
    trace: Trace, facts: dict[str, Any]
) -> None:
    launches = trace.launches
    assert launches.complete.all()
    assert (launches.lost_lines == 0).all()
    rings = BLOCKS * len(ROLES)
    expected = {step: count * rings for step, count in enumerate(facts["launches"], start=1)}
    assert launches.groupby("step").size().to_dict() == expected


def test_launches_are_called_what_they_run(trace: Trace) -> None:
    by_step = trace.launches.groupby("step").kernel.unique()
    assert set(by_step[FUSED]) == {"embed", "layer"}
    assert set(by_step[TWIN]) == set(KERNELS) - {"layer"}


@pytest.mark.parametrize("step", [FUSED, TWIN])
def test_every_phase_is_a_span_in_each_role_that_takes_part(
    records: pd.DataFrame, step: int
) -> None:
    spans = phases(records, step)
    assert (spans.dur_ns >= 0).all()
    roles = {str(name): set(of.role) for name, of in spans.groupby("event", observed=True)}
    assert set(roles) == set(PHASES)
    assert all("tensor" in found and found <= WORKERS for found in roles.values())
    assert all(roles[phase] == {"tensor"} for phase in PROJECTIONS)


def test_both_forms_have_the_same_spans_and_hand_offs(records: pd.DataFrame) -> None:
    lasting = records[records.event.isin(PHASES) | records.kind.isin(["publish", "prefetch"])]
    fused, twin = (
        keys(lasting[lasting.step == step], "event", "layer", "block", "warp")
        for step in (FUSED, TWIN)
    )
    assert fused.to_dict() == twin.to_dict()


def test_a_twins_span_lies_in_the_launch_of_its_name(records: pd.DataFrame) -> None:
    spans = phases(records, TWIN)
    assert (spans.event.astype(str) == spans.kernel.astype(str)).all()


def test_weights_are_held_back_while_others_wait_for_words(records: pd.DataFrame) -> None:
    """The pre-expert projection's, the router's last: until the router's input is here."""
    fused = records[(records.kernel == "layer") & (records.step == FUSED)]
    place = ["launch", "block"]
    asked = fused[(fused.event == "early_weights") & (fused.slot == Phase.ROUTER)]
    begun = fused[(fused.event == "router") & (fused.warp == 0)]
    last, first = (of.groupby(place).begin_ns for of in (asked, begun))
    assert last.size().index.equals(first.size().index)
    assert (last.max() >= first.min()).all()


def test_every_wait_for_a_hand_off_has_a_publish_that_ends_it(records: pd.DataFrame) -> None:
    hand_offs = records[(records.step == FUSED) & ~records.edge.isin(PREFETCHES)]
    place = ["launch", "edge", "slot"]
    waited = keys(hand_offs[hand_offs.kind == "wait"], *place)
    published = keys(hand_offs[hand_offs.kind == "publish"], *place)
    assert len(waited) > 50
    assert set(waited.index) <= set(published.index)
    edges = set(hand_offs[hand_offs.kind == "wait"].edge)
    # Peers are emulated: their rows are there before anybody asks.
    assert edges == {event.edge for event in MUSE if event.kind is Kind.PUBLISH} - {"peer"}


def test_a_twin_waits_for_nothing_but_the_sums_of_its_own_rows(records: pd.DataFrame) -> None:
    """What the launch before has made is there."""
    waits = records[(records.step == TWIN) & (records.kind == "wait")]
    assert set(waits.edge) <= {"early_weights", "row_sum"}


@pytest.mark.parametrize("step", [FUSED, TWIN])
def test_all_weights_asked_for_early_are_used(records: pd.DataFrame, step: int) -> None:
    early = records[(records.step == step) & (records.edge == "early_weights")]
    place = ["launch", "block", "slot"]
    asked, used = (keys(early[early.kind == kind], *place) for kind in ("prefetch", "wait"))
    assert len(asked) > 50
    assert set(asked.index) == set(used.index)
    assert (asked <= used).all()


def test_early_weights_are_asked_for_by_the_loader_and_used_by_tensor_warps(
    records: pd.DataFrame,
) -> None:
    early = records[records.edge == "early_weights"]
    assert set(early[early.kind == "prefetch"].role) == {"loader"}
    uses = early[early.kind == "wait"]
    assert set(uses.role) == {"tensor"}
    begun = {PHASES[slot] for slot in uses.slot}
    assert begun == PROJECTIONS | {"experts_up", "experts_down"}


def test_the_experts_counted_are_the_references(
    records: pd.DataFrame, facts: dict[str, Any]
) -> None:
    counted = records[records.event == "distinct_experts"]
    expected = [len(experts) for experts in facts["experts"]]
    for step in (FUSED, TWIN):
        layers = counted[counted.step == step].groupby("layer")
        assert [values.tolist() for values in layers.a0.unique()] == [[n] for n in expected]
        assert (layers.block.nunique() == BLOCKS).all()


def test_a_block_begins_with_experts_that_were_hit(
    records: pd.DataFrame, facts: dict[str, Any]
) -> None:
    begun = records[records.event == "expert"]
    for layer, experts in enumerate(facts["experts"]):
        assert set(begun[begun.layer == layer].a0) <= set(experts)
    assert begun.a1.between(1, 8).all()
