"""Slices for property tests: random, or nested by construction."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from megatrace.export.slices import (
    COLOUR,
    FIRST_ARG,
    FLOW_IN,
    FLOW_OUT,
    SAMPLE,
    Extras,
    Names,
    Slices,
)

NAMES = Names(
    labels=(
        ("", ""),
        ("tile", ""),
        ("full", "stall.data"),
        ("x" * 300, "c"),
        ("é ✓", "stall.data"),
    ),
    args=("slot", "request", "bytes"),
    texts=("a", "b\n" * 100, ""),
    text_args=frozenset({1}),
)


def slices_of(
    rows: list[tuple[int, int, int]], labels: list[int] | None = None, extras: Extras | None = None
) -> Slices:
    """Slices of (track, begin, duration)."""
    columns = np.array(rows, np.int64).reshape(len(rows), 3)
    return Slices(
        columns[:, 0].astype(np.int32),
        np.array(labels if labels is not None else [1] * len(rows), np.int32),
        columns[:, 1].copy(),
        columns[:, 2].copy(),
        extras or Extras.none(),
    )


def intervals(tracks: int = 3, top: int = 60) -> st.SearchStrategy[list[tuple[int, int, int]]]:
    """Rows of slices that overlap as they please."""
    one = st.tuples(st.integers(0, tracks - 1), st.integers(0, top), st.integers(0, top // 2))
    return st.lists(one, max_size=40)


@st.composite
def extras(draw: st.DrawFn, rows: int) -> Extras:
    """Any extras for so many slices."""
    if not rows:
        return Extras.none()
    value = st.one_of(st.integers(0, 3), st.integers(0, 2**62))
    ints = st.tuples(
        st.integers(0, rows - 1),
        st.sampled_from([FLOW_OUT, FLOW_IN, FIRST_ARG, FIRST_ARG + 2]),
        value,
    )
    texts = st.tuples(st.integers(0, rows - 1), st.just(FIRST_ARG + 1), st.integers(0, 2))
    found = draw(st.lists(st.one_of(ints, texts), max_size=20))
    # These two a slice has once at most.
    for key in (COLOUR, SAMPLE):
        having = draw(st.sets(st.integers(0, rows - 1), max_size=3))
        found += [(row, key, draw(value)) for row in sorted(having)]
    found.sort(key=lambda one: one[0])
    columns = np.array(found, np.int64).reshape(len(found), 3)
    return Extras(columns[:, 0].copy(), columns[:, 1].astype(np.int32), columns[:, 2].copy())
