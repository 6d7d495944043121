from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from megatrace.errors import RingError
from megatrace.ring.control import Ack, Control, read_ack, read_control, write_ack, write_control
from megatrace.ring.file import RingFile
from megatrace.schema.layout import CONTROL
from tests.ring.processes import python

MakeRing = Callable[..., RingFile]
U32, U64 = st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)


def test_a_fresh_page_asks_for_nothing(make_ring: MakeRing) -> None:
    assert read_control(make_ring()) == Control(level=0, sm_mask=0)


def test_every_control_arrives_as_it_was_written(make_ring: MakeRing) -> None:
    ring = make_ring()
    with RingFile.attach(ring.path, writable_control=True) as recorder:
        masks, every = st.integers(0, 2**256 - 1), st.integers(1, 2**32 - 1)

        @given(st.builds(Control, U32, U32, U32, U64, U64, masks, U64, every))
        def arrives(control: Control) -> None:
            seq = write_control(recorder, control)
            seen = read_control(ring)
            assert seen.seq == seq
            assert seen.sm_words == control.sm_words
            assert (seen.level, seen.every_n, seen.window_end) == (
                control.level,
                control.every_n,
                control.window_end,
            )
            assert seen.counters_every == control.counters_every

        arrives()


def test_every_write_has_another_even_number(make_ring: MakeRing) -> None:
    ring = make_ring()
    numbers = [write_control(ring, Control()) for _ in range(3)]
    assert numbers == [2, 4, 6]


def test_the_number_goes_on_across_its_wrap(make_ring: MakeRing) -> None:
    ring = make_ring()
    np.ndarray((), CONTROL, ring.control_page)["seq"] = 2**32 - 2
    assert write_control(ring, Control(level=2)) == 0
    assert read_control(ring).level == 2


def test_a_write_cut_short_is_never_read(make_ring: MakeRing) -> None:
    ring = make_ring()
    np.ndarray((), CONTROL, ring.control_page)["seq"] = 3
    with pytest.raises(RingError, match="half written"):
        read_control(ring, timeout_s=0)
    write_control(ring, Control(level=1))
    assert read_control(ring).level == 1


def test_a_viewer_cannot_write_the_control_page(make_ring: MakeRing) -> None:
    with (
        RingFile.attach(make_ring().path) as viewer,
        pytest.raises(RingError, match="read-only"),
    ):
        write_control(viewer, Control())


def test_an_answer_arrives(make_ring: MakeRing) -> None:
    ring = make_ring()
    answer = Ack(seq=4, level=2, step=2**40, timeline_steps=7, host_records=8, window_open=1)
    write_ack(ring, answer)
    with RingFile.attach(ring.path) as seen:
        assert read_ack(seen) == answer


WRITER = """
    import sys
    from pathlib import Path
    from megatrace.ring.control import Control, write_control
    from megatrace.ring.file import RingFile
    ring = RingFile.attach(Path(sys.argv[1]), writable_control=True)
    print("ready", flush=True)
    for n in range(1, 4001):
        write_control(ring, Control(1, n, n, n, n, n, n))
"""


def test_no_half_of_a_change_is_seen_while_another_process_writes(make_ring: MakeRing) -> None:
    ring = make_ring()
    with python(WRITER, ring.path):
        seen = 0
        while seen < 4000:
            control = read_control(ring, timeout_s=5)
            if control.seq:
                n = control.every_n
                assert control == Control(1, n, n, n, n, n, n, seq=control.seq)
                seen = control.every_n
