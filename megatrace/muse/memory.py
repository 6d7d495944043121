"""What the megakernel's own copy of the weights costs, and whether the server can afford it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from megatrace.muse.config import HEAD_DIM, MuseConfig, RankShape
from megatrace.muse.plan import CACHE_BYTES, CacheKind, ExpertKind, packed_layer_bytes

GB = 1e9
_WORDS_OF_BLOCKS = 128 << 20
"""More than the hand-offs of any covered model take."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of a device."""

    free: int
    total: int

    @classmethod
    def of(cls, device: torch.device | str) -> Memory:
        """Those of a GPU, or of this machine."""
        if torch.device(device).type == "cuda":
            return cls(*torch.cuda.mem_get_info(device))
        lines = (line.split() for line in Path("/proc/meminfo").read_text().splitlines())
        kib = {words[0]: int(words[1]) for words in lines}
        return cls(kib["MemAvailable:"] << 10, kib["MemTotal:"] << 10)


def packed_bytes(model: MuseConfig, rank: RankShape, kinds: Sequence[ExpertKind]) -> int:
    """Bytes of all packed layers, experts of ``kinds``."""
    return sum(packed_layer_bytes(model, rank, kind) for kind in kinds)


def kv_bytes(model: MuseConfig, rank: RankShape, tokens: int, cache: CacheKind = "bf16") -> int:
    """Bytes of the keys and values of one request of ``tokens``."""
    row = 2 * rank.kv_heads * HEAD_DIM * CACHE_BYTES[cache]
    return sum(row * (min(kind.window or tokens, tokens)) for kind in model.layers)


def shortage(packed: int, freed: int, kv: int, kept_free: float, memory: Memory) -> str | None:
    """Why the server cannot afford ``packed`` bytes more, with the numbers; None: it can.

    ``freed`` bytes are given back while packing, ``kv`` must fit afterwards, and the fraction
    ``kept_free`` of the device is not for weights or keys.
    """
    room = memory.free + freed - round(kept_free * memory.total) - _WORDS_OF_BLOCKS - packed
    if room >= kv:
        return None
    return (
        f"the megakernel's own packing of the weights takes {packed / GB:.2f} GB: of "
        f"{memory.total / GB:.2f} GB, {memory.free / GB:.2f} are free and "
        f"{kept_free * memory.total / GB:.2f} kept for activations and graphs, which leaves "
        f"{max(room, 0) / GB:.2f} GB for keys and values of at least {kv / GB:.2f} GB; "
        "free memory, serve fewer layers, or raise --mem-fraction-static"
    )
