"""The page of plots in a real browser without a network: it draws, and complains of nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from megatrace.capture.reader import open_capture
from megatrace.export.html import export_html
from tests.build import MS, Build, Launch, demo, stall, write
from tests.export.html_shot import look
from tests.export.ui_shot import browser

ROOT = Path(__file__).resolve().parents[2]
PNG_MAGIC = b"\x89PNG"

pytestmark = pytest.mark.skipif(
    browser() is None, reason="no chromium-headless-shell on this machine"
)

CHOOSE_LAST = """
(() => { for (const select of document.querySelectorAll('select')) {
  select.selectedIndex = select.options.length - 1;
  select.dispatchEvent(new Event('change')); } })()
"""
SWITCH_THEME = "document.getElementById('theme').click()"
GROUND = "getComputedStyle(document.body).backgroundColor"
BAR = "getComputedStyle(document.querySelector('#stalls .bars path')).fill"
BUTTONS = "[...document.querySelectorAll('.modebar-btn')].map(b => b.dataset.title || '').join('|')"
SHOWN = "JSON.stringify(document.querySelector('#stalls')._fullLayout.yaxis.range)"
ZOOM_IN = "document.querySelector('#stalls .modebar-btn[data-val=in]').click()"
RESIZE = "window.dispatchEvent(new Event('resize'))"
NARROW = "document.body.style.width = '600px'"
SETTLE = "new Promise(done => setTimeout(done, 800))"
COUNT_DRAWN = """
(() => { const react = Plotly.react; window.drawn = 0;
  Plotly.react = (...given) => { window.drawn += 1; return react(...given); }; })()
"""
DRAWN = "(() => { const drawn = window.drawn; window.drawn = 0; return drawn; })()"
EVIL_RAN = "window.evil === undefined ? 'no' : 'yes'"


LEGENDS_ON_PLOTS = """
[...document.querySelectorAll('.plot')].filter(plot => {
  const [legend, area] = ['.legend', '.nsewdrag'].map(name => plot.querySelector(name));
  const bottom = legend && legend.getBoundingClientRect().bottom;
  const aside = legend && legend.getBoundingClientRect().left >= area.getBoundingClientRect().right;
  return legend && !aside && bottom > area.getBoundingClientRect().top + 2;
}).map(plot => plot.id).join()
"""


def written(capture_path: Path, tmp_path: Path) -> Path:
    output = tmp_path / f"{capture_path.stem}.html"
    with open_capture(capture_path) as capture:
        export_html(capture, output)
    return output


@pytest.mark.parametrize(
    ("name", "dark", "width", "plots"),
    [
        ("tests/muse/h200.mtr", True, 1280, 8),
        ("examples/01_trace_a_kernel/h200.mtr", False, 500, 7),
    ],
)
def test_a_real_capture_is_drawn_offline_without_a_complaint(
    tmp_path: Path, name: str, dark: bool, width: int, plots: int
) -> None:
    png = tmp_path / "a.png"
    seen = look(written(ROOT / name, tmp_path), png, dark=dark, size=(width, 900))
    assert seen.errors == []
    assert seen.requests == []
    assert seen.invalid == []
    assert seen.plots == plots
    assert seen.too_wide_px <= 0
    assert "loader" in seen.labels
    assert png.read_bytes().startswith(PNG_MAGIC)


@pytest.mark.parametrize("width", [480, 700, 1280])
def test_no_legend_lies_on_what_it_explains(tmp_path: Path, width: int) -> None:
    capture = ROOT / "examples/03_read_a_trace/layer.mtr"
    seen = look(written(capture, tmp_path), scripts=(LEGENDS_ON_PLOTS,), size=(width, 900))
    assert seen.answers == [""]
    assert seen.invalid == []


def test_themes_and_choices_redraw(tmp_path: Path) -> None:
    capture = write(tmp_path / "a.mtr", *demo(ranks=2, blocks=4, steps=6, layers=3))
    seen = look(
        written(capture, tmp_path),
        scripts=(GROUND, BAR, SWITCH_THEME, GROUND, BAR, CHOOSE_LAST, BUTTONS),
    )
    light, bar, _, dark, dark_bar, _, buttons = seen.answers
    assert light == "rgb(255, 255, 255)"
    assert (light, bar) != (dark, dark_bar)
    assert "loud" not in buttons
    assert seen.errors == []
    assert seen.plots == 7


def test_a_resize_and_a_theme_keep_the_zoom(tmp_path: Path) -> None:
    """And another height, as of a phone whose bars come and go, draws nothing anew."""
    capture = write(tmp_path / "a.mtr", *demo(ranks=2, blocks=4, steps=6, layers=3))
    seen = look(
        written(capture, tmp_path),
        scripts=(
            SHOWN, ZOOM_IN, SHOWN, COUNT_DRAWN, *(RESIZE,) * 3, SETTLE, DRAWN,
            NARROW, RESIZE, SETTLE, SHOWN, DRAWN, SWITCH_THEME, SETTLE, SHOWN,
        ),
    )  # fmt: skip
    whole, _, zoomed, _, *_, drawn, _, _, _, narrow, drawn_anew, _, _, dark = seen.answers
    assert zoomed != whole
    assert drawn == 0
    assert drawn_anew == seen.plots
    assert narrow == zoomed
    assert dark == zoomed
    assert seen.errors == []


def test_hostile_names_are_text_in_the_browser_too(tmp_path: Path) -> None:
    evil = "<img src=x onerror=window.evil=1><a href='javascript:window.evil=1'>x</a>"
    build = Build(blocks=2, warps=2, roles=(evil, "</script><script>window.evil=1</script>"),
                  kernels={1: evil})  # fmt: skip
    for ring in range(4):
        for number, begin in ((1, MS), (2, 3 * MS)):
            waits = [stall("full", 100, 500)]
            build.add(ring, Launch(number, begin, begin + 9000, records=waits, edge=True))
    seen = look(written(write(tmp_path / "a.mtr", build), tmp_path), scripts=(EVIL_RAN,))
    assert seen.answers == ["no"]
    assert seen.errors == []
    assert "<img src=x" in seen.labels


def test_an_empty_capture_draws_nothing_and_complains_of_nothing(tmp_path: Path) -> None:
    capture = write(tmp_path / "a.mtr", Build(roles=("math",)))
    seen = look(written(capture, tmp_path))
    assert (seen.plots, seen.errors) == (0, [])
    assert "No launch is whole" in seen.text
