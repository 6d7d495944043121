"""Conversions of ptx_math.cuh against numpy, bit for bit, on both machines."""

from __future__ import annotations

import numpy as np
import pytest

from megatrace.jit import HOST, default_target
from tests.kernels import arithmetic as n
from tests.kernels.arithmetic import Arithmetic, halves, hard_floats, pack

CODES = np.arange(1 << 16, dtype=np.uint32)
NAN = 0x7FFF


@pytest.fixture(scope="module", params=[HOST, pytest.param("gpu", marks=pytest.mark.gpu)])
def kernels(request: pytest.FixtureRequest) -> Arithmetic:
    return Arithmetic(default_target() if request.param == "gpu" else request.param)


def same(got: np.ndarray, wanted: np.ndarray) -> None:
    """Equal but for what NaN's bits say beyond being one."""
    got, wanted = got.view(np.float32), wanted.view(np.float32)
    assert np.array_equal(np.isnan(got), np.isnan(wanted))
    there = ~np.isnan(wanted)
    assert np.array_equal(got[there].view(np.uint32), wanted[there].view(np.uint32))


def test_every_bf16_code_is_the_float_it_stands_for(kernels: Arithmetic) -> None:
    low, high = kernels.convert(n.BF16_UNPACK, pack(CODES, CODES[::-1]))
    one, _ = kernels.convert(n.BF16_ONE, CODES)
    for got, codes in ((low, CODES), (high, CODES[::-1]), (one, CODES)):
        assert np.array_equal(got, codes << np.uint32(16))


def test_floats_become_the_nearest_bf16_ties_to_even(kernels: Arithmetic) -> None:
    values = hard_floats(n.bf16_values(CODES), seed=1)
    wanted = n.nearest_bf16(values)
    pair, rounded = kernels.convert(n.BF16_PACK, values, values[::-1].copy())
    low, high = halves(pair)
    assert np.array_equal(low, wanted)
    assert np.array_equal(high, wanted[::-1])
    assert np.array_equal(rounded, wanted.astype(np.uint32) << np.uint32(16))
    _, code = kernels.convert(n.BF16_ONE, values, values)
    assert np.array_equal(code, wanted)


def test_every_f16_code_is_the_float_it_stands_for(kernels: Arithmetic) -> None:
    wanted = CODES.astype(np.uint16).view(np.float16).astype(np.float32)
    low, high = kernels.convert(n.F16_UNPACK, pack(CODES, CODES[::-1]))
    same(low, wanted)
    same(high, wanted[::-1].copy())


def test_floats_become_the_nearest_f16_and_stay_finite(kernels: Arithmetic) -> None:
    all_values = CODES.astype(np.uint16).view(np.float16).astype(np.float32)
    values = hard_floats(all_values, seed=2)
    wanted = n.nearest_f16(values, saturate=True)
    pair, _ = kernels.convert(n.F16_PACK, values, values[::-1].copy())
    low, high = halves(pair)
    assert np.array_equal(low, wanted)
    assert np.array_equal(high, wanted[::-1])


def test_products_of_f16_are_rounded_once(kernels: Arithmetic) -> None:
    rng = np.random.default_rng(3)
    codes = rng.integers(0, 1 << 16, (2, 200_000), np.uint32)
    # Many around the border to the subnormals and below it.
    small = rng.integers(0x1000, 0x2400, (2, 200_000), np.uint32)
    a, b = (np.concatenate([codes[i], small[i], CODES, CODES]) for i in range(2))
    b[-len(CODES) :] = CODES[::-1]
    b[-2 * len(CODES) : -len(CODES)] = 0x7000  # 8192: decoded e2m1 times a power of two
    exact = [x.astype(np.uint16).view(np.float16).astype(np.float64) for x in (a, b)]
    with np.errstate(invalid="ignore"):
        wanted = n.nearest_f16(exact[0] * exact[1], saturate=False)
    _, pair = kernels.convert(n.F16_PACK, pack(a, a[::-1]), pack(b, b[::-1]))
    low, high = halves(pair)
    assert np.array_equal(low, wanted)
    assert np.array_equal(high, wanted[::-1])


def test_every_e4m3_code_is_the_f16_it_stands_for(kernels: Arithmetic) -> None:
    wanted = n.nearest_f16(n.e4m3_values(np.arange(256)), saturate=True)
    low, high = halves(kernels.convert(n.E4M3, CODES)[0])
    assert np.array_equal(low, wanted[CODES & 255])
    assert np.array_equal(high, wanted[CODES >> 8])


def test_floats_become_the_nearest_e4m3_and_stay_finite(kernels: Arithmetic) -> None:
    values = hard_floats(n.e4m3_values(np.arange(256)), seed=6)
    values = np.concatenate([values, n.bf16_values(CODES)])
    wanted = n.nearest_e4m3(values)
    codes, _ = kernels.convert(n.E4M3_PACK, values, values[::-1].copy())
    assert np.array_equal(codes.astype(np.uint8), wanted)
    assert np.array_equal((codes >> 8).astype(np.uint8), wanted[::-1])


def test_every_e2m1_code_is_the_f16_it_stands_for(kernels: Arithmetic) -> None:
    values = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
    wanted = np.array(values + [-v for v in values], np.float16).view(np.uint16)
    codes = np.arange(256, dtype=np.uint32)
    pair, has = kernels.convert(n.E2M1, codes)
    if not has.any():
        pytest.skip("this chip does not convert e2m1")
    low, high = halves(pair)
    assert np.array_equal(low, wanted[codes & 15])
    assert np.array_equal(high, wanted[codes >> 4])


def test_bytes_are_picked_and_signs_spread(kernels: Arithmetic) -> None:
    a, b = np.random.default_rng(4).integers(0, 1 << 32, (2, len(CODES)), np.uint32)
    _, got = kernels.convert(n.E4M3, a, b, CODES)
    both = np.stack([a, b], axis=1).view(np.uint8)
    wanted = np.empty((len(CODES), 4), np.uint8)
    for i in range(4):
        pick = CODES >> np.uint32(4 * i) & 15
        byte = both[np.arange(len(CODES)), pick & 7]
        wanted[:, i] = np.where(pick & 8, np.where(byte & 128, 255, 0), byte)
    assert np.array_equal(got, wanted.view(np.uint32)[:, 0])


def test_powers_and_roots_are_close(kernels: Arithmetic) -> None:
    x = np.linspace(-120, 120, 9999, dtype=np.float32)
    y = np.float32(2) ** x
    power, root = (v.view(np.float32) for v in kernels.convert(n.FUNCTIONS, x, y))
    np.testing.assert_allclose(power, np.exp2(x.astype(np.float64)), rtol=3e-7)
    np.testing.assert_allclose(root, 1 / np.sqrt(y.astype(np.float64)), rtol=3e-7)


def test_floats_go_from_lane_to_lane_whole(kernels: Arithmetic) -> None:
    # NaNs too, bit for bit.
    x, y = np.random.default_rng(5).integers(0, 1 << 32, (2, 128), np.uint32)
    one, other = kernels.convert(n.SHUFFLES, x, y)
    lane = np.arange(128)
    assert np.array_equal(one, x[lane // 32 * 32 + 5])
    assert np.array_equal(other, y[lane ^ 3])
