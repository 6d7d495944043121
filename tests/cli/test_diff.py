"""``megatrace diff``: tables of what changed, and a gate with an exit code of its own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from megatrace.documents import JSON_VERSION
from tests.analysis.runs import run
from tests.collect.helpers import megatrace

ROOT = Path(__file__).resolve().parents[2]
MUSE = ROOT / "tests/muse/h200.mtr"
EXAMPLE = ROOT / "examples/01_trace_a_kernel/h200.mtr"


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(tmp_path_factory.mktemp("diff") / "a.mtr", seed=1)


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Layer 1 is 6 % slower."""
    path = tmp_path_factory.mktemp("diff") / "b.mtr"
    return run(path, seed=2, extra_ns={1: 3000}, stalled_ns={1: 3000})


def test_tables_are_on_stdout_and_fit_the_page(base: Path, slow: Path) -> None:
    done = megatrace("diff", base, slow)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert max(map(len, done.stdout.splitlines())) <= 100
    assert "1 slower, 2 same" in done.stdout
    assert "20,000 draws of whole steps" in " ".join(done.stdout.split())


def test_a_gate_that_trips_exits_with_4_and_names_the_layer(base: Path, slow: Path) -> None:
    done = megatrace("diff", base, slow, "--fail-on", "2%")
    assert done.returncode == 4
    assert "error: slower by more than 2 %: layer 1 of decode: +" in done.stderr
    assert "math data (+" in done.stderr
    assert "layer 0" not in done.stderr


@pytest.mark.parametrize("limit", ["2%", "0 %", "0.5%"])
def test_a_gate_that_passes_says_so_in_one_line(base: Path, limit: str) -> None:
    done = megatrace("diff", base, base, "--fail-on", limit)
    assert done.returncode == 0
    assert done.stderr.startswith("megatrace: passed: none of 3 layers is slower by more than ")
    assert len(done.stderr.splitlines()) == 1


def test_a_gate_holds_the_lower_end_of_the_interval_against_its_limit(
    base: Path, slow: Path
) -> None:
    """About 6 % slower: the point estimate is above 5.9 %, the lower end below it."""
    assert megatrace("diff", base, slow, "--fail-on", "5.9%").returncode == 0


def test_the_json_has_rows_and_the_gate(base: Path, slow: Path) -> None:
    done = megatrace("diff", base, slow, "--json", "--fail-on", "2%", "--top", "1")
    body = json.loads(done.stdout)
    assert (body["schema"], body["version"]) == ("megatrace.diff", JSON_VERSION)
    assert [row["verdict"] for row in body["layers"]] == ["same", "slower", "same"]
    assert len(body["gate"]["failed"]) == 1 or "all layers" in body["gate"]["failed"][0]
    assert body["a"]["gpus"] == ["NVIDIA H200"]
    assert done.returncode == 4


def test_top_limits_each_table_and_says_so(base: Path, slow: Path) -> None:
    done = megatrace("diff", base, slow, "--top", "1")
    assert "2 more rows are in the JSON" in done.stdout


@pytest.mark.parametrize("limit", ["2", "two%", "-1%", "2%%", "", "nan%", "inf%"])
def test_a_limit_that_is_no_percentage_is_a_usage_error(base: Path, limit: str) -> None:
    done = megatrace("diff", base, base, f"--fail-on={limit}")
    assert done.returncode == 2
    assert "no percentage" in done.stderr
    assert done.stdout == ""


def test_both_sides_say_that_only_some_sms_were_recorded() -> None:
    done = megatrace("diff", MUSE, MUSE, "--json")
    assert json.loads(done.stdout)["a"]["sms"] == "2 of 132 SMs recorded"
    text = " ".join(megatrace("diff", MUSE, MUSE).stdout.split())
    assert text.count("NVIDIA H200, 2 of 132 SMs recorded, 1 rank") == 2


def test_a_gate_that_could_only_pass_is_an_error() -> None:
    done = megatrace("diff", MUSE, MUSE, "--fail-on", "2%")
    assert done.returncode == 1
    assert "too few launches for any verdict" in done.stderr
    assert "too few launches" in done.stdout


def test_a_gate_on_a_cpu_is_an_error(tmp_path: Path) -> None:
    capture = run(tmp_path / "a.mtr", seed=1, device=0)
    assert megatrace("diff", capture, capture).returncode == 0
    done = megatrace("diff", capture, capture, "--fail-on", "2%")
    assert done.returncode == 1
    assert "of a CPU, whose times get no verdict" in done.stderr


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ({"layers": 1}, "2 layers are only in a and left out: decode 1, decode 2"),
        ({"layers": 4}, "1 layer is only in b and left out: decode 3"),
        ({"blocks": 1}, "launches left records of 2 and 1 blocks"),
        ({"tokens": 1}, "steps of different sizes: 16 and 1 rows"),
        ({"seldom": 2}, "too few launches for a verdict: all layers of decode, layer 2 of decode"),
    ],
)
def test_a_gate_that_cannot_compare_all_does_not_pass(
    base: Path, tmp_path: Path, how: dict[str, int], why: str
) -> None:
    other = run(tmp_path / "b.mtr", seed=2, **how)  # type: ignore[arg-type]
    done = megatrace("diff", base, other, "--fail-on", "2%", "--json")
    assert done.returncode == 1
    assert f"error: --fail-on 2 %: undecided: {why}" in done.stderr
    assert "hint: " in done.stderr
    assert "passed" not in done.stderr
    assert why in json.loads(done.stdout)["gate"]["undecided"]


def test_a_layer_that_is_slower_fails_a_gate_though_others_are_missing(
    base: Path, tmp_path: Path
) -> None:
    slow = run(tmp_path / "b.mtr", seed=2, layers=2, extra_ns={1: 3000})
    done = megatrace("diff", base, slow, "--fail-on", "2%")
    assert done.returncode == 4
    assert "slower by more than 2 %: layer 1 of decode: +" in done.stderr


def test_other_work_that_takes_longer_is_no_regression(base: Path, tmp_path: Path) -> None:
    more = run(tmp_path / "b.mtr", seed=2, tokens=32, extra_ns={1: 3000})
    done = megatrace("diff", base, more, "--fail-on", "2%")
    assert done.returncode == 1
    assert "undecided: steps of different sizes: 16 and 32 rows" in done.stderr


def test_a_gate_between_two_kinds_of_gpu_is_an_error(base: Path, tmp_path: Path) -> None:
    other = run(tmp_path / "b.mtr", seed=2, gpu="NVIDIA B300")
    done = megatrace("diff", base, other, "--fail-on", "2%")
    assert done.returncode == 1
    assert "different GPUs: NVIDIA H200 and NVIDIA B300" in done.stderr


def test_captures_without_a_common_layer_are_refused_with_a_next_step() -> None:
    done = megatrace("diff", EXAMPLE, MUSE)
    assert done.returncode == 1
    assert done.stdout == ""
    assert "no layer in common" in done.stderr
    assert "hint: compare captures of the same kernel" in done.stderr


def test_a_truncated_capture_is_said_and_strict_exits_with_3(base: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut.mtr"
    cut.write_bytes(base.read_bytes()[:-200])
    done = megatrace("diff", base, cut)
    assert "cut.mtr is incomplete" in done.stderr
    assert "warning: b is incomplete" in done.stdout
    assert done.returncode == 0
    assert megatrace("diff", base, cut, "--strict").returncode == 3


def test_a_capture_of_host_steps_alone_is_refused(tmp_path: Path, base: Path) -> None:
    from tests.build import MS, Build, write

    build = Build(traced=False)
    build.host("step", MS, 2 * MS, 1, (1, 8, 1, 3))
    done = megatrace("diff", base, write(tmp_path / "host.mtr", build))
    assert done.returncode == 1
    assert "host.mtr has no whole launch to compare" in done.stderr


def test_a_file_that_is_not_there_is_one_line(base: Path) -> None:
    done = megatrace("diff", base, "nowhere.mtr")
    assert done.returncode == 1
    assert len([line for line in done.stderr.splitlines() if "error" in line]) == 1
