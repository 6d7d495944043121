"""The layer kernel in the host build: every phase from the reference's own inputs, then a layer.

Keys and values in e4m3 go through the same cache in the reference: rounded to bf16, to +-448 where
they are larger, then to e4m3 with a scale of 1. Everything read from it is held to the limits of a
bf16 cache (``LIMITS``, ``WHOLE_LAYER``); a key or value may be a step of e4m3 off (``CODES``). Of
SGLang's own paths over such a cache no such nearness is claimed: its Triton kernels also round the
weights of keys to e4m3, and in a verify read the step's own keys before they are rounded.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache

import pytest
import torch

from megatrace.muse.config import LayerKind, MuseConfig
from megatrace.muse.engine import Form
from megatrace.muse.params import Phase
from megatrace.muse.plan import CacheKind, ExpertKind, expert_groups
from megatrace.muse.program import Build
from megatrace.muse.tensors import LayerTensors
from tests.muse.models import model
from tests.muse.phases import (
    CHECKS,
    Case,
    Check,
    beyond,
    beyond_in_a_layer,
    check_attention,
    check_layer,
    check_phase,
)

SMALL = model()
"""Window 16 with rotation, then all keys without, then all keys with rotation."""
WINDOW = SMALL.layers[0].window
WIDE = replace(
    SMALL,
    layers=(LayerKind(80, 5e5), LayerKind(80, 5e5), LayerKind(0, 0.0)),
    hidden=1280,
    heads=20,
    kv_heads=4,
    top_k=6,
    expert_width=1152,
)
"""Every projection has a whole slice of columns and a part of one, gate and up rows two stages."""
DEEP = replace(SMALL, experts=48, expert_inner=1088)
"""Down rows have two stages; experts are no multiple of a warp."""
LONG = replace(SMALL, positions=4096)
FORMS: tuple[Form, ...] = ("fused", "twin")
NAMES = {id(SMALL): "small", id(WIDE): "wide", id(DEEP): "deep", id(LONG): "long"}


@dataclass(frozen=True)
class Setting:
    """What a case is made of."""

    rows: int
    context: int
    layer: int = 0
    """0: a window, 1: all keys."""
    rank: int = 0
    ranks: int = 1
    shard: bool = True
    """Divide the projections around the experts too."""
    kind: ExpertKind = "nvfp4"
    native: bool = False
    blocks: int = 4
    model: MuseConfig = SMALL
    cache: CacheKind = "bf16"

    def __str__(self) -> str:
        kind = f"{self.kind}{'-native' if self.native else ''}"
        kind += "" if self.cache == "bf16" else f"-{self.cache}"
        return (
            f"{kind}-{NAMES[id(self.model)]}-{self.rows}rows-after{self.context}-layer{self.layer}"
            f"-rank{self.rank}of{self.ranks}{'' if self.shard else '-whole'}-{self.blocks}blocks"
        )


SETTINGS = (
    # All numbers of rows, with contexts around the edges of a window of 16 and of chunks of 64.
    Setting(1, 0),
    Setting(2, 0, layer=1),
    Setting(3, 1),
    Setting(4, WINDOW - 1),
    Setting(5, WINDOW - 2),
    Setting(6, WINDOW),
    Setting(7, WINDOW + 1, rank=1, ranks=2),
    Setting(8, 63, layer=1, rank=0, ranks=2),
    Setting(9, 64, layer=1),
    Setting(10, 5),
    Setting(11, 200, layer=1, rank=1, ranks=2, shard=False),
    Setting(12, 130, rank=3, ranks=4),
    Setting(13, 240, layer=1, blocks=7),
    Setting(14, 1, layer=1, blocks=1),
    Setting(15, 120, blocks=3),
    Setting(16, 49, rank=1, ranks=2),
    # More stages of keys than a block holds at once.
    Setting(9, 700, layer=1, blocks=2, model=LONG),
    # Items of the merge that two warps share, and three: more than 16 chunks of keys, than 32.
    Setting(9, 1150, layer=1, rank=3, ranks=4, blocks=18, model=LONG),
    Setting(3, 2200, layer=1, rank=3, ranks=4, blocks=36, model=LONG),
    # Several slices and stages.
    Setting(1, 100, model=WIDE, blocks=5),
    Setting(9, 70, model=WIDE, layer=1),
    Setting(16, 78, model=WIDE, rank=1, ranks=2, blocks=6),
    Setting(3, 20, model=WIDE, blocks=1),  # fewer blocks than slices
    Setting(7, 30, model=DEEP),
    Setting(13, 60, model=DEEP, layer=1, rank=1, ranks=2),
    # The order of codes that sm_103a converts.
    Setting(1, 3, native=True),
    Setting(9, WINDOW, native=True, rank=1, ranks=2),
    Setting(16, 100, native=True, layer=1),
    Setting(12, 20, native=True, model=WIDE),
    Setting(4, 90, native=True, model=DEEP),
    # bf16.
    Setting(1, 15, kind="bf16"),
    Setting(2, 1, kind="bf16", layer=1, rank=1, ranks=2),
    Setting(8, 70, kind="bf16", layer=1),
    Setting(16, 10, kind="bf16"),
    Setting(11, 90, kind="bf16", model=WIDE, rank=0, ranks=2),
    Setting(6, 20, kind="bf16", model=DEEP),
    # Keys and values in e4m3: with a window and without, rotated and not, one head of them and two.
    Setting(1, 0, cache="e4m3"),
    Setting(8, 70, cache="e4m3", layer=1),
    Setting(16, 49, cache="e4m3", rank=1, ranks=2),
    Setting(9, 700, cache="e4m3", layer=1, blocks=2, model=LONG),
    Setting(16, 78, cache="e4m3", model=WIDE, rank=1, ranks=2, blocks=6),
)


@pytest.fixture(scope="module", autouse=True)
def built() -> None:
    """Compile all there is to compile, side by side; torch's threads would fight for the cores."""
    torch.set_num_threads(1)
    builds = [Build(), Build(native=True), Build(experts="bf16"), Build(cache="e4m3")]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(Build.library, builds))


@cache
def case_of(setting: Setting) -> Case:
    return Case(
        setting.model,
        setting.model.shard(setting.rank, setting.ranks, setting.shard and setting.ranks > 1),
        setting.kind,
        setting.rows,
        setting.context,
        "cpu",
        setting.blocks,
        seed=setting.rows,
        layer=setting.layer,
        native=setting.native,
        cache=setting.cache,
    )


@pytest.fixture(scope="module", params=SETTINGS, ids=str)
def case(request: pytest.FixtureRequest) -> Case:
    setting: Setting = request.param
    return case_of(setting)


def test_every_number_of_rows_has_a_case() -> None:
    assert {setting.rows for setting in SETTINGS} == set(range(1, SMALL.max_rows + 1))


# -- phase by phase --------------------------------------------------------------------


def test_the_attention_is_the_references(case: Case) -> None:
    assert beyond(check_attention(case)) == {}


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.phase.name.lower())
def test_a_phase_makes_of_the_references_inputs_what_the_reference_makes(
    case: Case, check: Check
) -> None:
    assert beyond(check_phase(case, check)) == {}


def test_every_phase_but_the_embedding_is_checked() -> None:
    checked = {check.phase for check in CHECKS} | {Phase.ATTENTION, Phase.ATTENTION_MERGE}
    assert checked == set(Phase) - {Phase.EMBED}


# -- layer by layer --------------------------------------------------------------------


@cache
def layer_of(setting: Setting, form: Form) -> tuple[dict[str, float], list[torch.Tensor]]:
    """How far a layer is off, and all it has made."""
    case = case_of(setting)
    found = check_layer(case, form)
    engine, cache = case.engine, case.caches[1]
    made = (engine.handoff_words(0), engine.stream, engine.q, engine.gate, cache.keys, cache.values)
    return found, [tensor.clone().view(torch.int16) for tensor in made]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_a_layer_is_close_to_the_references(setting: Setting, form: Form) -> None:
    assert beyond_in_a_layer(layer_of(setting, form)[0]) == {}


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_the_fused_layer_and_its_twin_agree_in_every_bit(setting: Setting) -> None:
    fused, twin = (layer_of(setting, form)[1] for form in FORMS)
    assert all(torch.equal(a, b) for a, b in zip(fused, twin, strict=True))


# -- routes ----------------------------------------------------------------------------


def all_phases(case: Case) -> dict[str, float]:
    """What is beyond its limit in any phase and in the layer, by ``phase.output``."""
    found = {"attention": beyond(check_attention(case))}
    found |= {check.phase.name.lower(): beyond(check_phase(case, check)) for check in CHECKS}
    found |= {form: beyond_in_a_layer(check_layer(case, form)) for form in FORMS}
    return {f"{phase}.{name}": off for phase, of in found.items() for name, off in of.items()}


def drawn_to(*experts: int) -> Case:
    """Sixteen rows that all choose ``experts``, the first most."""

    def edit(layer: LayerTensors) -> LayerTensors:
        bias = layer.router_bias.clone()
        bias[list(experts)] += torch.arange(len(experts), 0, -1) * 10.0
        return replace(layer, router_bias=bias)

    chosen = replace(SMALL, top_k=len(experts))
    return Case(chosen, chosen.shard(0, 1), "nvfp4", 16, 30, "cpu", 4, edit=edit)


def test_all_rows_may_go_to_one_expert() -> None:
    case = drawn_to(11)
    assert (case.taps["route"]["ids"] == 11).all()
    assert all_phases(case) == {}


@pytest.mark.parametrize("rows", [9, 15, 16])
@pytest.mark.parametrize("kind", ["nvfp4", "bf16"])
def test_an_expert_with_more_tokens_than_a_tile_has_several_groups(
    rows: int, kind: ExpertKind
) -> None:
    few = replace(SMALL, experts=16, top_k=12)
    case = Case(few, few.shard(0, 1), kind, rows, 30, "cpu", 4)
    groups = expert_groups(case.taps["route"]["ids"].tolist(), case.rank)
    assert len(groups) > len({group.expert for group in groups})
    assert all_phases(case) == {}


@pytest.mark.parametrize("rows", [1, 16])
def test_a_rank_may_have_none_of_the_experts(rows: int) -> None:
    def edit(layer: LayerTensors) -> LayerTensors:
        bias = layer.router_bias.clone()
        bias[: SMALL.experts // 2] += 10
        return replace(layer, router_bias=bias)

    case = Case(SMALL, SMALL.shard(1, 2, True), "nvfp4", rows, 30, "cpu", 4, edit=edit)
    assert not case.local_pairs().any()
    assert all_phases(case) == {}


def test_of_equal_scores_the_lower_ids_win() -> None:
    """In the whole layer: experts with the same weights are scored alike."""

    def edit(layer: LayerTensors) -> LayerTensors:
        pairs = torch.arange(SMALL.experts) // 2 * 2
        return replace(
            layer, router=layer.router[pairs], router_bias=layer.router_bias[pairs].contiguous()
        )

    case = Case(SMALL, SMALL.shard(0, 1), "nvfp4", 16, 30, "cpu", 4, edit=edit)
    ids = case.taps["route"]["ids"]
    assert (ids[:, 1] == ids[:, 0] + 1).all()
    assert all_phases(case) == {}


@pytest.mark.parametrize("level", [0.0, -30.0, 30.0])
def test_where_all_scores_are_equal_the_first_experts_are_chosen(level: float) -> None:
    def edit(layer: LayerTensors) -> LayerTensors:
        return replace(layer, router_bias=torch.zeros_like(layer.router_bias))

    case = Case(SMALL, SMALL.shard(0, 1), "nvfp4", 5, 3, "cpu", 4, edit=edit)
    case.taps["router"]["logits"].fill_(level)
    check_phase(case, next(check for check in CHECKS if check.phase is Phase.ROUTE))
    assert (case.views["ids"] == torch.arange(SMALL.top_k)).all()
