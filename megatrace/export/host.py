"""The traced process above its GPU: steps, what they accepted, requests, windows.

rank 0 CPU          step, extend, decode, draft, verify
  accepted tokens   of each verify
  batch size
  requests
  windows
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from megatrace.export.scene import Scene
from megatrace.export.timeline import Timeline
from megatrace.export.tracks import NO_PARENT, Track
from megatrace.export.wire import I8

_ARGS = ("step", "batch_size", "tokens", "graph", "accepted")
_COUNTERS = (
    ("accepted", "accepted tokens", "tokens"),
    ("batch_size", "batch size", "requests"),
)
_ASIDE = ("request", "window")


def draw_host(scene: Scene, name: str, host: pd.DataFrame, axis: Timeline) -> dict[int, int]:
    """Add the host events of the rank ``name``; returns the row of each step id's last forward.

    ``host`` is a frame like ``Trace.host`` with this rank's events alone.
    """
    begin = axis.host(host["host_begin_ns"].to_numpy().astype(np.int64))
    end = axis.host(host["host_end_ns"].to_numpy().astype(np.int64))
    dur = np.maximum(end - begin, 0)
    event = host["event"].to_numpy().astype(str)
    root = scene.tracks.add(Track(f"{name} CPU", NO_PARENT, async_=True))
    steps = np.flatnonzero(~np.isin(event, _ASIDE))
    numbers = host["step"].to_numpy().astype(np.int64)
    labels = [
        scene.label(f"step {number}" if kind == "step" else kind, "host")
        for kind, number in zip(event[steps].tolist(), numbers[steps].tolist(), strict=True)
    ]
    rows = scene.add(root, labels, begin[steps], dur[steps])
    for arg in _ARGS:
        scene.arg(rows, arg, host[arg].to_numpy()[steps])
    _draw_counters(scene, root, host.iloc[steps], begin[steps], event[steps])
    _draw_aside(scene, root, host, event, begin, dur)
    return _launching(numbers[steps], event[steps], begin[steps], rows)


def _draw_counters(
    scene: Scene, root: int, steps: pd.DataFrame, begin: I8, event: np.ndarray
) -> None:
    # Where the host tells of steps alone they say what their forwards would.
    forward = event != "step" if (event != "step").any() else np.ones(len(event), np.bool_)
    for order, (column, name, unit) in enumerate(_COUNTERS):
        value = steps[column].to_numpy().astype(np.int64)
        has = np.flatnonzero((value >= 0) & forward)
        if not len(has):
            continue
        track = scene.tracks.add(Track(name, root, order, counter=True, unit=unit))
        has = has[np.argsort(begin[has], kind="stable")]
        scene.samples(track, begin[has], value[has])


def _draw_aside(
    scene: Scene, root: int, host: pd.DataFrame, event: np.ndarray, begin: I8, dur: I8
) -> None:
    for order, name in enumerate(_ASIDE, len(_COUNTERS)):
        mine = np.flatnonzero(event == name)
        if not len(mine):
            continue
        track = scene.tracks.add(Track(f"{name}s", root, order, async_=True))
        texts = host["text"].to_numpy()[mine].tolist()
        labels = [scene.label(text or name, "host") for text in texts]
        scene.arg(
            scene.add(track, labels, begin[mine], dur[mine]),
            "step",
            host["step"].to_numpy()[mine],
        )


def _launching(step: I8, event: np.ndarray, begin: I8, rows: I8) -> dict[int, int]:
    """The event that launched each step: its last forward, or the step where none is known."""
    order = np.lexsort((begin, event != "step"))
    return dict(zip(step[order].tolist(), rows[order].tolist(), strict=True))
