"""The byte orders that the kernel's tensor-core operands are read in, and the way back.

A tile is 16 rows. Of its k-blocks of 64 columns, lane (g, j) = (lane // 4, lane % 4) owns the
columns 16 j .. 16 j + 15 of rows g and g + 8; k-step s takes its columns 16 j + 4 s + {0, 1}, the
low pair, and {2, 3}, the high one. Every function here is a permutation: unpacking gives back
the very bits. Tensors may lie on any device.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch

Fp4Layout = Literal["bits", "native"]
"""How a word holds eight e2m1 codes: for a mask and a shift, or for a conversion instruction."""

TARGET_LAYOUT: dict[str, Fp4Layout] = {"sm_90a": "bits", "sm_103a": "native", "host": "bits"}
"""The layout that each build of the kernel reads."""

STAGE_COLUMNS = 1024
"""Columns of a stage of NVFP4: codes of all its k-blocks, then their scales."""
CODE_BYTES, SCALE_BYTES = 512, 64
"""Of one k-block of a tile."""

# A dense tensor [rows, columns] as tile, half, g, chunk, k-block, j, k-step, pair, element.
_DENSE_BF16 = (3, 0, 4, 6, 2, 5, 7, 1, 8)
_DENSE_FP32 = (3, 0, 4, 6, 7, 2, 5, 1, 8)


def pack_dense(weight: torch.Tensor) -> torch.Tensor:
    """[rows, columns] bf16 or fp32 -> bytes, uint8; rows by 16, columns by 128.

    Order: chunk of 128 columns, row tile, k-block, k-step, then for bf16 lane and pair, for fp32
    pair and lane.
    """
    rows, columns = weight.shape
    order = _dense_order(weight.dtype)
    view = weight.reshape(rows // 16, 2, 8, columns // 128, 2, 4, 4, 2, 2)
    return view.permute(order).contiguous().view(torch.uint8).flatten()


def unpack_dense(packed: torch.Tensor, rows: int, columns: int, dtype: torch.dtype) -> torch.Tensor:
    """The [rows, columns] that ``pack_dense`` took."""
    order = _dense_order(dtype)
    sizes = (rows // 16, 2, 8, columns // 128, 2, 4, 4, 2, 2)
    view = packed.view(dtype).view([sizes[i] for i in order])
    return view.permute(_inverse(order)).reshape(rows, columns)


def interleave_gate_up(weight: torch.Tensor) -> torch.Tensor:
    """[experts, 2 I, ...], gate rows first -> eight gate rows, their eight up rows, and so on."""
    experts, rows = weight.shape[:2]
    view = weight.reshape(experts, 2, rows // 16, 8, *weight.shape[2:])
    return view.transpose(1, 2).reshape(weight.shape)


def separate_gate_up(weight: torch.Tensor) -> torch.Tensor:
    """The way back of ``interleave_gate_up``."""
    experts, rows = weight.shape[:2]
    view = weight.reshape(experts, rows // 16, 2, 8, *weight.shape[2:])
    return view.transpose(1, 2).reshape(weight.shape)


def pack_experts_bf16(weight: torch.Tensor) -> torch.Tensor:
    """[experts, rows, columns] bf16 -> bytes [experts, n]; rows by 16, columns by 64."""
    experts, rows, columns = weight.shape
    view = weight.reshape(experts, rows // 16, 2, 8, columns // 64, 4, 4, 2, 2)
    # tile, k-block, k-step, g, j, pair, half, element
    packed = view.permute(0, 1, 4, 6, 3, 5, 7, 2, 8).contiguous()
    return packed.view(torch.uint8).view(experts, -1)


def unpack_experts_bf16(packed: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    """The [experts, rows, columns] that ``pack_experts_bf16`` took."""
    experts = packed.shape[0]
    view = packed.view(torch.bfloat16).view(experts, rows // 16, columns // 64, 4, 8, 4, 2, 2, 2)
    return view.permute(0, 1, 7, 4, 2, 5, 3, 6, 8).reshape(experts, rows, columns)


def pack_experts_nvfp4(
    codes: torch.Tensor, scales: torch.Tensor, layout: Fp4Layout
) -> torch.Tensor:
    """Codes uint8 [experts, rows, columns / 2] (low nibble first) and e4m3 scales
    [experts, rows, columns / 16] -> bytes [experts, n]; rows by 16, columns by 64.

    Order: row tile, stage of up to 1024 columns; in a stage the codes, k-block and lane, 16
    bytes, then the scales, k-block and lane, 2 bytes.
    """  # noqa: D205
    experts, rows, half_columns = codes.shape
    blocks, tiles = half_columns // 32, rows // 16
    packed = torch.empty(
        (experts, tiles, blocks * (CODE_BYTES + SCALE_BYTES)),
        dtype=torch.uint8,
        device=codes.device,
    )
    # A lane's 16 codes of a row are one int64, its scale of them one byte.
    code_view = codes.contiguous().view(torch.int64).view(experts, tiles, 2, 8, blocks, 4)
    scale_view = scales.view(torch.uint8).view(experts, tiles, 2, 8, blocks, 4)
    for expert in range(experts):
        for at, first, last in _stages(blocks):
            middle = at + (last - first) * CODE_BYTES
            end = middle + (last - first) * SCALE_BYTES
            words = code_view[expert, ..., first:last, :].permute(0, 3, 2, 4, 1).contiguous()
            words = words.view(torch.int32)
            if layout == "bits":
                words = _to_bits(words)
            packed[expert, :, at:middle] = words.view(torch.uint8).view(tiles, -1)
            bytes_ = scale_view[expert, ..., first:last, :].permute(0, 3, 2, 4, 1)
            packed[expert, :, middle:end] = bytes_.reshape(tiles, -1)
    return packed.view(experts, -1)


def unpack_experts_nvfp4(
    packed: torch.Tensor, rows: int, columns: int, layout: Fp4Layout
) -> tuple[torch.Tensor, torch.Tensor]:
    """The codes and scales (as uint8) that ``pack_experts_nvfp4`` took."""
    experts, tiles, blocks = packed.shape[0], rows // 16, columns // 64
    bytes_ = packed.view(experts, tiles, -1)
    codes = torch.empty((experts, tiles, 2, 8, blocks, 4), dtype=torch.int64, device=packed.device)
    scales = torch.empty(codes.shape, dtype=torch.uint8, device=packed.device)
    for at, first, last in _stages(blocks):
        count = last - first
        middle, end = at + count * CODE_BYTES, at + count * (CODE_BYTES + SCALE_BYTES)
        words = bytes_[:, :, at:middle].contiguous().view(torch.int32)
        if layout == "bits":
            words = _to_native(words)
        shape = (experts, tiles, count, 8, 4, 2)
        codes[..., first:last, :] = words.view(torch.int64).view(shape).permute(0, 1, 5, 3, 2, 4)
        scales[..., first:last, :] = (
            bytes_[:, :, middle:end].reshape(shape).permute(0, 1, 5, 3, 2, 4)
        )
    return (
        codes.view(torch.uint8).view(experts, rows, columns // 2),
        scales.view(experts, rows, columns // 16),
    )


def _dense_order(dtype: torch.dtype) -> tuple[int, ...]:
    return _DENSE_FP32 if dtype == torch.float32 else _DENSE_BF16


def _inverse(order: tuple[int, ...]) -> list[int]:
    return sorted(range(len(order)), key=order.__getitem__)


def _stages(blocks: int) -> list[tuple[int, int, int]]:
    """(byte a stage begins at in its tile, its first k-block, the one after its last)."""
    step = STAGE_COLUMNS // 64
    return [
        (first * (CODE_BYTES + SCALE_BYTES), first, min(first + step, blocks))
        for first in range(0, blocks, step)
    ]


# Pair p of a native word is its byte p: the lower column's code (sign, exponent, mantissa) in the
# low nibble. In "bits" the lower column's code lies in the low half of the word, the upper
# column's at the same bits of the high half: sign to bit _SIGN[p], the rest from bit _MAGNITUDE[p].
_SIGN = (15, 12, 14, 13)
_MAGNITUDE = (9, 6, 3, 0)
_BOTH_SIGNS, _BOTH_MAGNITUDES = 0x00080008, 0x00070007
_PIECE = 1 << 16


def _to_bits(words: torch.Tensor) -> torch.Tensor:
    """Native words as "bits", int32: a look-up for each half of a word."""
    native = torch.arange(1 << 16, dtype=torch.int32, device=words.device)
    low, high = _spread(native, (0, 1)), _spread(native, (2, 3))
    bits = torch.empty_like(words)
    if words.is_cuda:
        halves = words.view(torch.int16).view(-1, 2).to(torch.int32) & 0xFFFF
        torch.index_select(low, 0, halves[:, 0], out=bits.view(-1))
        bits.view(-1).bitwise_or_(torch.index_select(high, 0, halves[:, 1]))
        return bits
    # numpy in pieces of a cache: torch would begin and end its threads thousands of times.
    tables, source, target = (low.numpy(), high.numpy()), words.view(-1), bits.view(-1)
    for begin in range(0, source.numel(), _PIECE):
        piece = source[begin : begin + _PIECE].numpy().view(np.uint16).reshape(-1, 2)
        out = target[begin : begin + _PIECE].numpy()
        np.bitwise_or(np.take(tables[0], piece[:, 0]), np.take(tables[1], piece[:, 1]), out=out)
    return bits


def _spread(half: torch.Tensor, pairs: tuple[int, int]) -> torch.Tensor:
    """Two bytes of a native word, the ones of ``pairs``, where "bits" has them."""
    spread = torch.zeros_like(half)
    for byte, p in enumerate(pairs):
        pair = half >> (8 * byte)
        both = (pair & 0xF) | ((pair & 0xF0) << 12)
        spread |= (both & _BOTH_MAGNITUDES) << _MAGNITUDE[p]
        spread |= (both & _BOTH_SIGNS) << (_SIGN[p] - 3)
    return spread


def _to_native(words: torch.Tensor) -> torch.Tensor:
    """The way back of ``_to_bits``."""
    native = torch.zeros_like(words)
    for p in range(4):
        both = (words >> _MAGNITUDE[p]) & _BOTH_MAGNITUDES
        both |= (words >> (_SIGN[p] - 3)) & _BOTH_SIGNS
        native |= ((both & 0xF) | ((both >> 12) & 0xF0)) << (8 * p)
    return native
