"""arithmetic.cu over numpy arrays, and what numpy says of the same numbers."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from megatrace.jit import Kernel, build, load
from megatrace.schema import Event, EventTable, Kind

TABLE = EventTable("arithmetic", (Event(16, "work", Kind.SPAN, "Unused."),))
SOURCE = Path(__file__).with_name("arithmetic.cu")

BF16_UNPACK, BF16_ONE, BF16_PACK, F16_UNPACK, F16_PACK, E4M3, E2M1, FUNCTIONS, SHUFFLES = range(9)
E4M3_PACK = 9
"""The kernel's conversions."""

Words = NDArray[np.uint32]
Floats = NDArray[np.float32]


class Arithmetic:
    """The kernels of arithmetic.cu, built for a target."""

    def __init__(self, target: str) -> None:
        self._library = load(build(Kernel(SOURCE, (TABLE,)), target), TABLE)
        self._library.megatrace_last_error.restype = ctypes.c_char_p

    def _call(self, name: str, *args: int | np.ndarray) -> None:
        words = [
            a.ctypes.data_as(ctypes.c_void_p) if isinstance(a, np.ndarray) else a for a in args
        ]
        failed = getattr(self._library, name)(*words)
        assert not failed, self._library.megatrace_last_error().decode()

    def convert(
        self, which: int, a: np.ndarray, b: np.ndarray | None = None, c: np.ndarray | None = None
    ) -> tuple[Words, Words]:
        """The two words that a conversion makes of each (a, b, c); 32-bit elements."""
        count = -(-len(a) // 32) * 32
        given = np.zeros((count, 3), np.uint32)
        for i, column in enumerate((a, b, c)):
            if column is not None:
                given[: len(a), i] = column.view(np.uint32)
        out = np.zeros((count, 2), np.uint32)
        self._call("arithmetic_convert", which, given, out, count)
        return out[: len(a), 0].copy(), out[: len(a), 1].copy()

    def multiply(self, bf16: bool, a: np.ndarray, b: np.ndarray, d: Floats) -> Floats:
        """``d + a @ b`` by mma: 16-bit codes a [n, 16, 16], b [n, 16, 8]; d [n, 16, 8]."""
        lane = np.arange(32)
        g, j = lane // 4, lane % 4
        pairs_a = np.ascontiguousarray(a).view(np.uint32)  # [n, 16, 8]: along k
        pairs_b = np.ascontiguousarray(b.transpose(0, 2, 1)).view(np.uint32)  # [n, 8, 8]
        words = [pairs_a[:, g + rows, j + k] for k in (0, 4) for rows in (0, 8)]
        words += [pairs_b[:, g, j + k] for k in (0, 4)]
        where = [(g + rows, 2 * j + i) for rows in (0, 8) for i in (0, 1)]
        given = np.ascontiguousarray(np.stack(words, axis=-1))
        sums = np.ascontiguousarray(np.stack([d[:, r, n] for r, n in where], axis=-1))
        self._call("arithmetic_multiply", int(bf16), given, sums, len(a))
        out = np.empty_like(d)
        for i, (r, n) in enumerate(where):
            out[:, r, n] = sums[:, :, i]
        return out

    def load(self, transpose: bool, matrices: NDArray[np.uint16], rows: Words) -> Words:
        """ldmatrix of [8 warps, 32 rows, 8] elements, lane i naming row rows[i]: [8, 32, 4]."""
        out = np.zeros((8, 32, 4), np.uint32)
        self._call("arithmetic_load", int(transpose), np.ascontiguousarray(matrices), rows, out)
        return out


def pack(low: np.ndarray, high: np.ndarray) -> Words:
    """Words of two 16-bit codes."""
    return low.astype(np.uint32) | high.astype(np.uint32) << np.uint32(16)


def halves(words: Words) -> tuple[NDArray[np.uint16], NDArray[np.uint16]]:
    """The low and the high code of words."""
    return words.astype(np.uint16), (words >> np.uint32(16)).astype(np.uint16)


def bf16_values(codes: np.ndarray) -> Floats:
    """What bf16 codes stand for."""
    return (codes.astype(np.uint32) << np.uint32(16)).view(np.float32)


def nearest_bf16(values: Floats) -> NDArray[np.uint16]:
    """The nearest bf16 code, the even one of two as near; NaN is 0x7fff.

    Measured in float64: of the codes below and above the nearer one, and infinity stands
    where the number after the largest would.
    """
    with np.errstate(invalid="ignore"):
        size = np.abs(values).astype(np.float64)
    below = (np.abs(values).view(np.uint32) >> np.uint32(16)).astype(np.int64)
    scale = np.append(bf16_values(np.arange(0x7F80)).astype(np.float64), 2.0**128)
    lower = np.minimum(below, 0x7F7F)
    to_lower, to_upper = size - scale[lower], scale[lower + 1] - size
    up = (to_upper < to_lower) | ((to_upper == to_lower) & (lower % 2 == 1))
    code = np.where(np.isinf(values), 0x7F80, lower + up)
    code = code | np.where(np.signbit(values), 0x8000, 0)
    return np.where(np.isnan(values), 0x7FFF, code).astype(np.uint16)


def nearest_f16(values: np.ndarray, *, saturate: bool) -> NDArray[np.uint16]:
    """The nearest f16 code of float32 or float64; NaN is 0x7fff."""
    with np.errstate(over="ignore", invalid="ignore"):
        given = np.clip(values, -65504, 65504) if saturate else values
        codes = given.astype(np.float16).view(np.uint16)
    return np.where(np.isnan(values), 0x7FFF, codes).astype(np.uint16)


def e4m3_values(codes: np.ndarray) -> Floats:
    """What codes of 4 bits of exponent and 3 of mantissa stand for; 0x7f and 0xff are NaN."""
    exponent, mantissa = codes >> 3 & 15, codes & 7
    size = np.where(
        exponent == 0, mantissa / 8 * 2.0**-6, (1 + mantissa / 8) * 2.0 ** (exponent - 7.0)
    )
    value = np.where(codes & 127 == 127, np.nan, np.where(codes & 128, -size, size))
    return value.astype(np.float32)


def nearest_e4m3(values: Floats) -> NDArray[np.uint8]:
    """The nearest finite code of e4m3, the even one of two as near; NaN is 0x7f."""
    scale = e4m3_values(np.arange(127)).astype(np.float64)
    with np.errstate(invalid="ignore"):
        size = np.minimum(np.abs(values).astype(np.float64), scale[-1])
    lower = np.clip(np.searchsorted(scale, size, side="right") - 1, 0, 125)
    to_lower, to_upper = size - scale[lower], scale[lower + 1] - size
    up = (to_upper < to_lower) | ((to_upper == to_lower) & (lower % 2 == 1))
    code = (lower + up) | np.where(np.signbit(values), 0x80, 0)
    return np.where(np.isnan(values), 0x7F, code).astype(np.uint8)


def hard_floats(values: Floats, seed: int) -> Floats:
    """Floats that are hard to round to ``values``: these, midways, their neighbours, any bits."""
    finite = np.sort(values[np.isfinite(values)])
    middle = ((finite[1:].astype(np.float64) + finite[:-1]) / 2).astype(np.float32)
    exact = np.concatenate([values, middle])
    there = exact[np.isfinite(exact)]
    limits = np.finfo(np.float32)
    near = [np.nextafter(there, to) for to in (limits.min, limits.max)]
    bits = np.random.default_rng(seed).integers(0, 1 << 32, 100_000, np.uint32)
    edges = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 65519.996, 65520, 1e-45], np.float32)
    return np.concatenate([exact, *near, bits.view(np.float32), edges])
