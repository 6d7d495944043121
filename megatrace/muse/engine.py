"""One rank's memory, and the launches of a step over it.

An :class:`Engine` owns what lies between the weights and SGLang's pools: residual stream,
queries, hand-off words in rotation, exchange buffers. ``step`` lists the launches of one decode
or verify step, fused (a launch a layer) or as the twin (a launch a phase).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from megatrace.errors import UsageError
from megatrace.muse.config import HEAD_DIM, MuseConfig, RankShape
from megatrace.muse.pack import PackedLayer, rope_table
from megatrace.muse.params import (
    Exchange,
    KvCache,
    Params,
    Phase,
    Shape,
    address_of,
    cut_handoff,
    exchange_words,
    handoff_offsets,
    layer_weights,
    make_shape,
)
from megatrace.muse.plan import WORK_BYTES, CacheKind, scratch_bytes

MAX_QUOTIENT = 1 << 20
"""Heads of a step times blocks stay below: ``quotient`` of heads.cuh is exact up to here."""
Form = Literal["fused", "twin"]
CACHE_DTYPES: dict[CacheKind, torch.dtype] = {"bf16": torch.bfloat16, "e4m3": torch.float8_e4m3fn}
LAYER_PHASES: tuple[Phase, ...] = tuple(phase for phase in Phase if phase is not Phase.EMBED)
"""What a launch of a layer runs, the projections of the next layer included."""
LAST_PHASES: tuple[Phase, ...] = tuple(
    phase for phase in LAYER_PHASES if phase not in (Phase.QKV, Phase.QKV_FINISH)
)
EMBED_PHASES: tuple[Phase, ...] = (Phase.EMBED, Phase.QKV, Phase.QKV_FINISH)
_EXCHANGES = ("attn_reduce", "expert_reduce", "pre_gather", "post_gather")


@dataclass(frozen=True, slots=True)
class Cache:
    """Keys and values of one layer.

    ``keys`` and ``values``: bf16 or float8_e4m3fn [slots, kv heads, 64]; ``slots``: int32
    [positions], the slot of each position; ``rope``: fp32 [positions, 64], cos(32) | sin(32), None
    without positions; ``window``: keys a query sees, 0: all.
    """

    keys: torch.Tensor
    values: torch.Tensor
    slots: torch.Tensor
    rope: torch.Tensor | None
    window: int

    def check(self, layer: int, rank: RankShape, device: str) -> None:
        """Raise UsageError where a tensor is not what the kernel reads."""
        for name, tensor in (("keys", self.keys), ("values", self.values)):
            _check(f"{name} of layer {layer}", tensor, CACHE_DTYPES[self.kind], device)
            if tuple(tensor.shape[1:]) != (rank.kv_heads, HEAD_DIM):
                raise UsageError(
                    f"{name} of layer {layer} are {tuple(tensor.shape)}: "
                    f"[slots, {rank.kv_heads}, {HEAD_DIM}] is needed"
                )
        if self.keys.shape != self.values.shape:
            raise UsageError(f"layer {layer} has other slots for keys than for values")
        _check(f"slots of layer {layer}", self.slots, torch.int32, device)
        if self.rope is not None:
            _check(f"rope table of layer {layer}", self.rope, torch.float32, device)
            if self.rope.ndim != 2 or self.rope.shape[1] != HEAD_DIM:
                raise UsageError(
                    f"the rope table of layer {layer} is {tuple(self.rope.shape)}: "
                    f"[positions, {HEAD_DIM}] is needed"
                )

    @property
    def kind(self) -> CacheKind:
        """How its keys are stored; raises UsageError where the kernel does not read that."""
        for kind, dtype in CACHE_DTYPES.items():
            if self.keys.dtype == dtype:
                return kind
        covered = " and ".join(str(dtype) for dtype in CACHE_DTYPES.values())
        raise UsageError(f"keys and values in {self.keys.dtype}; the megakernel reads {covered}")

    def struct(self) -> KvCache:
        """The kernel's view of it."""
        return KvCache(
            keys=address_of(self.keys),
            values=address_of(self.values),
            slots=address_of(self.slots),
            rope=address_of(self.rope),
            window=self.window,
            element_bytes=self.keys.element_size(),
        )


def _check(name: str, tensor: torch.Tensor, dtype: torch.dtype, device: str) -> None:
    if tensor.dtype != dtype or not tensor.is_contiguous():
        how = "contiguous" if tensor.is_contiguous() else "not contiguous"
        raise UsageError(f"{name}: {tensor.dtype}, {how}; the megakernel reads contiguous {dtype}")
    if tensor.device.type != torch.device(device).type:
        raise UsageError(f"{name} is on {tensor.device}, the megakernel runs on {device}")


def new_cache(
    model: MuseConfig,
    rank: RankShape,
    layer: int,
    positions: int,
    device: str,
    cache: CacheKind = "bf16",
) -> Cache:
    """An empty cache of ``positions``, whose slots are the positions plus one.

    Slot 0 is the padding slot and stays free.
    """
    kind, dtype = model.layers[layer], CACHE_DTYPES[cache]
    shape = (positions + 1, rank.kv_heads, HEAD_DIM)
    return Cache(
        torch.zeros(shape, dtype=dtype, device=device),
        torch.zeros(shape, dtype=dtype, device=device),
        torch.arange(1, positions + 1, dtype=torch.int32, device=device),
        rope_table(kind.rope_theta, positions, device) if kind.rope_theta > 0 else None,
        kind.window,
    )


def max_splits(rank: RankShape, blocks: int) -> int:
    """Chunks of keys that the attention cuts a kv head's into, on a grid of ``blocks``."""
    return max(1, blocks // rank.kv_heads)


@dataclass
class Engine:
    """Memory of one rank for steps of up to ``max_rows`` rows on a grid of ``blocks``.

    ``caches`` are one a layer. With more ranks than one, peers are emulated (loopback): their
    rows stand in ``peers`` and never change.
    """

    model: MuseConfig
    rank: RankShape
    layers: Sequence[PackedLayer]
    caches: Sequence[Cache]
    blocks: int
    max_rows: int
    device: str
    embedding: torch.Tensor | None = None
    stream: torch.Tensor = field(init=False)
    q: torch.Tensor = field(init=False)
    gate: torch.Tensor = field(init=False)
    context: torch.Tensor = field(init=False)
    tokens: torch.Tensor = field(init=False)
    routes: dict[int, torch.Tensor] = field(init=False, default_factory=dict)
    """int32 [max_rows, top_k], the experts of the layers that ``keep_routes`` named."""
    taps: dict[int, torch.Tensor] = field(init=False, default_factory=dict)
    """bf16 [max_rows, hidden] after the layers that ``tap`` or ``tap_side_by_side`` named."""
    peers: dict[str, torch.Tensor] = field(init=False)
    """What the other ranks send: bf16 [ranks, max_rows, columns] of each exchange."""

    def __post_init__(self) -> None:
        """Allocate; raises UsageError where the model or what lies in memory is not covered."""
        self.model.check_rows(self.max_rows)
        heads = 2 * self.max_rows * (self.rank.heads + self.rank.kv_heads)
        if heads * self.blocks >= MAX_QUOTIENT:
            raise UsageError(
                f"{self.max_rows} rows of {self.rank.heads} query and {self.rank.kv_heads} kv "
                f"heads on {self.blocks} blocks: the megakernel divides up to {MAX_QUOTIENT}"
            )
        needed = scratch_bytes(self.model, self.max_rows, self.blocks)
        if needed > WORK_BYTES:
            raise UsageError(
                f"{self.max_rows} rows of {self.model.hidden} columns on {self.blocks} blocks "
                f"take {needed} bytes of a block's scratch memory, which has {WORK_BYTES}",
                hint="fewer rows or more SMs",
            )
        if len(self.layers) != len(self.caches) or not self.layers:
            raise UsageError(f"{len(self.layers)} layers with {len(self.caches)} caches")
        for i, cache in enumerate(self.caches):
            cache.check(i, self.rank, self.device)
            if cache.kind != self.cache_kind:
                raise UsageError(
                    f"keys and values of layer {i} are in {cache.keys.dtype}, those of layer 0 in "
                    f"{self.caches[0].keys.dtype}: one build of the megakernel reads them all"
                )
        if self.embedding is not None:
            _check("embedding", self.embedding, torch.bfloat16, self.device)
        rows, device = self.max_rows, self.device
        columns = self.rank.heads * HEAD_DIM
        bf16: dict[str, Any] = {"dtype": torch.bfloat16, "device": device}
        self.stream = torch.zeros(rows, self.model.hidden, device=device)
        self.q = torch.zeros(rows, columns, **bf16)
        self.gate = torch.zeros(rows, columns, **bf16)
        self.context = torch.zeros(1, dtype=torch.int32, device=device)
        self.tokens = torch.zeros(rows, dtype=torch.int32, device=device)
        shape = self.shape(rows)
        _, words = handoff_offsets(shape)
        own = sum(-(-count // 4) * 4 for count in exchange_words(shape).values())
        self._arenas = torch.full((3, words + own), -1, dtype=torch.int32, device=device)
        self.peers = {
            name: torch.zeros(self.rank.ranks, rows, count * 2 // rows, **bf16)
            for name, count in exchange_words(shape).items()
        }
        self._dump = {name: torch.zeros_like(t) for name, t in self.peers.items()}

    @property
    def cache_kind(self) -> CacheKind:
        """How the keys and values of all layers are stored."""
        return self.caches[0].kind

    def shape(self, rows: int) -> Shape:
        """The sizes of a step of ``rows`` rows."""
        return make_shape(self.model, self.rank, rows, self.splits)

    @property
    def splits(self) -> int:
        """Chunks of keys the hand-off has room for."""
        return max_splits(self.rank, self.blocks)

    def empty(self) -> None:
        """Empty all hand-off words: before the first replay, and after a program that was cut."""
        self._arenas.fill_(-1)

    def handoff_words(self, index: int) -> torch.Tensor:
        """The words of one of the three arenas, int32."""
        return self._arenas[index]

    def keep_routes(self) -> None:
        """Let steps built from now on write which experts the rows of each layer go to."""
        for layer in range(len(self.layers)):
            self.routes[layer] = torch.zeros(
                self.max_rows, self.model.top_k, dtype=torch.int32, device=self.device
            )

    def tap(self, layer: int) -> torch.Tensor:
        """Let steps built from now on write bf16(stream) after ``layer``; returns where."""
        if layer not in self.taps:
            self.taps[layer] = torch.zeros(
                self.max_rows, self.model.hidden, dtype=torch.bfloat16, device=self.device
            )
        return self.taps[layer]

    def tap_side_by_side(self, layers: Sequence[int]) -> torch.Tensor:
        """Tap ``layers`` into columns of one bf16 [max_rows, layers * hidden]; returns it."""
        hidden, device = self.model.hidden, self.device
        every = torch.zeros(
            self.max_rows, len(layers) * hidden, dtype=torch.bfloat16, device=device
        )
        self.taps |= dict(zip(layers, torch.split(every, hidden, dim=1), strict=True))
        return every

    def step(self, rows: int, form: Form = "fused", *, embed: bool = False) -> list[Params]:
        """The launches of one step of ``rows`` rows over all layers.

        Without ``embed`` the step begins at the attention of layer 0: the caller has filled
        ``stream``, ``q``, ``gate`` and layer 0's new keys and values. A step of one launch
        cannot rotate its hand-offs: call :meth:`empty` before each replay of it.
        """
        groups: list[tuple[int, tuple[Phase, ...]]] = [(-1, EMBED_PHASES)] if embed else []
        last = len(self.layers) - 1
        groups += [(i, LAST_PHASES if i == last else LAYER_PHASES) for i in range(last + 1)]
        arenas = _rotation(len(groups))
        launches: list[Params] = []
        for i, (layer, phases) in enumerate(groups):
            following = arenas[(i + 1) % len(groups)] if len(groups) > 1 else None
            base = self._launch(rows, layer, arenas[i], following)
            launches += _in_form(base, phases, form)
        for p in launches[2:]:
            p.early = 1
        return launches

    def phase(self, rows: int, layer: int, phase: Phase) -> Params:
        """One phase of one layer alone, over arena 0, which it does not empty."""
        return _in_form(self._launch(rows, layer, 0, None), (phase,), "fused")[0]

    def _launch(self, rows: int, layer: int, arena: int, following: int | None) -> Params:
        shape = self.shape(rows)
        words = self._arenas[arena]
        handoff, _ = cut_handoff(shape, words)
        p = Params(shape=shape, handoff=handoff, layer=max(layer, 0))
        here = self.layers[layer] if layer >= 0 else None
        after = self.layers[layer + 1] if layer + 1 < len(self.layers) else None
        p.weights = layer_weights(here if here is not None else after, after)
        if layer >= 0:
            p.kv = self.caches[layer].struct()
        if after is not None:
            p.next_kv = self.caches[layer + 1].struct()
        if following is not None:
            p.next_handoff = address_of(self._arenas[following])
            p.next_handoff_vectors = words.numel() // 4
        self._exchanges(p, words)
        p.stream, p.q, p.gate = (address_of(t) for t in (self.stream, self.q, self.gate))
        p.context, p.tokens = address_of(self.context), address_of(self.tokens)
        p.embedding = address_of(self.embedding)
        if layer in self.taps:
            p.tap = address_of(self.taps[layer])
            p.tap_stride = self.taps[layer].stride(0)
        if layer in self.routes:
            p.routes = address_of(self.routes[layer])
        return p

    def _exchanges(self, p: Params, words: torch.Tensor) -> None:
        """Loopback: what is sent goes nowhere, the peers' rows stand in ``peers``."""
        _, at = handoff_offsets(self.shape(self.max_rows))
        counts = exchange_words(self.shape(self.max_rows))
        for name in _EXCHANGES:
            exchange = Exchange()
            for rank in range(self.rank.ranks):
                own = rank == self.rank.rank
                exchange.into[rank] = address_of(words[at:] if own else self.peers[name][rank])
                exchange.out[rank] = address_of(words[at:] if own else self._dump[name][rank])
            setattr(p, name, exchange)
            at += -(-counts[name] // 4) * 4


def _in_form(base: Params, phases: Sequence[Phase], form: Form) -> list[Params]:
    """One launch of all ``phases``, or one a phase, of which the first empties."""
    parts = [tuple(phases)] if form == "fused" else [(phase,) for phase in phases]
    launches = []
    for i, part in enumerate(parts):
        p = Params.from_buffer_copy(base)
        p.phases = sum(1 << phase for phase in part)
        if i > 0:
            p.next_handoff_vectors = 0
        launches.append(p)
    return launches


def _rotation(groups: int) -> list[int]:
    """Which arena each group of launches hands over in: never the one it empties."""
    arenas = [i % 2 for i in range(groups)]
    if groups > 1 and groups % 2:
        arenas[-1] = 2
    return arenas
