"""Which process of SGLang this is: by the function it was started with."""

from __future__ import annotations

import multiprocessing
from dataclasses import dataclass

import pytest

from megatrace.sglang.process import ProcessIdentity, Role, identify


@dataclass(frozen=True, slots=True)
class Arguments:
    tp_size: int = 1
    pp_size: int = 1
    enable_dp_attention: bool = False


def run_scheduler_process(
    server_args: object, gpu_id: int, tp_rank: int, pp_rank: int = 0, dp_rank: int | None = None
) -> ProcessIdentity:
    return identify()


def run_detokenizer_process() -> ProcessIdentity:
    return identify()


def run_data_parallel_controller_process() -> ProcessIdentity:
    return identify()


def _report(results: multiprocessing.SimpleQueue[ProcessIdentity]) -> None:
    results.put(identify())


def test_a_process_that_nobody_started_is_the_main_one() -> None:
    assert identify() == ProcessIdentity(Role.MAIN)


def test_a_child_started_in_an_unknown_way_is_other() -> None:
    context = multiprocessing.get_context("spawn")
    results = context.SimpleQueue()
    child = context.Process(target=_report, args=(results,))
    child.start()
    assert results.get() == ProcessIdentity(Role.OTHER)
    child.join()


def test_detokenizer_and_controller_are_known() -> None:
    assert run_detokenizer_process().role is Role.DETOKENIZER
    assert run_data_parallel_controller_process().role is Role.DP_CONTROLLER


def test_a_tensor_parallel_rank_is_its_rank() -> None:
    found = run_scheduler_process(Arguments(tp_size=8), 5, 5)
    assert found == ProcessIdentity(Role.SCHEDULER, rank=5, tp_rank=5, gpu_id=5)


@pytest.mark.parametrize(
    ("arguments", "ranks", "rank"),
    [
        (Arguments(tp_size=4, pp_size=2), (3, 1, None), 7),
        (Arguments(tp_size=2), (1, 0, 3), 7),
        (Arguments(tp_size=2, pp_size=2), (1, 1, 1), 7),
        (Arguments(tp_size=8, enable_dp_attention=True), (7, 0, 3), 7),
    ],
    ids=["pipeline", "replicas", "replicated pipeline", "attention DP"],
)
def test_every_gpu_has_a_rank_of_its_own(
    arguments: Arguments, ranks: tuple[int, int, int | None], rank: int
) -> None:
    tp_rank, pp_rank, dp_rank = ranks
    assert run_scheduler_process(arguments, 0, tp_rank, pp_rank, dp_rank).rank == rank
