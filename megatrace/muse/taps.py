"""The reference, phase after phase, with what each phase hands over kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from megatrace.muse import reference as ref
from megatrace.muse.config import HEAD_DIM, LayerKind, MuseConfig, RankShape
from megatrace.muse.pack import rope_table
from megatrace.muse.plan import CacheKind
from megatrace.muse.reference import KERNEL, Peers, Roundings
from megatrace.muse.tensors import LayerTensors

Taps = dict[str, dict[str, torch.Tensor]]
"""Phase, as in ``events.PHASES`` -> name -> tensor."""


@dataclass(slots=True)
class Past:
    """Keys and values of one layer by position: bf16 [positions, kv heads, 64].

    Of a cache in e4m3 they are what it gives back.
    """

    keys: torch.Tensor
    values: torch.Tensor

    @classmethod
    def empty(cls, rank: RankShape, device: torch.device | str = "cpu") -> Past:
        """Nothing yet."""
        none = torch.empty(0, rank.kv_heads, HEAD_DIM, dtype=torch.bfloat16, device=device)
        return cls(none, none)

    def add(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Append the rows of a step."""
        self.keys, self.values = torch.cat((self.keys, keys)), torch.cat((self.values, values))


@dataclass(slots=True)
class Reference:
    """The math of one rank. ``peers``, the other ranks' rows, are needed where there are any."""

    model: MuseConfig
    rank: RankShape
    roundings: Roundings = KERNEL
    cache: CacheKind = "bf16"
    """How this step's keys and values are stored before they are read."""
    _tables: dict[tuple[float, int, torch.device], torch.Tensor] = field(
        init=False, repr=False, default_factory=dict
    )

    def embed(self, tokens: torch.Tensor, embedding: torch.Tensor, first: LayerTensors) -> Taps:
        """The beginning of a step: taps ``embed`` {stream, a}."""
        stream, a = ref.embed(tokens, embedding, first.input_norm, self.model.eps_norm)
        return {"embed": {"stream": stream, "a": a}}

    def begin(self, layer: LayerTensors, kind: LayerKind, a: torch.Tensor, context: int) -> Taps:
        """A layer's projection: taps ``qkv`` {qkv}, ``qkv_finish`` {q, keys, values, gate}."""
        table = None
        if kind.rope_theta:
            table = self._table(kind.rope_theta, a.device)[context : context + len(a)]
        qkv = ref.project(a, layer.qkv)
        q, keys, values, gate = ref.qkv_finish(
            qkv, self.rank, table, self.model.eps_norm, self.cache
        )
        finished = {"q": q, "keys": keys, "values": values, "gate": gate}
        return {"qkv": {"qkv": qkv}, "qkv_finish": finished}

    def attend(
        self,
        layer: LayerTensors,
        kind: LayerKind,
        stream: torch.Tensor,
        q: torch.Tensor,
        gate: torch.Tensor,
        past: Past,
        peers: Peers | None = None,
    ) -> Taps:
        """From the attention to its boundary; ``past`` holds this step's rows already.

        Taps ``attention`` {out}, ``attention_merge`` {heads}, ``o_proj`` {o}, ``attn_boundary``
        {b, stream, x}.
        """
        model, context = self.model, len(past.keys) - len(q)
        out = ref.attention(
            q,
            past.keys,
            past.values,
            context=context,
            window=kind.window,
            scale=model.softmax_scale,
        )
        heads = ref.attention_merge(out, gate, model.eps_norm, self.roundings)
        o = ref.project(heads, layer.o_proj)
        b = ref.reduce_rows(ref.bf(o), self._rows(peers, "attn_reduce"), self.rank.rank)
        stream, x = ref.attn_boundary(b, stream, layer.attn_gate, layer.pre_ffn_norm, model)
        return {
            "attention": {"out": out},
            "attention_merge": {"heads": heads},
            "o_proj": {"o": o},
            "attn_boundary": {"b": b, "stream": stream, "x": x},
        }

    def feed(
        self,
        layer: LayerTensors,
        stream: torch.Tensor,
        x: torch.Tensor,
        next_input_norm: torch.Tensor | None,
        peers: Peers | None = None,
    ) -> Taps:
        """From the router to the end of the layer.

        Taps ``router`` {logits, pre}, ``route`` {ids, weights, y}, ``experts_up`` {act},
        ``experts_down`` {down}, ``expert_sum`` {sum}, ``post_proj`` {post}, ``ffn_boundary``
        {branch, stream, a}, the last one only where a layer follows.
        """
        model, rank, index = self.model, self.rank, self.rank.rank
        logits, pre = ref.project(x, layer.router), ref.project(x, layer.pre_proj)
        ids, weights = ref.route(logits, layer.router_bias, model)
        parts = rank.pre_rows < model.expert_width
        columns = self._rows(peers, "pre_gather") if parts else None
        expert_input = ref.gather_columns(ref.bf(pre), columns, index)
        y = ref.normed(expert_input, layer.pre_expert_norm, model.eps_norm)
        act = ref.experts_up(y, ids, layer.experts, rank)
        down = ref.experts_down(act, ids, layer.experts, rank)
        own = ref.expert_sum(
            down, ids, weights, layer.post_expert_norm, rank, model.eps_post, self.roundings
        )
        total = ref.reduce_rows(own, self._rows(peers, "expert_reduce"), index)
        post = ref.project(total, layer.post_proj)
        columns = self._rows(peers, "post_gather") if rank.post_rows < model.hidden else None
        branch = ref.gather_columns(ref.bf(post), columns, index)
        stream, a = ref.ffn_boundary(
            branch, stream, layer.ffn_gate, layer.post_ffn_norm, next_input_norm, model
        )
        boundary = {"branch": branch, "stream": stream}
        return {
            "router": {"logits": logits, "pre": pre},
            "route": {"ids": ids, "weights": weights, "y": y},
            "experts_up": {"act": act},
            "experts_down": {"down": down},
            "expert_sum": {"own": own, "sum": total},
            "post_proj": {"post": post},
            "ffn_boundary": boundary if a is None else {**boundary, "a": a},
        }

    def layer(
        self,
        layer: LayerTensors,
        kind: LayerKind,
        stream: torch.Tensor,
        past: Past,
        next_input_norm: torch.Tensor | None = None,
        peers: Peers | None = None,
    ) -> Taps:
        """A whole layer from the stream before it; adds this step's rows to ``past``."""
        a = ref.layer_input(stream, layer, self.model)
        taps = self.begin(layer, kind, a, context=len(past.keys))
        new = taps["qkv_finish"]
        past.add(new["keys"], new["values"])
        taps |= self.attend(layer, kind, stream, new["q"], new["gate"], past, peers)
        middle = taps["attn_boundary"]
        return taps | self.feed(layer, middle["stream"], middle["x"], next_input_norm, peers)

    def step(
        self,
        layers: Sequence[LayerTensors],
        stream: torch.Tensor,
        pasts: Sequence[Past],
        *,
        forced: Mapping[int, torch.Tensor] | None = None,
        peers: Sequence[Peers] | None = None,
    ) -> list[Taps]:
        """All layers from the stream before the first; adds this step's rows to ``pasts``.

        ``forced[i]`` is the stream to begin layer i with instead of what layer i - 1 left:
        errors then do not grow over layers. ``peers`` are those of each layer.
        """
        taps: list[Taps] = []
        for i, (layer, past) in enumerate(zip(layers, pasts, strict=True)):
            before = (forced or {}).get(i, stream)
            following = layers[i + 1].input_norm if i + 1 < len(layers) else None
            kind, others = self.model.layers[i], None if peers is None else peers[i]
            taps.append(self.layer(layer, kind, before, past, following, others))
            stream = taps[-1]["ffn_boundary"]["stream"]
        return taps

    def _rows(self, peers: Peers | None, exchange: str) -> torch.Tensor | None:
        if self.rank.ranks == 1:
            return None
        if peers is None:
            raise ValueError(f"{self.rank.ranks} ranks: the others' {exchange} rows are needed")
        return peers[exchange]

    def _table(self, theta: float, device: torch.device) -> torch.Tensor:
        key = (theta, self.model.positions, device)
        if key not in self._tables:
            self._tables[key] = rope_table(theta, self.model.positions, device)
        return self._tables[key]
