"""Vectors between blocks and matrices within a warp, in the host build."""

from __future__ import annotations

import re

from tests.host.cases import Cases


def test_vectors_as_flags_reach_all_blocks_under_many_seeds(cases: Cases) -> None:
    assert cases.numbers("vectors", 200) == [0]


def test_a_vector_is_seen_in_part_under_chaos_only(cases: Cases) -> None:
    calm, chaos = cases.numbers("torn", 60)
    assert calm == 0
    assert chaos > 0


def test_matrices_go_from_shared_memory_through_a_product_under_many_seeds(cases: Cases) -> None:
    assert cases.numbers("matrices", 100) == [0]


def test_a_product_takes_a_whole_warp(cases: Cases) -> None:
    done = cases.run("half_warp")
    assert done.returncode == 1
    assert "block 0 warp 1 lane" in done.stderr
    assert "mma f16 takes a warp of 32 lanes" in done.stderr


def test_lanes_at_different_products_are_named(cases: Cases) -> None:
    done = cases.run("mixed_matrices")
    assert done.returncode == 1
    assert re.search(
        r"divergent warp: this lane is at mma b?f16, lane \d+ at mma b?f16", done.stderr
    )


def test_a_small_layer_of_products_takes_a_second_at_most(cases: Cases) -> None:
    (a_second,) = cases.numbers("mma_speed", 1000)
    assert a_second > 20_000
