"""A Hugging Face folder, read a layer and a rank at a time."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from megatrace.errors import UsageError
from megatrace.muse.config import HEAD_DIM, MuseConfig, RankShape
from megatrace.muse.tensors import Experts, LayerTensors, interleave_pairs

ROOT = "model.language_model"
_INDEX = "model.safetensors.index.json"
_ALL = slice(None)


class Checkpoint:
    """The weights in a folder. Only what a call asks for is read; files close after it."""

    def __init__(self, folder: Path, device: torch.device | str = "cpu") -> None:
        self.folder = folder
        self.model = MuseConfig.from_file(folder)
        self._device = torch.device(device)

    @cached_property
    def _files(self) -> Mapping[str, Path]:
        """File of every tensor. Raises UsageError where there is none, or one is no safetensors."""
        index = self.folder / _INDEX
        try:
            if index.is_file():
                names = json.loads(index.read_text())["weight_map"]
                return {name: self.folder / file for name, file in names.items()}
            return dict(_headers(self.folder))
        except (OSError, ValueError, KeyError, SafetensorError) as error:
            raise UsageError(f"cannot read the weights in {self.folder}: {error}") from None

    def sources(self, layer: int) -> list[Path]:
        """The files that hold a layer."""
        prefix = f"{ROOT}.layers.{layer}."
        found = {file for name, file in self._files.items() if name.startswith(prefix)}
        if not found:
            raise UsageError(f"{self.folder} has no weights of layer {layer}")
        return sorted(found)

    def layer(self, layer: int, rank: RankShape) -> LayerTensors:
        """One rank's part of a layer. Raises UsageError where a tensor is missing or misshapen."""
        with _Reader(self._files, f"{ROOT}.layers.{layer}.", self._device) as reader:
            return _read_layer(reader, self.model, rank)

    def embedding(self) -> torch.Tensor:
        """bf16 [vocabulary, H]."""
        return self._one(f"{ROOT}.embed_tokens.weight", (self.model.vocabulary, self.model.hidden))

    def final_norm(self) -> torch.Tensor:
        """bf16 [H]: a gain as it is, nothing is added to it."""
        return self._one(f"{ROOT}.norm.weight", (self.model.hidden,))

    def head(self) -> torch.Tensor:
        """bf16 [vocabulary, H]."""
        return self._one("lm_head.weight", (self.model.vocabulary, self.model.hidden))

    def _one(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        with _Reader(self._files, "", self._device) as reader:
            return reader.read(name, shape)


def _headers(folder: Path) -> Iterator[tuple[str, Path]]:
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise UsageError(f"{folder} holds no safetensors")
    for path in files:
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118  the file is no mapping
                yield name, path


class _Reader:
    """Reads parts of tensors whose names begin with ``prefix``."""

    def __init__(self, files: Mapping[str, Path], prefix: str, device: torch.device) -> None:
        self._files, self._prefix, self._device = files, prefix, device
        self._open: dict[Path, Any] = {}
        self._stack = ExitStack()

    def __enter__(self) -> _Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def has(self, name: str) -> bool:
        return self._prefix + name in self._files

    def read(
        self,
        name: str,
        shape: tuple[int, ...],
        dtype: torch.dtype = torch.bfloat16,
        part: tuple[slice, ...] = (_ALL,),
    ) -> torch.Tensor:
        """``part`` of the tensor, whose whole ``shape`` and type must be the given ones."""
        full = self._prefix + name
        if full not in self._files:
            raise UsageError(f"the checkpoint has no {full}")
        try:
            stored = self._file(self._files[full]).get_slice(full)
            found = tuple(stored.get_shape())
            tensor: torch.Tensor | None = stored[part] if found == shape else None
        except (OSError, SafetensorError) as error:
            raise UsageError(f"cannot read {full}: {error}") from None
        if tensor is None or tensor.dtype != dtype:
            kind = stored.get_dtype()
            raise UsageError(f"{full} is {kind} {found}, expected is {dtype} {shape}")
        return tensor.to(self._device)

    def _file(self, path: Path) -> Any:
        if path not in self._open:
            self._open[path] = self._stack.enter_context(safe_open(path, framework="pt"))
        return self._open[path]


def _read_layer(reader: _Reader, model: MuseConfig, rank: RankShape) -> LayerTensors:
    hidden, width, experts = model.hidden, model.expert_width, model.experts
    queries = model.heads * HEAD_DIM
    mine = _span(rank.rank * rank.heads * HEAD_DIM, rank.heads * HEAD_DIM)
    pre = _span(rank.first_pre_row, rank.pre_rows)
    post = _span(rank.first_post_row, rank.post_rows)
    read = reader.read
    return LayerTensors(
        qkv=_read_qkv(reader, model, rank),
        o_proj=read("self_attn.o_proj.weight", (hidden, queries), part=(_ALL, mine)),
        router=read("mlp.gate.weight", (experts, hidden), torch.float32),
        router_bias=read("mlp.gate.e_score_correction_bias", (experts,), torch.float32),
        pre_proj=read("mlp.pre_expert_proj.weight", (width, hidden), part=(pre,)),
        post_proj=read("mlp.post_expert_proj.weight", (hidden, width), part=(post,)),
        attn_gate=read("post_attention_residual_gate.gate", (hidden,)),
        ffn_gate=read("post_feedforward_residual_gate.gate", (hidden,)),
        input_norm=read("input_layernorm.weight", (hidden,)),
        pre_ffn_norm=read("pre_feedforward_layernorm.weight", (hidden,)),
        post_ffn_norm=read("post_feedforward_layernorm.weight", (hidden,)),
        pre_expert_norm=read("mlp.pre_expert_norm.weight", (width,)),
        post_expert_norm=read("mlp.experts.post_expert_norm.weight", (width,)),
        experts=_read_experts(reader, model, rank),
    )


def _read_qkv(reader: _Reader, model: MuseConfig, rank: RankShape) -> torch.Tensor:
    mine = _span(rank.rank * rank.heads * HEAD_DIM, rank.heads * HEAD_DIM)
    kv = _span(rank.first_kv_head * HEAD_DIM, rank.kv_heads * HEAD_DIM)
    queries, keys = model.heads * HEAD_DIM, model.kv_heads * HEAD_DIM

    def rows(name: str, count: int, part: slice) -> torch.Tensor:
        return reader.read(f"self_attn.{name}_proj.weight", (count, model.hidden), part=(part,))

    return torch.cat(
        (
            interleave_pairs(rows("q", queries, mine)),
            interleave_pairs(rows("k", keys, kv)),
            rows("v", keys, kv),
            rows("gate", queries, mine),
        )
    )


def _read_experts(reader: _Reader, model: MuseConfig, rank: RankShape) -> Experts:
    count, inner, width = model.experts, model.expert_inner, model.expert_width
    local = (_span(rank.first_expert, rank.local_experts),)
    up, down = "mlp.experts.gate_up_proj", "mlp.experts.down_proj"
    if not reader.has(up):
        return _read_single_experts(reader, model, rank)
    if not reader.has(f"{up}_weight_scale"):
        return Experts(
            reader.read(up, (count, 2 * inner, width), part=local),
            reader.read(down, (count, width, inner), part=local),
        )
    code, scale, whole = torch.uint8, torch.float8_e4m3fn, torch.float32
    return Experts(
        reader.read(up, (count, 2 * inner, width // 2), code, local),
        reader.read(down, (count, width, inner // 2), code, local),
        reader.read(f"{up}_weight_scale", (count, 2 * inner, width // 16), scale, local),
        reader.read(f"{down}_weight_scale", (count, width, inner // 16), scale, local),
        reader.read(f"{up}_weight_scale_2", (count, 2), whole, local),
        reader.read(f"{down}_weight_scale_2", (count,), whole, local),
    )


def _read_single_experts(reader: _Reader, model: MuseConfig, rank: RankShape) -> Experts:
    """bf16 experts with tensors of their own."""
    inner, width = model.expert_inner, model.expert_width
    up, down = [], []
    for expert in range(rank.first_expert, rank.first_expert + rank.local_experts):
        at = f"mlp.experts.{expert}"
        halves = [
            reader.read(f"{at}.{name}_proj.weight", (inner, width)) for name in ("gate", "up")
        ]
        up.append(torch.cat(halves))
        down.append(reader.read(f"{at}.down_proj.weight", (width, inner)))
    return Experts(torch.stack(up), torch.stack(down))


def _span(first: int, count: int) -> slice:
    return slice(first, first + count)
