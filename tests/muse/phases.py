"""Runs phases of the layer kernel, each from the reference's own inputs; says how far off it is.

The same code checks the host build (device ``cpu``) and a GPU (``cuda``). What a phase must not
read holds no numbers; what it must not write has to stay as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

import torch

from megatrace.muse.config import HEAD_DIM, MuseConfig, RankShape
from megatrace.muse.engine import Cache, Engine, Form, new_cache
from megatrace.muse.layout import Fp4Layout
from megatrace.muse.pack import pack_layer
from megatrace.muse.params import EMPTY, TILE, Params, Phase, handoff_offsets, handoff_views
from megatrace.muse.plan import CacheKind, ExpertKind
from megatrace.muse.program import Build, Program
from megatrace.muse.reference import stored
from megatrace.muse.taps import Past, Reference, Taps
from megatrace.muse.tensors import LayerTensors, random_layer

POISON = float("nan")
SPOILED = 0x7FB57FB5
"""A word that is none of a phase's inputs: no number as fp32 or as two bf16, and no expert."""

SUMS = 1e-6
"""fp32 sums, in another order than the reference's."""
ROUNDED = 3e-4
"""bf16 of such sums: a few fall to the other side."""
ATTENDED = 4e-3
"""The weights of keys are bf16 in the tensor cores: each is off by up to 2^-9."""
WHOLE_LAYER = 6e-3
"""After the attention's, every rounding of the layer may fall to the other side: half a dozen of
1.1e-3 each, squared and added, and as much to spare.
"""
NEAR_TIE = 1e-3
"""Scores of experts that are this close may change their order with those roundings."""
MANTISSAS: dict[CacheKind, tuple[int, float]] = {"bf16": (7, 2.0**-126), "e4m3": (3, 2.0**-6)}
"""Bits of a cache's numbers after the first, and the least whose first is a one."""
CODES = 4e-3
"""Keys and values in e4m3: where one is a step off, by 2^-3 of itself at most. A last bit of bf16
takes one in sixteen there.
"""
CODES_OF_A_LAYER = 2e-2
"""The same after a layer, whose projection is off by 3e-3: of a code's width, one in forty."""
LIMITS = {
    "heads": ATTENDED,
    **dict.fromkeys(("o", "logits", "pre", "weights", "post", "qkv"), SUMS),
    **dict.fromkeys(("x", "stream", "y", "act", "down", "sum", "a", "q", "gate"), ROUNDED),
    **dict.fromkeys(("keys", "values"), ROUNDED),
    "squares": 2 * ROUNDED,
    **dict.fromkeys(("e4m3_keys", "e4m3_values"), CODES),
    "cache_ulps": 1,
    "ids": 0,
    "elsewhere": 0,
}
"""Most that an output of a phase may be off, by name."""

Edit = Callable[[LayerTensors], LayerTensors]
Found = dict[str, float]
"""Name of an output -> how far off it is."""


def beyond(found: Found) -> Found:
    """What a phase has farther off than it may be."""
    return {name: off for name, off in found.items() if not off <= LIMITS[name]}


def beyond_in_a_layer(found: Found) -> Found:
    """The same of a whole layer, whose phases read what the ones before have made."""
    limits = dict.fromkeys(("ids", "elsewhere"), 0.0)
    limits |= dict.fromkeys(("e4m3_keys", "e4m3_values"), CODES_OF_A_LAYER)
    return {n: off for n, off in found.items() if not off <= limits.get(n, WHOLE_LAYER)}


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


def ulps(found: torch.Tensor, expected: torch.Tensor, cache: CacheKind = "bf16") -> float:
    """Largest distance of keys or values [..., 64], in steps from one of the cache to the next.

    Steps are those of the larger of a rotary pair: a step in the norm before the rotation moves
    both. Infinite where something is no number.
    """
    bits, least = MANTISSAS[cache]
    if not (found.isfinite().all() and expected.isfinite().all()):
        return float("inf")
    found, expected = (t.float().unflatten(-1, (HEAD_DIM // 2, 2)) for t in (found, expected))
    largest = expected.abs().amax(dim=-1, keepdim=True).clamp(min=least)
    step = torch.exp2(torch.floor(torch.log2(largest)) - bits)
    return float(((found - expected).abs() / step).max())


def kept(tensor: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
    """Keys or values of some slots as they are read, bf16."""
    return tensor.view(torch.uint8)[slots].view(tensor.dtype).bfloat16()


def keep(tensor: torch.Tensor, slots: torch.Tensor, rows: torch.Tensor) -> None:
    """Overwrites keys or values of some slots."""
    tensor.view(torch.uint8)[slots] = rows.to(tensor.dtype).view(torch.uint8)


def margins(logits: torch.Tensor, bias: torch.Tensor, model: MuseConfig) -> torch.Tensor:
    """Of each row, from the score of the last expert chosen to the first one that is not."""
    scores = torch.sigmoid(logits * model.output_multiplier) + bias
    ordered = scores.sort(dim=1, descending=True).values
    return ordered[:, model.top_k - 1] - ordered[:, model.top_k]


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
    native: bool = False
    """NVFP4 codes in the order of chips that convert them; the host build takes either."""
    edit: Edit | None = None
    """Changes the first layer's weights."""
    cache: CacheKind = "bf16"

    def __post_init__(self) -> None:
        generator = torch.Generator(self.device).manual_seed(self.seed)

        def draw(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, generator=generator, device=self.device)

        self._draw = draw
        self.tensors: list[LayerTensors] = [
            random_layer(
                self.model, self.rank, self.seed + i, experts=self.kind, device=self.device
            )
            for i in range(2)
        ]
        if self.edit is not None:
            self.tensors[0] = self.edit(self.tensors[0])
        if self.device == "cpu":
            self.build = Build(experts=self.kind, native=self.native, cache=self.cache)
        else:
            self.build = Build.here(self.kind, cache=self.cache)
        fp4: Fp4Layout = "native" if self.build.native else "bits"
        positions = self.positions or self.context + self.rows
        self.caches = [
            self._poisoned(
                new_cache(self.model, self.rank, self.layer + i, positions, self.device, self.cache)
            )
            for i in range(2)
        ]
        self.engine = Engine(
            self.model,
            self.rank,
            [pack_layer(t, self.model, fp4) for t in self.tensors],
            self.caches,
            self.blocks,
            self.rows,
            self.device,
        )
        self.engine.context.fill_(self.context)
        for rows in self.engine.peers.values():
            rows.copy_(self._draw(*rows.shape) * 0.3)
        self.views = handoff_views(self.engine.shape(self.rows), self.engine.handoff_words(0))
        self.taps = self._reference()

    def _poisoned(self, cache: Cache) -> Cache:
        """Slots in another order than positions, and no number where nothing is kept yet."""
        order = torch.randperm(
            cache.slots.numel(), generator=torch.Generator().manual_seed(self.seed)
        ).to(self.device)
        slots = cache.slots[order].contiguous()
        for tensor in (cache.keys, cache.values):
            tensor.view(torch.uint8).fill_(0xFF)  # no number in either form
        return Cache(cache.keys, cache.values, slots, cache.rope, cache.window)

    def _reference(self) -> Taps:
        model, rank = self.model, self.rank
        kind = model.layers[self.layer]
        past = Past.empty(rank, self.device)
        shape = (self.context, rank.kv_heads, HEAD_DIM)
        past.add(*(stored(self._draw(*shape).bfloat16(), self.cache) for _ in range(2)))
        self.stream = self._draw(self.rows, model.hidden)
        reference = Reference(model, rank, cache=self.cache)
        peers = self.engine.peers if rank.ranks > 1 else None
        taps = reference.layer(
            self.tensors[0], kind, self.stream, past, self.tensors[1].input_norm, peers
        )
        slots = self.caches[0].slots[: self.context + self.rows].long()
        keep(self.caches[0].keys, slots, past.keys)
        keep(self.caches[0].values, slots, past.values)
        following = reference.begin(
            self.tensors[1],
            model.layers[self.layer + 1],
            taps["ffn_boundary"]["a"],
            self.context,
        )
        taps["experts_down"]["squares"] = self._down_squares(taps["experts_down"]["down"])
        return taps | {f"next_{name}": value for name, value in following.items()}

    def _down_squares(self, down: torch.Tensor) -> torch.Tensor:
        """Sums of squares of [pairs, width], times the gain, by row tile of the down matrix."""
        gained = down.float() * self.engine.layers[0].post_expert_gain.float()
        return gained.square().unflatten(1, (-1, TILE)).sum(2)

    # -- running ---------------------------------------------------------------------------

    def run(self, launches: list[Params]) -> None:
        """Run launches once, to their end."""
        if self.device == "cuda":
            torch.cuda.synchronize()
        with Program(launches, self.build, blocks=self.blocks) as program:
            program.replay()
            program.synchronize()

    def spoil(self) -> None:
        """No number in anything that is handed over, but for the rows between ranks: empty."""
        arena = self.engine.handoff_words(0)
        arena.fill_(SPOILED)
        arena[self._own_rows :] = EMPTY - (1 << 32)
        for tensor in (self.engine.stream, self.engine.q, self.engine.gate):
            tensor.fill_(POISON)

    def begin(self) -> None:
        """What the launch before the first layer has made."""
        new = self.taps["qkv_finish"]
        self.engine.q.copy_(new["q"].view(self.engine.q.shape))
        self.engine.gate.copy_(new["gate"])

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

    def local_pairs(self) -> torch.Tensor:
        """Whether each (row, slot) pair goes to an expert of this rank."""
        ids = self.taps["route"]["ids"].flatten() - self.rank.first_expert
        return (ids >= 0) & (ids < self.rank.local_experts)

    def changed(self, before: torch.Tensor, but: tuple[str, ...]) -> float:
        """Words of the arena that differ from ``before``, those of ``but`` left out."""
        differs = self.engine.handoff_words(0) != before
        for name, view in handoff_views(self.engine.shape(self.rows), differs).items():
            if name in but:
                view.zero_()
        return float(differs[: self._own_rows].sum())

    @property
    def _own_rows(self) -> int:
        """Where in the arena this rank's rows of the exchanges begin."""
        return handoff_offsets(self.engine.shape(self.rows))[1]


Rows: TypeAlias = torch.Tensor | slice
ALL_ROWS = slice(None)
Output = Callable[[Case], Found]


@dataclass(frozen=True)
class Check:
    """What a phase reads, by hand-off, from the reference, and how its output compares."""

    phase: Phase
    inputs: tuple[tuple[str, str, str], ...]
    """(hand-off, phase, name) of what it polls."""
    writes: tuple[str, ...]
    """The hand-offs it makes."""
    output: Output
    sums: str = ""
    """The hand-off that its own chunks meet in: empty before, theirs after."""
    stream: tuple[str, str] | None = None
    """The residual stream it begins with: a tap, or ("", "") for the layer's own."""


def _attention_merge(case: Case) -> Found:
    return {"heads": error(case.pairs("heads"), case.taps["attention_merge"]["heads"])}


def _attn_boundary(case: Case) -> Found:
    expected = case.taps["attn_boundary"]
    return {
        "x": error(case.pairs("x"), expected["x"]),
        "stream": error(case.engine.stream, expected["stream"]),
    }


def _router(case: Case) -> Found:
    expected = case.taps["router"]
    return {
        "logits": error(case.floats("router_part"), expected["logits"]),
        "pre": error(case.floats("pre_part"), expected["pre"]),
    }


def _route(case: Case) -> Found:
    expected = case.taps["route"]
    same = (case.views["ids"].long() == expected["ids"]).all()
    return {
        "ids": 0.0 if same else 1.0,
        "weights": error(case.views["weights"].view(torch.float32), expected["weights"]),
        "y": error(case.pairs("y"), expected["y"]),
    }


def _pairs_of(view: str, phase: str, name: str) -> Output:
    """Pairs of this rank's experts; those of others stay as they were."""

    def compare(case: Case) -> Found:
        local = case.local_pairs()
        found = {"elsewhere": float((case.views[view][~local] != SPOILED).sum())}
        if local.any():
            found[name] = error(case.pairs(view)[local], case.taps[phase][name][local])
        return found

    return compare


def _experts_down(case: Case) -> Found:
    """The rows, and their sums of squares."""
    found = _pairs_of("down", "experts_down", "down")(case)
    local, squares = case.local_pairs(), case.views["down_sums"]
    found["elsewhere"] += float((squares[~local] != SPOILED).sum())
    if local.any():
        expected = case.taps["experts_down"]["squares"][local]
        found["squares"] = error(squares[local].view(torch.float32), expected)
    return found


def _rows_of(view: str, phase: str, name: str) -> Output:
    return lambda case: {name: error(case.pairs(view), case.taps[phase][name])}


def _sums_of(view: str, phase: str, name: str) -> Output:
    return lambda case: {name: error(case.floats(view), case.taps[phase][name])}


def _ffn_boundary(case: Case, rows: Rows = ALL_ROWS) -> Found:
    expected = case.taps["ffn_boundary"]
    return {
        "a": error(case.pairs("a")[rows], expected["a"][rows]),
        "stream": error(case.engine.stream[rows], expected["stream"][rows]),
    }


def _qkv_finish(case: Case, rows: Rows = ALL_ROWS) -> Found:
    """Queries and gates; keys and values, of which the next layer has no others yet."""
    cache = case.caches[1]
    expected = {name: tensor[rows] for name, tensor in case.taps["next_qkv_finish"].items()}
    new = cache.slots[case.context : case.context + case.rows].long()
    others = torch.ones(len(cache.keys), dtype=torch.bool, device=case.device)
    others[new] = False
    keys, values = (kept(t, new)[rows] for t in (cache.keys, cache.values))
    prefix = "" if case.cache == "bf16" else f"{case.cache}_"
    untouched = [kept(t, others).isnan() for t in (cache.keys, cache.values)]
    return {
        "q": error(case.engine.q[rows].view(expected["q"].shape), expected["q"]),
        "gate": error(case.engine.gate[rows], expected["gate"]),
        f"{prefix}keys": error(keys, expected["keys"]),
        f"{prefix}values": error(values, expected["values"]),
        "cache_ulps": max(
            ulps(keys, expected["keys"], case.cache), ulps(values, expected["values"], case.cache)
        ),
        "elsewhere": float((~torch.cat(untouched)).sum()),
    }


_ROUTES = (("ids", "route", "ids"), ("weights", "route", "weights"))
CHECKS: tuple[Check, ...] = (
    Check(
        Phase.O_PROJ,
        (("heads", "attention_merge", "heads"),),
        ("o_part",),
        _sums_of("o_part", "o_proj", "o"),
    ),
    Check(
        Phase.ATTN_BOUNDARY,
        (("o_part", "o_proj", "o"),),
        ("x",),
        _attn_boundary,
        "row_sums",
        ("", ""),
    ),
    Check(Phase.ROUTER, (("x", "attn_boundary", "x"),), ("router_part", "pre_part"), _router),
    Check(
        Phase.ROUTE,
        (("router_part", "router", "logits"), ("pre_part", "router", "pre")),
        ("ids", "weights", "y"),
        _route,
        "input_sums",
    ),
    Check(
        Phase.EXPERTS_UP,
        (*_ROUTES, ("y", "route", "y")),
        ("act",),
        _pairs_of("act", "experts_up", "act"),
    ),
    Check(
        Phase.EXPERTS_DOWN,
        (*_ROUTES, ("act", "experts_up", "act")),
        ("down", "down_sums"),
        _experts_down,
    ),
    Check(
        Phase.EXPERT_SUM,
        (
            *_ROUTES,
            ("down", "experts_down", "down"),
            ("down_sums", "experts_down", "squares"),
        ),
        ("sum",),
        _rows_of("sum", "expert_sum", "sum"),
    ),
    Check(
        Phase.POST_PROJ,
        (("sum", "expert_sum", "sum"),),
        ("post_part",),
        _sums_of("post_part", "post_proj", "post"),
    ),
    Check(
        Phase.FFN_BOUNDARY,
        (("post_part", "post_proj", "post"),),
        ("a",),
        _ffn_boundary,
        "row_sums",
        ("attn_boundary", "stream"),
    ),
    Check(
        Phase.QKV,
        (("a", "ffn_boundary", "a"),),
        ("qkv_part",),
        _sums_of("qkv_part", "next_qkv", "qkv"),
    ),
    Check(Phase.QKV_FINISH, (("qkv_part", "next_qkv", "qkv"),), (), _qkv_finish),
)
"""The phases after the attention, which is checked with its merge."""


def check_attention(case: Case) -> Found:
    """Attention and merge, from the reference's queries and keys."""
    case.spoil()
    for name in ("attn_out", "attn_sum"):
        case.views[name].fill_(EMPTY - (1 << 32))
    case.begin()
    before = case.engine.handoff_words(0).clone()
    case.run([case.engine.phase(case.rows, 0, p) for p in (Phase.ATTENTION, Phase.ATTENTION_MERGE)])
    elsewhere = case.changed(before, ("attn_out", "attn_sum", "heads"))
    return {**_attention_merge(case), "elsewhere": elsewhere}


def check_phase(case: Case, check: Check) -> Found:
    """One phase from the reference's inputs."""
    case.spoil()
    for handoff, phase, name in check.inputs:
        case.put(handoff, case.taps[phase][name])
    if check.sums:
        case.views[check.sums].fill_(EMPTY - (1 << 32))
    if check.stream is not None:
        phase, name = check.stream
        case.engine.stream.copy_(case.taps[phase][name] if phase else case.stream)
    before = case.engine.handoff_words(0).clone()
    case.run([case.engine.phase(case.rows, 0, check.phase)])
    found = check.output(case)
    elsewhere = found.get("elsewhere", 0) + case.changed(before, (*check.writes, check.sums))
    return {**found, "elsewhere": elsewhere}


def check_layer(case: Case, form: Form) -> Found:
    """Two layers in one step from the reference's beginning, compared after the first.

    Rows that chose between experts with nearly the same score may have chosen others than the
    reference, and are left out.
    """
    case.engine.empty()
    case.begin()
    case.engine.stream.copy_(case.stream)
    launches = case.engine.step(case.rows, form)
    case.run([p for p in launches if p.layer == 0])
    chosen, expected = (
        ids.sort(dim=1).values for ids in (case.views["ids"].long(), case.taps["route"]["ids"])
    )
    alike = (chosen == expected).all(dim=1)
    found = {**_ffn_boundary(case, alike), **_qkv_finish(case, alike)}
    del found["cache_ulps"]
    logits, bias = case.taps["router"]["logits"], case.tensors[0].router_bias
    near = margins(logits, bias, case.model) < NEAR_TIE
    return {**found, "ids": float((~alike & ~near).sum())}


def all_checks(case: Case) -> Iterator[tuple[str, Found]]:
    """Every phase, then the layer in both forms."""
    yield "attention", check_attention(case)
    for check in CHECKS:
        yield check.phase.name.lower(), check_phase(case, check)
    yield "twin", check_layer(case, "twin")
    yield "fused", check_layer(case, "fused")
