"""NVFP4 as the checkpoint stores it: w = e2m1 code * e4m3 scale of 16 columns * fp32 scale."""

from __future__ import annotations

from itertools import pairwise

import torch

VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""Magnitude of each code; bit 3 is the sign."""
GROUP = 16
_LARGEST_SCALE = 448.0


def decode(codes: torch.Tensor) -> torch.Tensor:
    """uint8 [..., n / 2], low nibble first -> fp32 [..., n], without scales."""
    table = torch.tensor([*VALUES, *(-v for v in VALUES)], device=codes.device)
    pairs = torch.stack((codes & 15, codes >> 4), dim=-1).flatten(-2)
    return table[pairs.long()]


def dequantise(codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Code times group scale, fp32 [..., n]: exact; without the fp32 scale."""
    return decode(codes) * scales.float().repeat_interleave(GROUP, dim=-1)


def quantise(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """fp32 [..., rows, n] -> (codes uint8 [..., rows, n / 2], scales e4m3 [..., rows, n / 16],
    fp32 scale [...], one for all rows).
    """  # noqa: D205
    whole = weight.abs().amax(dim=(-1, -2)) / (VALUES[-1] * _LARGEST_SCALE)
    whole = whole.clamp(min=1e-20)
    groups = weight.reshape(*weight.shape[:-1], -1, GROUP) / whole[..., None, None, None]
    scales = (groups.abs().amax(-1) / VALUES[-1]).to(torch.float8_e4m3fn)
    scaled = groups / scales.float().clamp(min=2.0**-9)[..., None]
    middles = [(a + b) / 2 for a, b in pairwise(VALUES)]
    codes = torch.bucketize(scaled.abs(), torch.tensor(middles, device=weight.device))
    codes = (codes | ((scaled < 0).long() << 3)).to(torch.uint8).flatten(-2)
    return codes[..., 0::2] | (codes[..., 1::2] << 4), scales, whole
