"""What changed from one capture to another: known changes are found, noise is not."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from megatrace.analysis import views
from megatrace.analysis.compare import JUDGED, Change, Comparison, compare
from megatrace.analysis.compare_text import change_sentence, compare_to_dict, compare_to_text
from megatrace.analysis.measured import LAUNCH, Side, measure
from megatrace.analysis.resample import FEWEST_BLOCKS, Bootstrap
from megatrace.analysis.windows import windows
from megatrace.capture.reader import open_capture
from megatrace.errors import MegatraceError
from tests.analysis.runs import LAUNCH_NS, run

ROOT = Path(__file__).resolve().parents[2]
MUSE = ROOT / "tests/muse/h200.mtr"


def side(path: Path) -> Side:
    with open_capture(path) as capture:
        return measure(capture)


def rows(found: Comparison) -> list[Change]:
    return [*found.overall, *found.layers, *found.causes]


def launch(found: Comparison, layer: int) -> Change:
    return next(row for row in found.layers if row.layer == layer)


def cause(found: Comparison, layer: int, role: str, what: str) -> Change:
    return next(r for r in found.causes if (r.layer, r.role, r.what) == (layer, role, what))


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Side:
    return side(run(tmp_path_factory.mktemp("runs") / "a.mtr", seed=1))


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Side:
    """Layer 1 waits 3 us longer for weights, and takes as much longer."""
    path = tmp_path_factory.mktemp("runs") / "b.mtr"
    return side(run(path, seed=2, extra_ns={1: 3000}, stalled_ns={1: 3000}))


def test_a_capture_against_itself_is_the_same_everywhere(base: Side) -> None:
    found = compare(base, base)
    assert {row.verdict for row in rows(found)} == {"same"}
    assert all(row.change_us == 0 and row.low_us < 0 < row.high_us for row in found.layers)
    assert found.warnings == ()
    assert found.regressions(0.0) == ()


def test_another_run_of_the_same_program_is_the_same_everywhere(base: Side, tmp_path: Path) -> None:
    found = compare(base, side(run(tmp_path / "b.mtr", seed=3)))
    assert {row.verdict for row in rows(found)} == {"same"}


def test_a_layer_that_got_slower_is_found_with_an_interval_that_holds_the_change(
    base: Side, slow: Side
) -> None:
    found = compare(base, slow)
    assert [row.layer for row in found.layers if row.verdict == "slower"] == [1]
    row = launch(found, 1)
    assert row.low_us < 3.0 < row.high_us
    assert row.high_us - row.low_us < 2.0
    assert row.low < 3000 / LAUNCH_NS < row.high


def test_a_slower_layer_is_blamed_on_the_class_and_role_that_waits_longer(
    base: Side, slow: Side
) -> None:
    found = compare(base, slow)
    row = cause(found, 1, "math", "data")
    assert row.verdict == "more"
    assert row.low_us < 3.0 < row.high_us
    assert cause(found, 1, "math", "not_waiting").verdict == "same"
    assert cause(found, 0, "math", "data").verdict == "same"


def test_classes_have_more_or_less_and_only_launches_are_slower_or_faster(
    base: Side, slow: Side
) -> None:
    for found in (compare(base, slow), compare(slow, base)):
        classes = {row.verdict for row in rows(found) if row.what != LAUNCH}
        assert classes <= {"more", "less", "same"}
        assert {r.verdict for r in rows(found) if r.what == LAUNCH} <= {"slower", "faster", "same"}


def test_a_longer_tail_is_more_of_it_and_explains_no_launch(tmp_path: Path) -> None:
    """Warps of the load role end 3 us earlier in a launch that takes as long as before."""
    a = side(run(tmp_path / "a.mtr", seed=1))
    b = side(run(tmp_path / "b.mtr", seed=2, early_ns={1: 3000}))
    found = compare(a, b)
    assert launch(found, 1).verdict == "same"
    assert cause(found, 1, "load", "tail").verdict == "more"
    assert cause(found, 1, "load", "not_waiting").verdict == "less"
    assert found.regressions(0.0) == ()
    assert found.grown(launch(found, 1)) == ()


def test_a_slower_launch_names_the_classes_of_which_there_is_more(base: Side, slow: Side) -> None:
    found = compare(base, slow)
    assert [(r.role, r.what) for r in found.grown(launch(found, 1))][-1] == ("math", "data")
    assert all(row.layer == 1 for row in found.grown(launch(found, 1)))
    sentence = change_sentence(launch(found, 1), found.grown(launch(found, 1)))
    assert "% slower (" in sentence
    assert "math data (+" in sentence


def test_what_got_faster_is_called_so(base: Side, slow: Side) -> None:
    found = compare(slow, base)
    assert [row.layer for row in found.layers if row.verdict == "faster"] == [1]
    assert found.regressions(0.0) == ()


def test_a_threshold_is_held_against_the_lower_end(base: Side, slow: Side) -> None:
    found = compare(base, slow)
    low = launch(found, 1).low
    assert [row.layer for row in found.regressions(low - 0.001) if row.layer >= 0] == [1]
    assert [row.layer for row in found.regressions(low + 0.001) if row.layer >= 0] == []


def test_the_same_seed_gives_the_same_intervals(base: Side, slow: Side) -> None:
    assert compare(base, slow).layers == compare(base, slow).layers
    other = compare(base, slow, Bootstrap(seed=1))
    assert other.layers != compare(base, slow).layers
    assert launch(other, 1).low_us == pytest.approx(launch(compare(base, slow), 1).low_us, abs=0.3)


def test_four_steps_are_too_few_for_a_verdict() -> None:
    found = compare(side(MUSE), side(MUSE))
    assert {row.verdict for row in rows(found)} == {"too few launches"}
    assert all(math.isnan(row.low) for row in rows(found))
    assert not found.judged


def test_many_rows_need_more_steps_than_one(base: Side) -> None:
    bootstrap = Bootstrap()
    assert bootstrap.enough(FEWEST_BLOCKS, FEWEST_BLOCKS, 1)
    assert not bootstrap.enough(FEWEST_BLOCKS, FEWEST_BLOCKS, 100)
    assert not bootstrap.enough(FEWEST_BLOCKS - 1, 1000, 1)
    assert bootstrap.enough(10, 10, 1000)


def test_steps_are_drawn_whole_so_that_what_their_layers_share_counts_once(
    tmp_path: Path,
) -> None:
    """All layers of a step are late together: 8 steps are 8 draws, not 8 x 40."""
    narrow = side(run(tmp_path / "a.mtr", seed=4, steps=10, layers=12, shift_ns=2000))
    other = side(run(tmp_path / "b.mtr", seed=5, steps=10, layers=12, shift_ns=2000))
    whole = next(row for row in compare(narrow, other).overall if row.what == LAUNCH)
    assert whole.blocks_a == whole.blocks_b == 10
    # Of 120 independent launches it would be a third of this.
    assert whole.high_us - whole.low_us > 2.0


def test_one_step_is_drawn_by_launches_and_says_so(tmp_path: Path) -> None:
    a = side(run(tmp_path / "a.mtr", seed=6, one_step=True, layers=1))
    b = side(run(tmp_path / "b.mtr", seed=7, one_step=True, layers=1, extra_ns={0: 3000}))
    found = compare(a, b)
    assert found.layers[0].blocks_a == 20
    assert found.layers[0].verdict == "slower"
    text = " ".join(compare_to_text(found).split())
    assert "draws of launches (there is one step" in text


def test_captures_of_a_cpu_get_no_verdict(tmp_path: Path) -> None:
    a = side(run(tmp_path / "a.mtr", seed=1, device=0))
    b = side(run(tmp_path / "b.mtr", seed=2, device=0, extra_ns={1: 9000}))
    found = compare(a, b)
    assert {row.verdict for row in rows(found)} == {"cpu"}
    assert found.regressions(0.0) == ()
    text = compare_to_text(found)
    assert "slower" not in text
    assert "cpu: times of the host build" in text


def test_a_cpu_against_a_gpu_is_refused(base: Side, tmp_path: Path) -> None:
    with pytest.raises(MegatraceError, match=r"a\.mtr ran on a CPU|b\.mtr ran on a CPU"):
        compare(base, side(run(tmp_path / "b.mtr", seed=2, device=0)))


def test_other_kernels_are_refused_by_name(base: Side, tmp_path: Path) -> None:
    other = side(run(tmp_path / "b.mtr", seed=2, kernel="prefill"))
    with pytest.raises(MegatraceError, match=r"has decode 0-2, .* prefill 0-2"):
        compare(base, other)


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ({"gpu": "NVIDIA B300"}, "different GPUs: NVIDIA H200 and NVIDIA B300"),
        ({"tokens": 1}, "steps of different sizes: 16 and 1 rows"),
        ({"layers": 2}, "1 layer is only in a and left out: decode 2"),
        ({"lose": True}, "of b 1 of 60 launches are left out"),
    ],
)
def test_what_hinders_a_comparison_is_said(
    base: Side, tmp_path: Path, how: dict[str, object], says: str
) -> None:
    found = compare(base, side(run(tmp_path / "b.mtr", seed=2, **how)))  # type: ignore[arg-type]
    assert any(says in warning for warning in found.warnings), found.warnings
    assert f"warning: {says}" in compare_to_text(found)


def test_values_are_those_of_the_views() -> None:
    with open_capture(MUSE) as capture:
        measured = measure(capture).values
        trace = next(iter(windows(capture)))
    times, stalls = views.launch_times(trace), views.stall_classes(trace)
    mine = times[times["layer"] == 1].set_index("step")["dur_ns"]
    got = measured[(measured["layer"] == 1) & (measured["what"] == LAUNCH)].set_index("block")
    assert got["ns"].to_dict() == mine.to_dict()
    of = stalls[(stalls["layer"] == 1) & (stalls["role"] == "loader") & (stalls["step"] == 3)]
    warps = len(of[["block", "warp"]].drop_duplicates())
    space = of.loc[of["class"] == "space", "dur_ns"].sum() / warps
    row = measured[
        (measured["layer"] == 1) & (measured["role"] == "loader") & (measured["what"] == "space")
    ].set_index("block")
    assert row["ns"][3] == pytest.approx(space)


def test_step_by_step_is_the_same_as_at_once() -> None:
    order = ["block", "kernel", "layer", "role", "what"]
    with open_capture(MUSE) as capture:
        whole, parts = measure(capture), measure(capture, small_lines=0)
        assert len(list(windows(capture, small_lines=0))) == whole.steps == parts.steps == 4
    at_once, by_step = (s.values.set_index(order)["ns"].sort_index() for s in (whole, parts))
    assert by_step.equals(at_once)
    assert (parts.launches, parts.tokens, parts.grid_blocks) == (16, 16, 2)


def test_the_json_has_every_row_and_no_nan(base: Side, slow: Side) -> None:
    found = compare(base, slow)
    body = compare_to_dict(found)
    assert len(body["causes"]) == len(found.causes)  # type: ignore[arg-type]
    assert body["judged"] is True
    assert "NaN" not in str(body)
    cpu = compare_to_dict(compare(side(MUSE), side(MUSE)))
    assert "nan" not in str(cpu)


@pytest.mark.parametrize("blocks", [5, 8, 21, 60])
@pytest.mark.parametrize("shape", ["normal", "skewed"])
def test_an_interval_misses_about_as_often_as_it_says(blocks: int, shape: str) -> None:
    rng = np.random.default_rng(blocks)
    draw = rng.normal if shape == "normal" else lambda m, s, size: rng.lognormal(m, s, size)
    bootstrap = Bootstrap(draws=2000)
    true, missed, tries = 0.0, 0, 1500
    for _ in range(tries):
        a, b = draw(0, 0.5, blocks), draw(0, 0.5, blocks)
        found = bootstrap.interval(a, b, 1)
        missed += not found.low <= true <= found.high
    # Stated 5 %; the median's interval of a few values is a little wide, never much too narrow.
    assert 0.015 < missed / tries < 0.065


def test_intervals_of_a_table_hold_together_about_as_often_as_they_say() -> None:
    rng = np.random.default_rng(0)
    bootstrap = Bootstrap()
    tables, together = 120, 0
    for _ in range(tables):
        missed = 0
        for _row in range(20):
            found = bootstrap.interval(rng.normal(size=12), rng.normal(size=12), 20)
            missed += not found.low <= 0 <= found.high
        together += missed == 0
    assert together / tables > 0.9


@given(st.integers(1, 60), st.integers(0, 1 << 32))
def test_drawn_ranks_are_those_of_a_resample(blocks: int, seed: int) -> None:
    """The median of a draw of n values lies where that of n drawn indices would."""
    values = np.arange(blocks, dtype=float)
    drawn = Bootstrap(seed=seed, draws=4000).medians(values, 0)
    rng = np.random.default_rng(seed)
    plain = np.median(rng.integers(0, blocks, (4000, blocks)), axis=1)
    assert drawn.mean() == pytest.approx(plain.mean(), abs=0.3 + 0.02 * blocks)
    assert drawn.std() == pytest.approx(plain.std(), abs=0.1 + 0.05 * blocks)
    assert drawn.min() >= 0
    assert drawn.max() <= blocks - 1


@given(
    st.lists(st.floats(1.0, 1e6), min_size=FEWEST_BLOCKS, max_size=40),
    st.floats(-1e5, 1e5),
)
def test_an_interval_holds_the_change_of_the_medians(values: list[float], moved: float) -> None:
    a = np.array(values)
    found = Bootstrap(draws=2000).interval(a, a + moved, 3)
    assert found.low <= moved + 1e-6
    assert found.high >= moved - 1e-6
    assert len(JUDGED) == 3
