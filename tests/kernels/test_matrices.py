"""mma and ldmatrix against numpy, on both machines."""

from __future__ import annotations

import numpy as np
import pytest

from megatrace.jit import HOST, default_target
from tests.kernels.arithmetic import Arithmetic, bf16_values, nearest_bf16, nearest_f16

TYPES = [True, False]


@pytest.fixture(scope="module", params=[HOST, pytest.param("gpu", marks=pytest.mark.gpu)])
def kernels(request: pytest.FixtureRequest) -> Arithmetic:
    return Arithmetic(default_target() if request.param == "gpu" else request.param)


def encode(bf16: bool, values: np.ndarray) -> np.ndarray:
    values = values.astype(np.float32)
    flat = nearest_bf16(values.ravel()) if bf16 else nearest_f16(values.ravel(), saturate=True)
    return flat.reshape(values.shape)


def decode(bf16: bool, codes: np.ndarray) -> np.ndarray:
    values = bf16_values(codes) if bf16 else codes.view(np.float16)
    return values.astype(np.float64)


@pytest.mark.parametrize("bf16", TYPES, ids=["bf16", "f16"])
def test_products_of_small_integers_are_exact(kernels: Arithmetic, bf16: bool) -> None:
    rng = np.random.default_rng(1)
    a, b, d = (rng.integers(-16, 17, (200, *shape)) for shape in ((16, 16), (16, 8), (16, 8)))
    got = kernels.multiply(bf16, encode(bf16, a), encode(bf16, b), d.astype(np.float32))
    assert np.array_equal(got, d + a @ b)


@pytest.mark.parametrize("bf16", TYPES, ids=["bf16", "f16"])
def test_every_element_goes_where_it_belongs(kernels: Arithmetic, bf16: bool) -> None:
    # One element of a and one of b a product: all 16 x 16 x 8 of them.
    row, k, column = (i.ravel() for i in np.indices((16, 16, 8)))
    at = np.arange(len(row))
    a, b = np.zeros((len(row), 16, 16)), np.zeros((len(row), 16, 8))
    a[at, row, k], b[at, k, column] = 3, 5
    d = np.broadcast_to(np.arange(128, dtype=np.float32).reshape(16, 8), (len(row), 16, 8)).copy()
    wanted = d.copy()
    wanted[at, row, column] += 15
    assert np.array_equal(kernels.multiply(bf16, encode(bf16, a), encode(bf16, b), d), wanted)


@pytest.mark.parametrize("bf16", TYPES, ids=["bf16", "f16"])
def test_random_products_are_close_in_fp32(kernels: Arithmetic, bf16: bool) -> None:
    rng = np.random.default_rng(2)
    a, b = (encode(bf16, rng.standard_normal((400, *s))) for s in ((16, 16), (16, 8)))
    d = rng.standard_normal((400, 16, 8)).astype(np.float32)
    exact_a, exact_b = decode(bf16, a), decode(bf16, b)
    got = kernels.multiply(bf16, a, b, d)
    # A sum of 17 numbers, each step off by at most a bit of the largest.
    scale = np.abs(d) + np.abs(exact_a) @ np.abs(exact_b)
    assert (np.abs(got - (d + exact_a @ exact_b)) / scale).max() < 17 * 2.0**-24


def test_subnormal_f16_operands_count(kernels: Arithmetic) -> None:
    a = np.full((1, 16, 16), 1, np.uint16)  # 2^-24
    b = np.full((1, 16, 8), 0x6400, np.uint16)  # 1024
    got = kernels.multiply(False, a, b, np.zeros((1, 16, 8), np.float32))
    assert (got == 16 * 1024 * 2.0**-24).all()


@pytest.mark.parametrize("transpose", [False, True], ids=["plain", "trans"])
def test_ldmatrix_deals_four_matrices_out(kernels: Arithmetic, transpose: bool) -> None:
    rng = np.random.default_rng(3)
    words = rng.integers(0, 1 << 16, (8, 32, 8), np.uint16)
    rows = rng.permutation(32).astype(np.uint32)
    got = kernels.load(transpose, words, rows)
    matrices = words[:, rows].reshape(8, 4, 8, 8)
    if transpose:
        matrices = matrices.swapaxes(2, 3)
    pairs = np.ascontiguousarray(matrices).view(np.uint32)  # [warp, matrix, g, j]
    assert np.array_equal(got, pairs.reshape(8, 4, 32).swapaxes(1, 2))
