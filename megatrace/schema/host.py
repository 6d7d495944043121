"""Events of the traced process itself: steps, requests, clock samples, facts.

They travel in HOST_RECORDs (see :mod:`megatrace.schema.layout`), carry host times in
nanoseconds of CLOCK_MONOTONIC and up to four integers, named here.
"""

from __future__ import annotations

from dataclasses import dataclass

from megatrace.schema.events import Arg


@dataclass(frozen=True, slots=True)
class HostEvent:
    """One row: id, name, the integers of ``values`` and what ``text`` holds."""

    id: int
    name: str
    doc: str
    args: tuple[Arg, ...] = ()
    text: str = ""


_STEP_ARGS = (
    Arg("batch_size", "requests", "Requests in the batch."),
    Arg("tokens", "tokens", "Rows of this forward."),
    Arg("graph", "", "1 where a CUDA graph ran, 0 eager."),
    Arg("accepted", "tokens", "Draft tokens accepted by this verify, bonus included; -1 unknown."),
)

HOST: tuple[HostEvent, ...] = (
    HostEvent(1, "fact", "JSON, in pieces.", (Arg("piece"), Arg("pieces")), "JSON"),
    HostEvent(
        2,
        "clock_sample",
        "The host read its clock, then the GPU its globaltimer, then the host again.",
        (Arg("globaltimer_ns", "ns"),),
    ),
    HostEvent(3, "step", "One decode step, from the hook's begin to its end.", _STEP_ARGS),
    HostEvent(4, "extend", "A prefill forward.", _STEP_ARGS),
    HostEvent(5, "decode", "A decode forward.", _STEP_ARGS),
    HostEvent(6, "draft", "A forward of the draft model.", _STEP_ARGS),
    HostEvent(7, "verify", "A target forward that verifies draft tokens.", _STEP_ARGS),
    HostEvent(8, "request", "A request was part of the step.", (Arg("index"),), "request id"),
    HostEvent(9, "window", "A capture window was open."),
    HostEvent(10, "forward", "A forward of another mode (idle, mixed ...).", _STEP_ARGS),
)
