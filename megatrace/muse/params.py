"""What a launch is told, as params.cuh lays it out: ctypes mirrors and the sizes of buffers."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from enum import IntEnum
from typing import Any, ClassVar

from megatrace.errors import UsageError
from megatrace.muse.config import HEAD_DIM, MAX_RANKS, MuseConfig, RankShape

SLICE = 1024
"""Columns of a K-slice of a projection: ``kSlice``."""
CHUNK = 128
"""Columns of a row that one warp takes in the row-wise phases: ``kWarpColumns``."""
TILE = 16
"""Rows of a tile of a matrix."""
EMPTY = 0xFFFFFFFF
"""A hand-off word that is not written yet: ``kEmpty``; -1 as int32."""

_u32, _f32, _pointer = ctypes.c_uint32, ctypes.c_float, ctypes.c_void_p
_Field = tuple[str, Any]


class Phase(IntEnum):
    """``Phase`` of params.cuh, in the order a launch runs them."""

    EMBED = 0
    ATTENTION = 1
    ATTENTION_MERGE = 2
    O_PROJ = 3
    ATTN_BOUNDARY = 4
    ROUTER = 5
    ROUTE = 6
    EXPERTS_UP = 7
    EXPERTS_DOWN = 8
    EXPERT_SUM = 9
    POST_PROJ = 10
    FFN_BOUNDARY = 11
    QKV = 12
    QKV_FINISH = 13


def _fields(kind: Any, names: str) -> list[_Field]:
    return [(name, kind) for name in names.split()]


class Shape(ctypes.Structure):
    """Sizes of a launch."""

    _fields_: ClassVar[list[_Field]] = [
        *_fields(_u32, "rows hidden heads kv_heads experts local_experts first_expert top_k"),
        *_fields(_u32, "expert_width expert_inner pre_rows post_rows rank ranks max_splits"),
        *_fields(_f32, "eps_norm eps_post output_multiplier route_scale softmax_scale"),
    ]


class LayerWeights(ctypes.Structure):
    """Addresses of one layer's packed weights, and of the next layer's first ones."""

    _fields_: ClassVar[list[_Field]] = [
        *_fields(_pointer, "o_proj router pre_proj experts_up experts_down post_proj next_qkv"),
        *_fields(_pointer, "up_scale down_scale router_bias"),
        *_fields(_pointer, "attn_alpha attn_beta ffn_alpha ffn_beta"),
        *_fields(_pointer, "pre_ffn_gain pre_expert_gain post_expert_gain post_ffn_gain"),
        *_fields(_pointer, "next_input_gain"),
    ]


class KvCache(ctypes.Structure):
    """One layer's keys and values, and its positions."""

    _fields_: ClassVar[list[_Field]] = [
        *_fields(_pointer, "keys values slots rope"),
        *_fields(_u32, "window element_bytes"),
    ]


class Handoff(ctypes.Structure):
    """Addresses of the words that blocks hand over."""

    _fields_: ClassVar[list[_Field]] = _fields(
        _pointer,
        "attn_out attn_sum heads o_part x router_part pre_part y ids weights act down sum "
        "post_part a qkv_part row_sums input_sums down_sums",
    )


class Exchange(ctypes.Structure):
    """Addresses of one exchange between ranks; ``into`` is ``in`` of params.cuh."""

    _fields_: ClassVar[list[_Field]] = [
        ("into", _pointer * MAX_RANKS),
        ("out", _pointer * MAX_RANKS),
    ]


class Params(ctypes.Structure):
    """The whole parameter of a launch."""

    _fields_: ClassVar[list[_Field]] = [
        ("shape", Shape),
        ("weights", LayerWeights),
        ("kv", KvCache),
        ("next_kv", KvCache),
        ("handoff", Handoff),
        ("next_handoff", _pointer),
        *_fields(_u32, "next_handoff_vectors layer"),
        *_fields(Exchange, "attn_reduce expert_reduce pre_gather post_gather"),
        *_fields(_pointer, "stream q gate tap routes context tokens embedding"),
        *_fields(_u32, "tap_stride phases early unused"),
    ]


class Integers(ctypes.Structure):
    """Whole numbers of somebody else's tensor."""

    _fields_: ClassVar[list[_Field]] = [("at", _pointer), *_fields(_u32, "bytes count")]


class StepInputs(ctypes.Structure):
    """What a step begins with, in a framework's tensors, and where its launches read it."""

    _fields_: ClassVar[list[_Field]] = [
        *_fields(Integers, "tokens positions slots request to_sliding"),
        *_fields(_pointer, "table to_tokens context full sliding"),
        *_fields(_u32, "rows width requests unused"),
    ]


class StepOutput(ctypes.Structure):
    """The residual stream, and where the input of the model's head is made of it."""

    _fields_: ClassVar[list[_Field]] = [
        *_fields(_pointer, "stream gain normed"),
        *_fields(_u32, "rows hidden"),
        ("eps", _f32),
        ("unused", _u32),
    ]


def make_shape(model: MuseConfig, rank: RankShape, rows: int, max_splits: int) -> Shape:
    """The ``Shape`` of a step of ``rows`` rows; raises UsageError where there are too many."""
    model.check_rows(rows)
    return Shape(
        rows=rows,
        hidden=model.hidden,
        heads=rank.heads,
        kv_heads=rank.kv_heads,
        experts=model.experts,
        local_experts=rank.local_experts,
        first_expert=rank.first_expert,
        top_k=model.top_k,
        expert_width=model.expert_width,
        expert_inner=model.expert_inner,
        pre_rows=rank.pre_rows,
        post_rows=rank.post_rows,
        rank=rank.rank,
        ranks=rank.ranks,
        max_splits=max_splits,
        eps_norm=model.eps_norm,
        eps_post=model.eps_post,
        output_multiplier=model.output_multiplier,
        route_scale=model.route_scale,
        softmax_scale=model.softmax_scale,
    )


def slices(columns: int) -> int:
    """K-slices of a projection of this many columns."""
    return -(-columns // SLICE)


def handoff_shapes(s: Shape) -> dict[str, tuple[int, ...]]:
    """The shape of every hand-off in words of 4 bytes, in the order of ``Handoff``."""
    rows, hidden, width = s.rows, s.hidden, s.expert_width
    columns, pairs = s.heads * HEAD_DIM, s.rows * s.top_k
    return {
        "attn_out": (s.max_splits, rows, s.heads, HEAD_DIM),
        "attn_sum": (s.max_splits, rows, s.heads, 2),
        "heads": (rows, columns // 2),
        "o_part": (slices(columns), rows, hidden),
        "x": (rows, hidden // 2),
        "router_part": (slices(hidden), rows, s.experts),
        "pre_part": (slices(hidden), rows, s.pre_rows),
        "y": (rows, width // 2),
        "ids": (rows, s.top_k),
        "weights": (rows, s.top_k),
        "act": (pairs, s.expert_inner // 2),
        "down": (pairs, width // 2),
        "sum": (rows, width // 2),
        "post_part": (slices(width), rows, s.post_rows),
        "a": (rows, hidden // 2),
        "qkv_part": (slices(hidden), rows, (2 * s.heads + 2 * s.kv_heads) * HEAD_DIM),
        "row_sums": (2, 2, rows, hidden // CHUNK),
        "input_sums": (rows, width // CHUNK),
        "down_sums": (pairs, width // TILE),
    }


def exchange_words(s: Shape) -> dict[str, int]:
    """Words of 4 bytes that one rank sends in each exchange of a layer."""
    return {
        "attn_reduce": s.rows * s.hidden // 2,
        "expert_reduce": s.rows * s.expert_width // 2,
        "pre_gather": s.rows * s.pre_rows // 2,
        "post_gather": s.rows * s.post_rows // 2,
    }


def handoff_offsets(s: Shape) -> tuple[dict[str, int], int]:
    """(word each hand-off begins at, words of all); both are multiples of four."""
    offsets, at = {}, 0
    for name, shape in handoff_shapes(s).items():
        offsets[name] = at
        at += -(-_count(shape) // 4) * 4
    return offsets, at


def cut_handoff(s: Shape, buffer: Any) -> tuple[Handoff, int]:
    """Hand-offs in ``buffer``, and the vectors of 16 bytes they take.

    ``buffer`` is a contiguous torch or numpy array of int32, 16-byte aligned. The caller fills
    it with -1 (``EMPTY``) before the first launch. Raises UsageError where it is too small.
    """
    offsets, words = handoff_offsets(s)
    address, size = _extent(buffer)
    if size < words * 4 or address % 16:
        raise UsageError(
            f"a hand-off buffer of {size} bytes at {address:#x}: {words * 4} are needed, aligned "
            "to 16"
        )
    places = {name: address + 4 * offset for name, offset in offsets.items()}
    return Handoff(**places), words // 4


def handoff_views(s: Shape, buffer: Any) -> dict[str, Any]:
    """The part of ``buffer`` that each hand-off has, shaped, int32; for tests and taps."""
    offsets, _ = handoff_offsets(s)
    return {
        name: buffer[offsets[name] : offsets[name] + _count(shape)].reshape(shape)
        for name, shape in handoff_shapes(s).items()
    }


def address_of(array: Any) -> int | None:
    """Address of a torch or numpy array's first element; None of None."""
    return None if array is None else _extent(array)[0]


def layer_weights(packed: Any, following: Any | None) -> LayerWeights:
    """Addresses of a ``PackedLayer`` and of the layer after it, None after the last.

    Both must outlive every launch that reads them.
    """
    names = [name for name, _ in LayerWeights._fields_]
    places: Mapping[str, int | None] = {
        name: address_of(getattr(following, name.removeprefix("next_"), None))
        if name.startswith("next_")
        else address_of(getattr(packed, name))
        for name in names
    }
    return LayerWeights(**places)


def check_layout(library: Any) -> None:
    """Raise UsageError unless ``library`` was built with the ``Params`` this module mirrors."""
    function = library.muse_params_bytes
    function.restype = _u32
    function.argtypes = []
    found, expected = function(), ctypes.sizeof(Params)
    if found != expected:
        raise UsageError(
            f"the kernel's Params have {found} bytes, megatrace.muse.params has {expected}",
            hint="build the kernel from this version's sources",
        )


def _count(shape: tuple[int, ...]) -> int:
    words = 1
    for size in shape:
        words *= size
    return words


def _extent(array: Any) -> tuple[int, int]:
    """(address, bytes) of a torch or numpy array."""
    if hasattr(array, "data_ptr"):
        return int(array.data_ptr()), int(array.numel() * array.element_size())
    return int(array.ctypes.data), int(array.nbytes)
