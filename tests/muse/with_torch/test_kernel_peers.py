"""The layer kernel in the host build where the rows of other ranks come late."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from megatrace.muse.engine import Form
from megatrace.muse.params import EMPTY
from tests.muse.models import model
from tests.muse.phases import Case, beyond_in_a_layer, check_layer

SMALL = model()
PIECES = 8
LATE_S, PIECE_S = 0.05, 0.002
RANKS = [(2, 1, 5, False), (2, 0, 3, True), (4, 0, 16, True), (4, 3, 1, False)]
"""How many, which one, rows of the step, projections around the experts divided too."""


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks that only wait for a peer are no deadlock here."""
    monkeypatch.setenv("MEGATRACE_HOST_STUCK_MS", "20000")
    torch.set_num_threads(1)


def made(case: Case) -> list[torch.Tensor]:
    """All that a layer leaves behind, as bits."""
    engine, cache = case.engine, case.caches[1]
    left = (engine.stream, engine.q, engine.gate, cache.keys, cache.values)
    return [tensor.clone().view(torch.int16) for tensor in left]


@contextmanager
def late_peers(case: Case, seed: int) -> Iterator[None]:
    """Their rows are empty at first, then come a few words at a time, in any order."""
    peers = {name: t.view(torch.int32).flatten() for name, t in case.engine.peers.items()}
    rows = {name: t.clone() for name, t in peers.items()}
    order = [(name, piece) for name in peers for piece in range(PIECES)]
    random.Random(seed).shuffle(order)

    def come() -> None:
        time.sleep(LATE_S)
        for name, piece in order:
            peers[name][piece::PIECES] = rows[name][piece::PIECES]
            time.sleep(PIECE_S)

    for words in peers.values():
        words.fill_(EMPTY - (1 << 32))
    thread = threading.Thread(target=come)
    thread.start()
    try:
        yield
    finally:
        thread.join()


@pytest.mark.parametrize("form", ["fused", "twin"])
@pytest.mark.parametrize(("ranks", "rank", "rows", "shard"), RANKS)
def test_rows_of_other_ranks_may_come_late_and_in_pieces(
    ranks: int, rank: int, rows: int, shard: bool, form: Form
) -> None:
    case = Case(SMALL, SMALL.shard(rank, ranks, shard), "nvfp4", rows, 33, "cpu", 4, seed=3)
    check_layer(case, form)
    early = made(case)
    with late_peers(case, rows):
        begin = time.monotonic()
        found = check_layer(case, form)
        assert time.monotonic() - begin > LATE_S
    assert beyond_in_a_layer(found) == {}
    assert all(torch.equal(a, b) for a, b in zip(early, made(case), strict=True))
