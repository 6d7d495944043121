"""Runs phases of the layer kernel, each from the reference's own inputs, and says how far off it is.

The same code checks the host build (device ``cpu``) and a GPU (``cuda``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from megatrace.muse.config import HEAD_DIM, MuseConfig, RankShape
from megatrace.muse.engine import Cache, Engine, new_cache
from megatrace.muse.pack import pack_layer
from megatrace.muse.params import Params, Phase, handoff_views
from megatrace.muse.plan import ExpertKind
from megatrace.muse.program import Build, Program
from megatrace.muse.taps import Past, Reference, Taps
from megatrace.muse.tensors import LayerTensors, random_layer

POISON = float("nan")


def flat(taps: Taps) -> dict[str, torch.Tensor]:
    """``phase.name`` -> tensor."""
    return {f"{phase}.{name}": t for phase, names in taps.items() for name, t in names.items()}


def words(tensor: torch.Tensor) -> torch.Tensor:
    """As hand-off words: fp32 or int a word each, bf16 in pairs."""
    if tensor.dtype == torch.int64:
        tensor = tensor.int()
    return tensor.contiguous().view(torch.int32)


def error(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Relative L2 distance; infinite where something found is no number."""
    found, expected = found.float(), expected.float()
    if not torch.isfinite(found).all():
        return float("inf")
    return float((found - expected).norm() / expected.norm().clamp(min=1e-30))


@dataclass
class Case:
    """Two layers of random weights, a past of ``context`` keys, one step of ``rows`` rows."""

    model: MuseConfig
    rank: RankShape
    kind: ExpertKind
    rows: int
    context: int
    device: str
    blocks: int
    seed: int = 0
    layer: int = 0
    positions: int = 0

    def __post_init__(self) -> None:
        generator = torch.Generator(self.device).manual_seed(self.seed)
        self._draw = lambda *shape: torch.randn(
            *shape, generator=generator, device=self.device, dtype=torch.float32
        )
        self.tensors: list[LayerTensors] = [
            random_layer(
                self.model, self.rank, self.seed + i, experts=self.kind, device=self.device
            )
            for i in range(2)
        ]
        self.build = Build(
            target="host" if self.device == "cpu" else "sm_90a", experts=self.kind, level="off"
        )
        positions = self.positions or self.context + self.rows
        self.caches = [
            self._poisoned(new_cache(self.model, self.rank, self.layer + i, positions, self.device))
            for i in range(2)
        ]
        self.engine = Engine(
            self.model,
            self.rank,
            [pack_layer(t, self.model) for t in self.tensors],
            self.caches,
            self.blocks,
            self.rows,
            self.device,
        )
        self.engine.context.fill_(self.context)
        for name, rows in self.engine.peers.items():
            rows.copy_(self._draw(*rows.shape) * 0.3)
            self.engine.peers[name] = rows
        self.views = handoff_views(self.engine.shape(self.rows), self.engine.handoff_words(0))
        self.taps = self._reference()

    def _poisoned(self, cache: Cache) -> Cache:
        """Slots in another order than positions, and no number where nothing is kept yet."""
        order = torch.randperm(cache.slots.numel(), device="cpu").to(self.device)
        slots = cache.slots[order].contiguous()
        cache.keys.fill_(POISON)
        cache.values.fill_(POISON)
        return Cache(cache.keys, cache.values, slots, cache.rope, cache.window)

    def _reference(self) -> Taps:
        model, rank = self.model, self.rank
        kind = model.layers[self.layer]
        past = Past.empty(rank, self.device)
        shape = (self.context, rank.kv_heads, HEAD_DIM)
        past.add(self._draw(*shape).bfloat16(), self._draw(*shape).bfloat16())
        self.stream = self._draw(self.rows, model.hidden)
        reference = Reference(model, rank)
        peers = self.engine.peers if rank.ranks > 1 else None
        taps = reference.layer(
            self.tensors[0], kind, self.stream, past, self.tensors[1].input_norm, peers
        )
        slots = self.caches[0].slots[: self.context + self.rows].long()
        self.caches[0].keys[slots] = past.keys
        self.caches[0].values[slots] = past.values
        following = reference.begin(
            self.tensors[1],
            model.layers[self.layer + 1],
            taps["ffn_boundary"]["a"],
            self.context,
        )
        return taps | {f"next_{name}": value for name, value in following.items()}

    # -- running ---------------------------------------------------------------------------

    def run(self, launches: list[Params]) -> None:
        """Run launches once, to their end."""
        if self.device == "cuda":
            torch.cuda.synchronize()
        with Program(launches, self.build, blocks=self.blocks) as program:
            program.replay()
            program.synchronize()

    def put(self, name: str, tensor: torch.Tensor) -> None:
        """Fill a hand-off; a sum over slices is spread over them."""
        view = self.views[name]
        if name in ("o_part", "router_part", "pre_part", "post_part", "qkv_part"):
            parts = torch.zeros(view.shape, dtype=torch.float32, device=view.device)
            parts[:-1] = self._draw(*view[:-1].shape)
            parts[-1] = tensor - parts[:-1].sum(0)
            tensor = parts
        view.copy_(words(tensor).view(view.shape))

    def floats(self, name: str) -> torch.Tensor:
        """A hand-off of fp32 words, summed over its slices."""
        return self.views[name].view(torch.float32).sum(0)

    def pairs(self, name: str) -> torch.Tensor:
        """A hand-off of bf16 pairs, [rows, columns]."""
        return self.views[name].contiguous().view(torch.bfloat16)


def _local_pairs(case: Case) -> torch.Tensor:
    ids = case.taps["route"]["ids"].flatten() - case.rank.first_expert
    return ((ids >= 0) & (ids < case.rank.local_experts)).nonzero()[:, 0]


Output = Callable[[Case], dict[str, float]]


@dataclass(frozen=True)
class Check:
    """What a phase reads, by hand-off, from the reference, and how its output compares."""

    phase: Phase
    inputs: tuple[tuple[str, str, str], ...]
    """(hand-off, phase, name) of what it polls."""
    output: Output
    stream: tuple[str, str] | None = None
    """The residual stream it begins with: a tap, or ("", "") for the layer's own."""


def _attention_merge(case: Case) -> dict[str, float]:
    return {"heads": error(case.pairs("heads"), case.taps["attention_merge"]["heads"])}


def _attn_boundary(case: Case) -> dict[str, float]:
    expected = case.taps["attn_boundary"]
    return {
        "x": error(case.pairs("x"), expected["x"]),
        "stream": error(case.engine.stream, expected["stream"]),
    }


def _router(case: Case) -> dict[str, float]:
    expected = case.taps["router"]
    return {
        "logits": error(case.floats("router_part"), expected["logits"]),
        "pre": error(case.floats("pre_part"), expected["pre"]),
    }


def _route(case: Case) -> dict[str, float]:
    expected = case.taps["route"]
    same = (case.views["ids"].long() == expected["ids"]).all()
    return {
        "ids": 0.0 if same else 1.0,
        "weights": error(case.views["weights"].view(torch.float32), expected["weights"]),
        "y": error(case.pairs("y"), expected["y"]),
    }


def _pairs_of(view: str, phase: str, name: str) -> Output:
    def compare(case: Case) -> dict[str, float]:
        local = _local_pairs(case)
        if local.numel() == 0:
            return {name: 0.0}
        return {name: error(case.pairs(view)[local], case.taps[phase][name][local])}

    return compare


def _rows_of(view: str, phase: str, name: str) -> Output:
    return lambda case: {name: error(case.pairs(view), case.taps[phase][name])}


def _sums_of(view: str, phase: str, name: str) -> Output:
    return lambda case: {name: error(case.floats(view), case.taps[phase][name])}


def _ffn_boundary(case: Case) -> dict[str, float]:
    expected = case.taps["ffn_boundary"]
    return {
        "a": error(case.pairs("a"), expected["a"]),
        "stream": error(case.engine.stream, expected["stream"]),
    }


def _qkv_finish(case: Case) -> dict[str, float]:
    expected = case.taps["next_qkv_finish"]
    new = slice(case.context, case.context + case.rows)
    slots = case.caches[1].slots[new].long()
    return {
        "q": error(case.engine.q.view(expected["q"].shape), expected["q"]),
        "gate": error(case.engine.gate, expected["gate"]),
        "keys": error(case.caches[1].keys[slots], expected["keys"]),
        "values": error(case.caches[1].values[slots], expected["values"]),
    }


_ROUTES = (("ids", "route", "ids"), ("weights", "route", "weights"))
CHECKS: tuple[Check, ...] = (
    Check(
        Phase.O_PROJ, (("heads", "attention_merge", "heads"),), _sums_of("o_part", "o_proj", "o")
    ),
    Check(Phase.ATTN_BOUNDARY, (("o_part", "o_proj", "o"),), _attn_boundary, ("", "")),
    Check(Phase.ROUTER, (("x", "attn_boundary", "x"),), _router),
    Check(
        Phase.ROUTE,
        (("router_part", "router", "logits"), ("pre_part", "router", "pre")),
        _route,
    ),
    Check(Phase.EXPERTS_UP, (*_ROUTES, ("y", "route", "y")), _pairs_of("act", "experts_up", "act")),
    Check(
        Phase.EXPERTS_DOWN,
        (*_ROUTES, ("act", "experts_up", "act")),
        _pairs_of("down", "experts_down", "down"),
    ),
    Check(
        Phase.EXPERT_SUM,
        (*_ROUTES, ("down", "experts_down", "down")),
        _rows_of("sum", "expert_sum", "sum"),
    ),
    Check(
        Phase.POST_PROJ, (("sum", "expert_sum", "sum"),), _sums_of("post_part", "post_proj", "post")
    ),
    Check(
        Phase.FFN_BOUNDARY,
        (("post_part", "post_proj", "post"),),
        _ffn_boundary,
        ("attn_boundary", "stream"),
    ),
    Check(Phase.QKV, (("a", "ffn_boundary", "a"),), _sums_of("qkv_part", "next_qkv", "qkv")),
    Check(Phase.QKV_FINISH, (("qkv_part", "next_qkv", "qkv"),), _qkv_finish),
)
"""The phases after the attention, which is checked with its merge."""


def check_attention(case: Case) -> dict[str, float]:
    """Attention and merge, from the reference's queries and keys."""
    case.engine.empty()
    new = case.taps["qkv_finish"]
    case.engine.q.copy_(new["q"].view(case.engine.q.shape))
    case.engine.gate.copy_(new["gate"])
    case.run([case.engine.phase(case.rows, 0, p) for p in (Phase.ATTENTION, Phase.ATTENTION_MERGE)])
    return _attention_merge(case)


def check_phase(case: Case, check: Check) -> dict[str, float]:
    """One phase from the reference's inputs: name of an output -> its error."""
    case.engine.empty()
    for handoff, phase, name in check.inputs:
        case.put(handoff, case.taps[phase][name])
    if check.stream is not None:
        phase, name = check.stream
        case.engine.stream.copy_(case.taps[phase][name] if phase else case.stream)
    case.run([case.engine.phase(case.rows, 0, check.phase)])
    return check.output(case)


def check_layer(case: Case, form: str) -> dict[str, float]:
    """Two layers in one step from the reference's beginning, compared after the first."""
    case.engine.empty()
    new = case.taps["qkv_finish"]
    case.engine.q.copy_(new["q"].view(case.engine.q.shape))
    case.engine.gate.copy_(new["gate"])
    case.engine.stream.copy_(case.stream)
    launches = case.engine.step(case.rows, form)  # type: ignore[arg-type]
    first = [p for p in launches if p.layer == 0]
    case.run(first)
    return {**_ffn_boundary(case), **_qkv_finish(case)}


def all_checks(case: Case) -> Iterator[tuple[str, dict[str, float]]]:
    """Every phase, then the layer in both forms."""
    yield "attention", check_attention(case)
    for check in CHECKS:
        yield check.phase.name.lower(), check_phase(case, check)
    yield "twin", check_layer(case, "twin")
    yield "fused", check_layer(case, "fused")
