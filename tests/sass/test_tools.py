"""The tools that judge the compiler's work are judged here."""

from __future__ import annotations

import pytest

from tests.tools.sass import Instruction, load_batches
from tests.tools.strip_tracer import strip

TRACED = """
#include "megatrace/tracer.cuh"
template <class T>
MEGATRACE_DEVICE void body(T& t, Work work) {
  t.wait(ev::full{}, &work.bar[f(1, 2)], 1, 7);
  const Stalled s = t.wait_later(ev::empty{}, work.bar, 0);
  t.poll(ev::sums{}, slot, [&] { return ready(a, b); });
  { auto span = t.span(ev::tile{}); use(work); }
  t.commit(ev::empty{}, s);
}
template <class T>
__global__ void kernel(Work work, typename T::Params trace) {
  T t(trace);
  t.after_dependency();
  body(t, work);
  t.end();
}
"""


def test_stripping_leaves_the_waits_and_the_work() -> None:
    lines = [line.strip(" ;") for line in strip(TRACED).splitlines()]
    assert [line for line in lines if line] == [
        '#include "megatrace/sync.cuh"',
        "MEGATRACE_DEVICE void body(Work work) {",
        'megatrace::mbar_wait("full", &work.bar[f(1, 2)], 1)',
        'megatrace::mbar_wait("empty", work.bar, 0)',
        'megatrace::poll("sums", slot, [&] { return ready(a, b); })',
        "{ ; use(work); }",
        "}",
        "__global__ void kernel(Work work) {",
        "body(work)",
        "}",
    ]


HANDED_ON = """
template <int N, class T, class Wait>
MEGATRACE_DEVICE void gather(T& t, Wait wait, Work work) {
  t.poll(wait, slot, [&] { return ready(work); });
  stalled_ = t.wait_later(ev::full{}, work.bar, 0);
}
template <class T, int N>
MEGATRACE_DEVICE void all(T& t, Work work) {
  gather<N>(
      t, ev::sums{}, work);
}
megatrace::Stalled stalled_ = {};
"""


def test_events_that_are_handed_on_stay_where_that_is_asked_for() -> None:
    stripped = strip(HANDED_ON, keep_events=True)
    lines = [line.strip(" ;") for line in stripped.splitlines()]
    assert [line for line in lines if line] == [
        "template <int N, class Wait>",
        "MEGATRACE_DEVICE void gather(Wait wait, Work work) {",
        "megatrace::poll((wait).name, slot, [&] { return ready(work); })",
        "megatrace::mbar_wait((ev::full{}).name, work.bar, 0)",
        "}",
        "template <int N>",
        "MEGATRACE_DEVICE void all(Work work) {",
        "gather<N>(ev::sums{}, work)",
        "}",
    ]
    with pytest.raises(ValueError, match="not an event"):
        strip(HANDED_ON)


@pytest.mark.parametrize("left", ["if (T::level == Level::off) f();", "g(ev::full{});"])
def test_stripping_refuses_to_leave_a_trace_of_the_tracer(left: str) -> None:
    with pytest.raises(ValueError, match="still traced"):
        strip(TRACED.replace("t.end();", left))


def code(text: str) -> list[Instruction]:
    return [Instruction(*line.strip().split(" ", 1)) for line in text.strip().splitlines()]


def test_loads_before_the_first_add_are_one_batch() -> None:
    batched = code("""
        LDS.128 R4, [R2]
        LDS.128 R8, [R2+0x10]
        FADD R1, R4, R5
        FADD R1, R8, R9
    """)
    assert load_batches(batched) == [2]


def test_a_load_added_at_once_is_a_batch_of_one() -> None:
    one_by_one = code("""
        LDS.128 R4, [R2]
        FADD R1, R4, R5
        LDS.128 R8, [R2+0x10]
        FADD R1, R8, R9
    """)
    assert load_batches(one_by_one) == [1, 1]
