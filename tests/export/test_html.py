"""The page of plots: one file, nothing but itself, and what it says of damage and of a CPU."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from megatrace.analysis import decode, summarise, views
from megatrace.analysis.traffic import Bandwidth
from megatrace.analysis.windows import windows
from megatrace.capture.reader import Capture, open_capture
from megatrace.export.html import export_html, page_of
from megatrace.export.html_figures import stalls_by_layer, sync_waits
from megatrace.export.html_page import to_html
from megatrace.export.html_tables import CLASSES, PageTables, gather
from megatrace.export.output import OutputError
from megatrace.schema.processes import number_of
from tests.build import MS, Build, Launch, Rec, demo, point, stall, write
from tests.reads import counted_lines
from tests.said import without_floor

ROOT = Path(__file__).resolve().parents[2]
MUSE = ROOT / "tests/muse/h200.mtr"
SECTIONS = {"floor", "stalls", "roles", "launches", "prefetch", "waits", "sms", "steps"}


def page(capture_path: Path, tmp_path: Path, **how: Any) -> str:
    output = tmp_path / f"{capture_path.stem}.html"
    with open_capture(capture_path) as capture:
        export_html(capture, output, force=True, **how)
    return output.read_text()


def tables_of(path: Path, *, small_lines: int = 1 << 18) -> PageTables:
    with open_capture(path) as capture:
        return _gather(capture, small_lines)


def _gather(capture: Capture, small_lines: int) -> PageTables:
    return gather(windows(capture, small_lines=small_lines), decode(capture, steps=()))


def figures_in(text: str) -> dict[str, list[dict[str, Any]]]:
    found = re.search(r'<script type="application/json" id="figures">(.*?)</script>', text, re.S)
    assert found is not None
    figures: dict[str, list[dict[str, Any]]] = json.loads(found[1])
    return figures


def test_every_heat_map_begins_at_nothing(tmp_path: Path) -> None:
    heats = [
        trace
        for figures in figures_in(page(MUSE, tmp_path)).values()
        for figure in figures
        for trace in figure["data"]
        if trace["type"] == "heatmap"
    ]
    assert len(heats) > 3
    for trace in heats:
        most = max(value for row in trace["z"] for value in row if value is not None)
        assert trace["zmin"] == 0
        assert trace["zmax"] >= most * 0.9999


def outside_scripts(text: str) -> str:
    return re.sub(r"<script.*?</script>", "", text, flags=re.S)


def twice(build: Build, records: Sequence[Sequence[Rec]]) -> None:
    """Two launches, for one gives no clock; ring by ring the same ``records`` in both."""
    for number, begin in ((1, MS), (2, 3 * MS)):
        for ring, of in enumerate(records):
            build.add(ring, Launch(number, begin, begin + 10_000, records=of, edge=True))


@pytest.fixture(scope="module")
def muse(tmp_path_factory: pytest.TempPathFactory) -> str:
    return page(MUSE, tmp_path_factory.mktemp("html"))


def test_every_question_has_its_plot(muse: str) -> None:
    assert set(figures_in(muse)) == SECTIONS


def test_the_head_says_what_it_is_of_and_how_far_to_trust_it(muse: str) -> None:
    body = outside_scripts(muse)
    for fact in ("cuda", "1 x NVIDIA H200", "nothing lost", "GPU clock ±", "4 of 4 seen"):
        assert fact in body


def test_the_policy_allows_its_own_scripts_by_hash_and_no_network(muse: str) -> None:
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', muse)
    assert policy is not None
    allowed = set(re.findall(r"'sha256-([^']*)'", policy[1]))
    scripts = re.findall(r"<script>(.*?)</script>", muse, re.S)
    hashes = {base64.b64encode(hashlib.sha256(s.encode()).digest()).decode() for s in scripts}
    assert allowed == hashes
    assert "default-src 'none'" in policy[1]
    assert "http" not in policy[1]
    assert muse.index("Content-Security-Policy") < muse.index("<script")


def test_nothing_outside_the_library_names_an_address(muse: str) -> None:
    assert "//" not in re.sub(r"<style>.*?</style>", "", outside_scripts(muse), flags=re.S)
    assert "src=" not in outside_scripts(muse)


def test_bars_are_the_shares_of_the_table_of_classes() -> None:
    tables = tables_of(MUSE)
    with open_capture(MUSE) as capture:
        classes = views.stall_classes(decode(capture))
    of = classes[(classes["layer"] == 1) & (classes["role"] == "loader")]
    want = 100 * of.loc[of["class"] == "space", "dur_ns"].sum() / of["dur_ns"].sum()
    figure = next(f for f in stalls_by_layer(tables) if f.name == "loader")
    bar = next(t for t in figure.data if t["name"] == "free stage")
    assert bar["y"] == ["embed 0", "layer 0", "layer 1", "layer 2"]
    assert bar["x"][2] == pytest.approx(want, rel=1e-4)
    whole = [sum(t["x"][i] for t in figure.data) for i in range(4)]
    assert whole == pytest.approx([100] * 4, abs=0.01)


def test_every_class_has_a_name_and_a_colour_in_both_themes() -> None:
    css = (ROOT / "viewers/html/page.css").read_text()
    light, dark = css.split('data-theme="dark"]', 1)
    for name in (*CLASSES, *(f"heat{i}" for i in range(5))):
        declared = f"--{'before' if name == 'before_start' else name}:"
        assert declared in light
        assert declared in dark


def test_the_floor_has_a_bar_a_layer_or_says_why_it_has_none(tmp_path: Path, muse: str) -> None:
    (figure,) = figures_in(muse)["floor"]
    assert figure["data"][0]["x"] == [0, 1, 2]
    assert all(30 < share < 100 for share in figure["data"][0]["y"])
    assert "At 4.25 TB/s, measured by the program that was recorded" in muse
    assert "is at most this: 2 of 132 blocks were recorded" in muse
    unsaid = page(without_floor(tmp_path / "unsaid.mtr"), tmp_path)
    assert "floor" not in figures_in(unsaid)
    assert "the program did not say what a launch must read" in outside_scripts(unsaid)


def test_the_floor_is_of_the_bandwidth_that_was_asked_for(tmp_path: Path) -> None:
    shares = [
        figures_in(page(MUSE, tmp_path, bandwidth=Bandwidth(rate)))["floor"][0]["data"][0]["y"]
        for rate in (4e12, 2e12)
    ]
    assert shares[1] == pytest.approx([2 * share for share in shares[0]], rel=1e-3)


def test_the_matrix_says_which_block_came_last(tmp_path: Path) -> None:
    """Block 0 waits 2 us for block 1, which publishes slot 1 at the end of that wait."""
    build = Build(blocks=2, warps=1, roles=("math",))
    twice(build, [[stall("input", 1000, 3960, 1)], [point("done", 4940, 1)]])
    tables = tables_of(write(tmp_path / "a.mtr", build))
    row = tables.waits.iloc[0]
    assert (row["block"], row["from_block"], row["count"]) == (0, 1, 2)
    assert row["dur_ns"] == pytest.approx(4000, abs=4)
    matrix = next(f for f in sync_waits(tables) if "block by block" in f.name).data[0]
    assert (matrix["y"], matrix["x"]) == (["0"], ["1"])
    assert matrix["z"][0][0] == pytest.approx(4.0, abs=0.01)


def test_step_by_step_it_is_the_same_page(tmp_path: Path) -> None:
    capture = write(tmp_path / "a.mtr", *demo(ranks=2, blocks=3, steps=4, layers=2))
    whole, parts = tables_of(capture), tables_of(capture, small_lines=0)
    assert (whole.windows, parts.windows) == (1, 4)
    for name in ("stalls", "heat", "waits", "launches", "steps"):
        assert getattr(whole, name).equals(getattr(parts, name)), name


def test_a_page_takes_one_reading(tmp_path: Path) -> None:
    with open_capture(MUSE) as capture, counted_lines() as alone:
        summarise(capture)
    with counted_lines() as read:
        text = page(MUSE, tmp_path)
    assert figures_in(text)["floor"]
    assert sum(read) == sum(alone) > 0


def test_a_page_of_some_layers_has_figures_of_their_launches_alone(tmp_path: Path) -> None:
    whole, two = page(MUSE, tmp_path), page(MUSE, tmp_path, layers=[0, 2])
    assert figures_in(two)["floor"][0]["data"][0]["x"] == [0, 2]
    assert "layers 0, 2 alone, of 0-2" in two
    assert "Layers 0, 2 alone, of 0-2: figures and shares are of their launches" in two
    assert "alone, of" not in whole
    # Steps are whole.
    assert figures_in(two)["steps"] == figures_in(whole)["steps"]
    assert figures_in(two)["sms"] != figures_in(whole)["sms"]


def test_processes_of_a_rank_have_figures_and_rows_of_their_own(tmp_path: Path) -> None:
    builds = demo(ranks=2) + demo(steps=2)
    builds[2].rank = number_of(0, 2)
    path = write(tmp_path / "a.mtr", *builds)
    with open_capture(path) as capture:
        shown = page_of(capture, summarise(capture), _gather(capture, 1 << 18))
    names = {"0", "1", "0#2"}
    sections = {section.name: section for section in shown.sections}
    assert {figure.name for figure in sections["steps"].figures} == {f"rank {n}" for n in names}
    assert {figure.name.split(":")[0] for figure in sections["sms"].figures} == {
        f"rank {n}" for n in names
    }
    for key in ("sms", "steps", "loss"):
        rows = sections[key].folds[0].rows
        assert set(rows["rank"]) == names, key
        assert "process" not in rows
    assert "whatever their rank" in sections["waits"].says


def test_names_are_shown_letter_by_letter(tmp_path: Path) -> None:
    evil = "</script><img src=x onerror=alert(1)>"
    build = Build(blocks=1, warps=2, roles=(evil, "<b>math</b>"), kernels={1: f"k{evil}"})
    twice(build, [[stall("full", 100, 500)]] * 2)
    text = page(write(tmp_path / "a.mtr", build), tmp_path, command=evil)
    assert "<img" not in outside_scripts(text)
    assert len(re.findall(r"</script>", text)) == 3
    bars = figures_in(text)["roles"][0]["data"][0]
    assert bars["y"] == ["&lt;/script&gt;&lt;img src=x onerror=alert(1)&gt;",
                         "&lt;b&gt;math&lt;/b&gt;"]  # fmt: skip


def test_a_name_of_an_event_that_is_code_stays_text() -> None:
    """No table of events may have such a name, a damaged one in memory could."""
    evil = "x'\"><script>alert(1)</script>"
    tables = tables_of(MUSE)
    tables = replace(tables, waits=tables.waits.assign(event=evil, edge=evil))
    with open_capture(MUSE) as capture:
        text = to_html(page_of(capture, summarise(capture), tables))
    assert "<script>alert" not in text
    assert evil not in text


def test_a_capture_of_a_cpu_says_cpu_and_calls_nothing_late(tmp_path: Path) -> None:
    builds = demo(blocks=2)
    builds[0].device = 0
    text = page(write(tmp_path / "a.mtr", *builds), tmp_path)
    body = outside_scripts(text)
    assert "cpu: times are of the host build" in body
    assert "cpu: no prefetch of a host build is called late or early" in body
    assert "prefetch" not in figures_in(text)
    words = re.sub(r'<p class="note.*?</p>', "", body)
    assert not re.search(r"\bslow(er)?\b|>late<|late: it was", words)


def test_an_incomplete_capture_says_so_first(tmp_path: Path) -> None:
    path = write(tmp_path / "a.mtr", *demo(steps=6))
    cut = tmp_path / "cut.mtr"
    cut.write_bytes(path.read_bytes()[:-300])
    body = outside_scripts(page(cut, tmp_path))
    assert "The capture is incomplete" in body
    assert body.index("incomplete") < body.index("<section")


def test_loss_is_in_the_head_and_the_lost_time_is_unknown(tmp_path: Path) -> None:
    builds = demo(steps=4, tiles=40)
    builds[0].lose(1, 3)
    text = page(write(tmp_path / "a.mtr", *builds), tmp_path)
    assert "1 of" in outside_scripts(text)
    assert "lines lost" in outside_scripts(text)
    assert any(trace["name"] == "unknown" for trace in figures_in(text)["stalls"][0]["data"])


@pytest.mark.parametrize("kind", ["empty", "host alone", "two launches"])
def test_next_to_nothing_gets_a_page_that_says_so(tmp_path: Path, kind: str) -> None:
    build = Build(roles=("math",), traced=kind != "host alone")
    if kind == "host alone":
        build.host("step", MS, 2 * MS, 1, (1, 8, 1, 3))
    if kind == "two launches":
        twice(build, [[stall("full", 100, 500)]])
    text = page(write(tmp_path / "a.mtr", build), tmp_path)
    says = {
        "empty": "No launch is whole",
        "host alone": "No traced kernel",
        "two launches": "2 launches: what is seen here may be chance",
    }[kind]
    assert says in outside_scripts(text)
    drawn = {"empty": set(), "host alone": {"steps"}}.get(kind)
    if drawn is not None:
        assert set(figures_in(text)) == drawn


def test_an_existing_page_is_refused_and_a_new_one_is_private(tmp_path: Path) -> None:
    output = tmp_path / "a.html"
    with open_capture(MUSE) as capture:
        export_html(capture, output)
        assert output.stat().st_mode & 0o777 == 0o600
        with pytest.raises(OutputError, match="exists"):
            export_html(capture, output)
        export_html(capture, output, force=True)
    assert list(tmp_path.iterdir()) == [output]


def test_a_verb_writes_it_and_keeps_stdout_empty(tmp_path: Path) -> None:
    output = tmp_path / "a.html"
    command = [sys.executable, "-m", "megatrace", "report", str(MUSE), "--html", str(output)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.startswith(f"megatrace: wrote {output}: 8 plots of 16 launches")
    again = subprocess.run(command, capture_output=True, text=True, check=False)
    assert again.returncode == 1
    assert "exists" in again.stderr
    assert "--force" in again.stderr


@pytest.mark.parametrize(
    ("options", "says"),
    [(("--html", "a.pdf"), "name it *.html"), (("--html", "a.html", "--json"), "exclude")],
)
def test_a_wrong_call_is_a_usage_error_before_any_work(
    tmp_path: Path, options: tuple[str, ...], says: str
) -> None:
    command = [sys.executable, "-m", "megatrace", "report", str(MUSE), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 2
    assert says in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_without_plotly_it_says_what_to_install(tmp_path: Path) -> None:
    program = (
        "import sys; sys.modules['plotly'] = sys.modules['plotly.offline'] = None\n"
        "from megatrace.cli.main import run\n"
        f"sys.exit(run(['report', {str(MUSE)!r}, '--html', {str(tmp_path / 'a.html')!r}]))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 1
    assert "pip install 'megatrace[view]'" in done.stderr
    assert list(tmp_path.iterdir()) == []
