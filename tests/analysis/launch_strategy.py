"""Random launches, with everything that makes their times hard to read."""

from __future__ import annotations

from hypothesis import strategies as st

from tests.build import GHZ, MS, Launch, Rec, point, span, stall

SHORT = st.integers(1, 5000)
LONG = st.one_of(SHORT, st.integers(1 << 20, (1 << 22) - 5000), st.integers(1 << 21, 1 << 28))
ARG = st.one_of(st.integers(0, 9), st.integers(0, (1 << 31) - 1))


@st.composite
def records(draw: st.DrawFn, *, long: bool = True) -> list[Rec]:
    """Records in time; waits may outlast the time field and be committed late."""
    out: list[Rec] = []
    t = 0
    for _ in range(draw(st.integers(0, 40))):
        t += draw(SHORT)
        kind = draw(st.sampled_from(["span", "stall", "wait", "late", "mark", "depth", "publish"]))
        dur = draw(LONG if long else SHORT)
        if kind == "span":
            inner = draw(SHORT)
            out += span("phase", t, t + 3 * inner)
            out += span("tile", t + inner, t + 2 * inner, draw(ARG))
            t += 3 * inner
        elif kind == "stall":
            out.append(stall("full", t, dur))
            t += dur
        elif kind == "wait":
            out.append(stall("input", t, dur, draw(ARG)))
            t += dur
        elif kind == "late":
            # Written while the wait is not, marks cannot tell a silence longer than a turn.
            dur = min(dur, (1 << 22) - 1000)
            out.append(stall("room", t, dur, late=300))
            out += [point("mark", t + dur + 100, 1, 2), point("depth", t + dur + 200, 3)]
            t += dur + 300
        elif kind == "mark":
            out.append(point("mark", t, draw(ARG), draw(ARG)))
        elif kind == "depth":
            out.append(point("depth", t, draw(ARG)))
        else:
            out.append(point("done", t, draw(ARG)))
    return out


@st.composite
def launches(draw: st.DrawFn, *, long: bool = True, most: int = 6) -> list[Launch]:
    """Launches of one warp, one after the other; their numbers may skip some."""
    out: list[Launch] = []
    at, number = MS, 0
    for _ in range(draw(st.integers(1, most))):
        number += draw(st.sampled_from([1, 1, 2, 62]))
        body = draw(records(long=long))
        last = max((r.order for r in body), default=0)
        end = at + int(last / GHZ) + draw(st.integers(10, 3000))
        out.append(Launch(number, at, end, records=body, step=number // 4, layer=number % 4))
        at = end + draw(st.integers(500, 100_000))
    return out
