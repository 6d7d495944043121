"""The plots of a page, as plotly.js takes them; ``viewers/html/page.js`` gives the colours.

A trace names its colour (``meta.colour``) or asks for the ramp of heat maps (``meta.heat``):
one page has two themes. Every name from a capture goes through :func:`plain`, for plotly.js
reads labels as a little HTML.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd

from megatrace.analysis.numbers import numbers_of
from megatrace.analysis.report import Floors
from megatrace.export.html_tables import BINS_NS, CLASSES, WAITS, PageTables
from megatrace.schema.processes import rank_text

Json = dict[str, Any]

CLASS_NAMES = {
    "data": "data",
    "input": "input of another block",
    "peer": "peer GPU",
    "space": "free stage",
    "tail": "tail",
    "before_start": "before start",
    "not_waiting": "not waiting",
    "unknown": "unknown",
}
_CLASS_COLOURS = dict(zip(CLASSES, CLASSES, strict=True)) | {"before_start": "before"}
_LINES = ("one", "two", "three", "four", "five", "six")
_FEW = 24
_POINTS = 4000
"""Points of a line; of more, each drawn point is the median of several."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One drawing; a plot with several offers them by ``name``."""

    name: str
    data: list[Json]
    layout: Json

    def to_dict(self) -> Json:
        """As plotly.js takes it."""
        return {"data": self.data, "layout": self.layout}


def plain(text: object) -> str:
    """``text`` as plotly.js shows it letter by letter."""
    return html.escape(str(text), quote=False)


def stalls_by_layer(tables: PageTables) -> list[Figure]:
    """Stacked bars: of each layer the shares of its warps' time; for all roles, then each."""
    stalls = tables.stalls
    figures = []
    for role in ("", *sorted(stalls["role"].unique())):
        mine = stalls if role == "" else stalls[stalls["role"] == role]
        rows = mine.groupby(["kernel", "layer", "class"], sort=False)["dur_ns"].sum().unstack(
            "class", fill_value=0
        ).sort_index()  # fmt: skip
        figures.append(_stack(role or "all warps", rows, _layer_labels(rows.index)))
    return figures


def stalls_by_role(tables: PageTables) -> list[Figure]:
    """The same bars, one a role, over all layers."""
    rows = tables.stalls.groupby(["role", "class"], sort=False)["dur_ns"].sum().unstack(
        "class", fill_value=0
    ).sort_index()  # fmt: skip
    return [_stack("all layers", rows, [plain(role) for role in rows.index])]


def _stack(name: str, rows: pd.DataFrame, labels: Sequence[str]) -> Figure:
    total = rows.sum(axis=1).to_numpy(float)
    data = []
    for kind in CLASSES:
        if kind not in rows or not rows[kind].any():
            continue
        share = _share(rows[kind].to_numpy(float), total)
        data.append({
            "type": "bar", "orientation": "h", "name": CLASS_NAMES[kind], "y": list(labels),
            "x": _numbers(100 * share), "customdata": _numbers(rows[kind] / 1e3),
            "hovertemplate": "%{y}: %{x:.1f} % (%{customdata:,.0f} warp us)",
            "meta": {"colour": _CLASS_COLOURS[kind]},
        })  # fmt: skip
    bar_px = 24 if len(labels) <= _FEW else 15
    layout = _layout(
        height=90 + bar_px * max(3, len(labels)), barmode="stack", bargap=0.18,
        xaxis={"title": {"text": "% of the warps' time"}, "range": [0, 100]},
        yaxis={"type": "category", "autorange": "reversed", "automargin": True},
        legend={"orientation": "h", "y": 1.0, "yanchor": "bottom", "traceorder": "normal"},
    )  # fmt: skip
    return Figure(name, data, layout)


def prefetches(tables: PageTables) -> list[Figure]:
    """Two histograms over time: late exactly, early at most; all edges, then each."""
    found = tables.prefetch
    edges = sorted(found)
    figures = []
    if len(edges) > 1:
        figures.append(_histogram("all prefetches", found[edges[0]] + sum(
            (found[edge] for edge in edges[1:]), np.zeros_like(found[edges[0]])
        )))  # fmt: skip
    return figures + [_histogram(f"{event} ({kernel})", found[kernel, event])
                      for kernel, event in edges]  # fmt: skip


def _histogram(name: str, counts: Any) -> Figure:
    middle = np.sqrt(BINS_NS[:-1] * BINS_NS[1:]) / 1e3
    spans = [f"{_us(a)} to {_us(b)} us" for a, b in pairwise(BINS_NS.tolist())]
    used = np.flatnonzero(counts.sum(axis=0))
    keep = slice(used[0], used[-1] + 1) if len(used) else slice(0, 1)
    labels = ("late: waited exactly so long", "early: by so much at most")
    data = [
        {
            "type": "bar", "name": label, "x": _numbers(middle[keep]),
            "y": counts[row, keep].tolist(), "customdata": spans[keep],
            "width": _numbers((np.diff(BINS_NS) / 1e3)[keep] * 0.92), "opacity": 0.8,
            "hovertemplate": "%{customdata}: %{y:,}", "meta": {"colour": colour},
        }
        for row, (label, colour) in enumerate(zip(labels, ("six", "one"), strict=True))
    ]  # fmt: skip
    layout = _layout(
        height=340, barmode="overlay",
        xaxis={"type": "log", "title": {"text": "us"}}, yaxis={"title": {"text": "prefetches"}},
        legend={"orientation": "h", "y": 1.0, "yanchor": "bottom"},
    )  # fmt: skip
    return Figure(name, data, layout)


def sync_waits(tables: PageTables) -> list[Figure]:
    """Who waited for whom: by hand-off and layer, then of each hand-off block by block."""
    waits = tables.waits
    by_layer = waits.groupby(["event", "layer"])["dur_ns"].sum().unstack("layer", fill_value=0)
    order = by_layer.sum(axis=1).sort_values(ascending=False).index
    by_layer = by_layer.loc[order]
    figures = [
        _heat(
            "by hand-off and layer", by_layer.to_numpy(float) / 1e3,
            [plain(event) for event in by_layer.index], [str(n) for n in by_layer.columns],
            ("layer", "", "warp us"), "%{y}, layer %{x}: %{z:,.1f} warp us",
        )
    ]  # fmt: skip
    for event in order:
        mine = waits[(waits["event"] == event) & (waits["from_block"] >= 0)]
        if len(mine):
            matrix = mine.groupby(["block", "from_block"])["dur_ns"].sum().unstack(fill_value=0)
            figures.append(
                _heat(
                    f"{event}: block by block", matrix.to_numpy(float) / 1e3,
                    [str(n) for n in matrix.index], [str(n) for n in matrix.columns],
                    ("the block that came last", "the block that waited", "warp us"),
                    "block %{y} waited for block %{x}: %{z:,.1f} warp us",
                )
            )  # fmt: skip
    return figures


def sm_heat(tables: PageTables) -> list[Figure]:
    """SM by role, the share of the warps' time waiting and in each class; for each rank."""
    heat = tables.heat
    number = numbers_of(heat)
    ranks = np.unique(number).tolist()
    figures = []
    for rank in ranks:
        cells = heat[number == rank].groupby(["role", "sm", "class"])["dur_ns"].sum()
        wide = cells.unstack("class", fill_value=0)
        total = wide.sum(axis=1)
        of = f"rank {rank_text(rank)}: " if len(ranks) > 1 else ""
        waits = wide[[kind for kind in WAITS if kind in wide]].sum(axis=1)
        shown = {CLASS_NAMES[kind]: wide[kind] for kind in CLASSES if kind in wide}
        for name, times in ({"waiting": waits} | shown).items():
            if not times.any():
                continue
            share = (100 * times / total).unstack("sm")
            figures.append(
                _heat(
                    f"{of}{name}", share.to_numpy(float),
                    [plain(role) for role in share.index], [str(n) for n in share.columns],
                    ("SM", "", "% of time"), "%{y} on SM %{x}: %{z:.1f} %", top=100,
                )
            )  # fmt: skip
    return figures


def launch_times(tables: PageTables) -> list[Figure]:
    """A box for each layer: quartiles, and whiskers at 5 and 95 %."""
    data: list[Json] = []
    boxes = tables.launches
    for at, (kernel, rows) in enumerate(boxes.groupby("kernel", sort=True)):
        data.append({
            "type": "box", "name": plain(kernel), "x": rows["layer"].tolist(),
            "lowerfence": _numbers(rows["p5_us"]), "q1": _numbers(rows["q1_us"]),
            "median": _numbers(rows["median_us"]), "q3": _numbers(rows["q3_us"]),
            "upperfence": _numbers(rows["p95_us"]),
            "meta": {"colour": _LINES[at % len(_LINES)]},
        })  # fmt: skip
    layout = _layout(
        height=380, boxmode="group", showlegend=len(data) > 1,
        xaxis={"title": {"text": "layer"}, **_whole(boxes["layer"])},
        yaxis={"title": {"text": "us"}, "rangemode": "tozero"},
    )  # fmt: skip
    return [Figure("launches", data, layout)]


def floors_by_layer(floors: Floors) -> list[Figure]:
    """A bar a layer: which part of the floor its launches reach."""
    data: list[Json] = []
    for at, kernel in enumerate(sorted({row.kernel for row in floors.rows})):
        rows = [row for row in floors.rows if row.kernel == kernel]
        told = [
            f"{row.bytes / 1e6:,.1f} MB in {row.median_us:,.1f} us, floor {row.floor_us:,.1f} us"
            + (f", {row.experts:.1f} experts" if row.experts >= 0 else "")
            for row in rows
        ]
        data.append({
            "type": "bar", "name": plain(kernel), "x": [row.layer for row in rows],
            "y": _numbers([100 * row.fraction for row in rows]), "customdata": told,
            "hovertemplate": "layer %{x}: %{y:.0f} %: %{customdata}",
            "meta": {"colour": _LINES[at % len(_LINES)]},
        })  # fmt: skip
    layers = pd.Series([row.layer for row in floors.rows])
    most = max(row.fraction for row in floors.rows)
    layout = _layout(
        height=340, showlegend=len(data) > 1,
        xaxis={"title": {"text": "layer"}, **_whole(layers)},
        yaxis={"title": {"text": "% of the floor"}, "range": [0, 100 * max(1.0, most)]},
    )  # fmt: skip
    return [Figure("floor", data, layout)]


def step_times(tables: PageTables) -> list[Figure]:
    """Time of each step: the host's, and of the GPU from first launch in to last out."""
    steps = tables.steps
    number = numbers_of(steps)
    figures = []
    for rank in np.unique(number).tolist():
        mine = steps[number == rank]
        data: list[Json] = []
        for at, (name, rows) in enumerate(mine.groupby("series", sort=False)):
            x, y = _thinned(rows["step"].to_numpy(float), rows["dur_ns"].to_numpy(float) / 1e3)
            data.append({
                "type": "scatter", "mode": "lines+markers" if len(x) < 200 else "lines",
                "name": plain(name), "x": _numbers(x), "y": _numbers(y),
                "hovertemplate": "step %{x}: %{y:,.1f} us", "meta": {"colour": _LINES[at % 6]},
            })  # fmt: skip
        layout = _layout(
            height=340, showlegend=True,
            xaxis={"title": {"text": "step"}, "tickformat": ",d", **_whole(mine["step"])},
            yaxis={"title": {"text": "us"}, "rangemode": "tozero"},
            legend={"orientation": "h", "y": 1.0, "yanchor": "bottom"},
        )  # fmt: skip
        figures.append(Figure(f"rank {rank_text(rank)}", data, layout))
    return figures


def _heat(
    name: str, z: Any, y: Sequence[str], x: Sequence[str], titles: tuple[str, str, str],
    hover: str, top: float | None = None,
) -> Figure:  # fmt: skip
    across, down, unit = titles
    trace: Json = {
        "type": "heatmap", "z": [_numbers(row) for row in z], "x": list(x), "y": list(y),
        "hovertemplate": hover + "<extra></extra>", "meta": {"heat": True}, **_gaps(len(x)),
        "colorbar": {"title": {"text": unit, "side": "right"}}, 
    }  # fmt: skip
    # From 0 on: a scale that begins at the least makes nothing of it.
    trace |= {"zmin": 0, "zmax": top or float(np.nanmax(z, initial=0)) or 1.0}
    layout = _layout(
        height=min(900, 130 + 26 * max(3, len(y))),
        xaxis={"title": {"text": across}, "type": "category", "nticks": 2 * _FEW},
        yaxis={
            "title": {"text": down}, "type": "category", "autorange": "reversed",
            "automargin": True,
        },
    )  # fmt: skip
    return Figure(name, [trace], layout)


def _layout(**more: Any) -> Json:
    margin = {"l": 70, "r": 20, "t": 34, "b": 46}
    return {"margin": margin, "hovermode": "closest", "uirevision": "kept", **more}


def _gaps(columns: int) -> Json:
    """Between the cells, where those are wider than the gaps."""
    return {"xgap": 1, "ygap": 1} if columns <= 2 * _FEW else {}


def _whole(values: pd.Series[int]) -> Json:
    """Ticks of an axis of whole numbers; of a few it would put some between them."""
    return {"dtick": 1} if values.max() - values.min() < _FEW else {}


def _layer_labels(index: Any) -> list[str]:
    kernels = {kernel for kernel, _ in index}
    if len(kernels) == 1:
        return [f"layer {layer}" for _, layer in index]
    return [f"{plain(kernel)} {layer}" for kernel, layer in index]


def _thinned(x: Any, y: Any) -> tuple[Any, Any]:
    if len(x) <= _POINTS:
        return x, y
    parts = np.array_split(np.arange(len(x)), _POINTS)
    return x[[part[0] for part in parts]], np.array([np.median(y[part]) for part in parts])


def _share(part: Any, total: Any) -> Any:
    return np.divide(part, total, out=np.zeros_like(part), where=total > 0)


def _numbers(values: Iterable[float]) -> list[float | None]:
    """Five digits are more than a plot shows; NaN is a gap."""
    return [None if v != v else float(f"{v:.5g}") for v in np.asarray(values, float).tolist()]


def _us(ns: float) -> str:
    return f"{ns / 1e3:.3g}"
