"""Each element lies where the formula of the layout says, and unpacking gives back every bit."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from megatrace.muse import layout, nvfp4
from megatrace.muse.layout import Fp4Layout

LAYOUTS: list[Fp4Layout] = ["bits", "native"]


def places(row: int, column: int) -> tuple[int, int, int, int, int, int]:
    """(lane, half, k-step, pair, element, k-block) of an element of a tile."""
    g, half = row % 8, row % 16 // 8
    j, within = column % 64 // 16, column % 16
    return g * 4 + j, half, within // 4, within % 4 // 2, within % 2, column // 64


def dense_byte(rows: int, row: int, column: int, size: int) -> int:
    """Where a dense element of 2 or 4 bytes lies."""
    lane, half, step, pair, element, block = places(row, column)
    chunk, tiles = column // 128, rows // 16
    tile = (chunk * tiles + row // 16) * 16 * 128 * size + block % 2 * 16 * 64 * size
    if size == 2:
        return tile + step * 512 + lane * 16 + (pair * 2 + half) * 4 + element * 2
    return tile + step * 1024 + pair * 512 + lane * 16 + half * 8 + element * 4


def nvfp4_stage(columns: int, row: int, column: int) -> tuple[int, int, int]:
    """(first byte of the stage, its k-blocks, k-block in it) of an expert's element."""
    stage, all_blocks = column // 1024, columns // 64
    blocks = min(16, all_blocks - stage * 16)
    return row // 16 * all_blocks * 576 + stage * 16 * 576, blocks, column % 1024 // 64


def points(rows: int, columns: int, count: int = 300) -> list[tuple[int, int]]:
    seeded = random.Random(rows * columns)
    corners = [(0, 0), (rows - 1, columns - 1), (0, columns - 1), (rows - 1, 0)]
    return corners + [(seeded.randrange(rows), seeded.randrange(columns)) for _ in range(count)]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(("rows", "columns"), [(16, 128), (48, 1024), (32, 2048 + 384)])
def test_a_dense_element_lies_where_the_layout_says(
    rows: int, columns: int, dtype: torch.dtype
) -> None:
    weight = torch.randn(rows, columns).to(dtype)
    size = weight.element_size()
    packed = layout.pack_dense(weight).numpy()
    assert packed.size == rows * columns * size
    stored = weight.view(torch.uint8).numpy()
    for row, column in points(rows, columns):
        at = dense_byte(rows, row, column, size)
        assert (packed[at : at + size] == stored[row, column * size : (column + 1) * size]).all()
    assert torch.equal(layout.unpack_dense(layout.pack_dense(weight), rows, columns, dtype), weight)


def test_a_bf16_expert_is_packed_tile_after_tile() -> None:
    experts, rows, columns = 3, 32, 320
    weight = torch.randn(experts, rows, columns).bfloat16()
    packed = layout.pack_experts_bf16(weight)
    assert packed.shape == (experts, rows * columns * 2)
    stored = weight.view(torch.int16)
    for row, column in points(rows, columns):
        lane, half, step, pair, element, block = places(row, column)
        at = row // 16 * columns * 32 + block * 2048 + step * 512 + lane * 16
        at += (pair * 2 + half) * 4 + element * 2
        for expert in range(experts):
            found = packed[expert, at : at + 2].view(torch.int16).item()
            assert found == stored[expert, row, column].item()
    assert torch.equal(layout.unpack_experts_bf16(packed, rows, columns), weight)


def native_code(word: int, pair: int, element: int) -> int:
    return word >> (8 * pair + 4 * element) & 15


def bits_code(word: int, pair: int, element: int) -> int:
    sign, rest = [(15, 9), (12, 6), (14, 3), (13, 0)][pair]
    half = word >> (16 * element) & 0xFFFF
    return (half >> sign & 1) << 3 | half >> rest & 7


@pytest.mark.parametrize("order", LAYOUTS)
@pytest.mark.parametrize(("rows", "columns"), [(16, 64), (32, 1024), (48, 1024 + 192)])
def test_an_nvfp4_element_lies_where_the_layout_says(
    rows: int, columns: int, order: Fp4Layout
) -> None:
    draw = torch.Generator().manual_seed(1)
    codes = torch.randint(0, 256, (2, rows, columns // 2), dtype=torch.uint8, generator=draw)
    scales = torch.randint(0, 256, (2, rows, columns // 16), dtype=torch.uint8, generator=draw)
    packed = layout.pack_experts_nvfp4(codes, scales.view(torch.float8_e4m3fn), order)
    assert packed.shape == (2, rows * columns * 9 // 16)
    read = native_code if order == "native" else bits_code
    for row, column in points(rows, columns):
        lane, half, step, pair, element, _ = places(row, column)
        base, blocks, block = nvfp4_stage(columns, row, column)
        at = base + block * 512 + lane * 16 + (half * 2 + step // 2) * 4
        scale_at = base + blocks * 512 + block * 64 + lane * 2 + half
        for expert in range(2):
            word = int(packed[expert, at : at + 4].numpy().view(np.uint32)[0])
            stored = int(codes[expert, row, column // 2]) >> (4 * (column % 2)) & 15
            assert read(word, step % 2 * 2 + pair, element) == stored
            assert packed[expert, scale_at] == scales[expert, row, column // 16]
    unpacked = layout.unpack_experts_nvfp4(packed, rows, columns, order)
    assert torch.equal(unpacked[0], codes)
    assert torch.equal(unpacked[1], scales)


def test_a_mask_and_a_product_decode_bits_to_f16() -> None:
    draw = torch.Generator().manual_seed(2)
    codes = torch.randint(0, 256, (1, 16, 32), dtype=torch.uint8, generator=draw)
    packed = layout.pack_experts_nvfp4(codes, torch.zeros(1, 16, 4, dtype=torch.uint8), "bits")
    q = packed[0, :512].numpy().view(np.uint32)
    mask = np.uint32(0x8E008E00)
    decoded = [
        q & mask,
        (q * np.uint32(8)) & mask,
        ((q & np.uint32(0x40384038)) * np.uint32(66)) & mask,
        ((q & np.uint32(0x20072007)) * np.uint32(516)) & mask,
    ]
    found = np.stack([pair.view(np.float16).reshape(-1, 2) for pair in decoded], axis=1)
    # [lane, word of the lane, pair, element]
    found = found.reshape(32, 4, 4, 2).astype(np.float32) * 2.0**14
    values = nvfp4.decode(codes)[0].numpy()
    for lane in range(32):
        g, j = divmod(lane, 4)
        for word in range(4):
            columns = 16 * j + 8 * (word % 2)
            expected = values[g + word // 2 * 8, columns : columns + 8]
            assert (found[lane, word].reshape(-1) == expected).all()


def test_gate_and_up_rows_meet_in_a_tile() -> None:
    rows = torch.arange(96).view(1, 96, 1)
    tiles = layout.interleave_gate_up(rows).view(6, 2, 8)
    for tile in range(6):
        assert tiles[tile, 0].tolist() == list(range(8 * tile, 8 * tile + 8))
        assert tiles[tile, 1].tolist() == list(range(48 + 8 * tile, 48 + 8 * tile + 8))
    assert torch.equal(layout.separate_gate_up(layout.interleave_gate_up(rows)), rows)


def test_quantised_normals_are_near_what_they_were() -> None:
    weight = torch.randn(2, 64, 256) * torch.tensor([0.02, 3.0])[:, None, None]
    codes, scales, whole = nvfp4.quantise(weight)
    near = nvfp4.dequantise(codes, scales) * whole[:, None, None]
    assert ((near - weight).norm(dim=(1, 2)) / weight.norm(dim=(1, 2))).max() < 0.12


def test_what_is_quantised_already_is_kept() -> None:
    draw = torch.Generator().manual_seed(3)
    codes = torch.randint(0, 256, (64, 128), dtype=torch.uint8, generator=draw)
    codes[:, ::8] = 0x77  # six and six: every group has its largest code
    scales = torch.full((64, 16), 2.0).to(torch.float8_e4m3fn)
    scales[0, 0] = 448.0
    weight = nvfp4.dequantise(codes, scales)
    again = nvfp4.quantise(weight)
    assert torch.equal(nvfp4.dequantise(*again[:2]) * again[2], weight)
