from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from megatrace.errors import UsageError
from megatrace.muse.config import RELEASED, LayerKind, MuseConfig
from tests.muse.models import model, text_config

RELEASED_TEXT = text_config(
    hidden_size=8192,
    num_hidden_layers=62,
    num_attention_heads=128,
    num_key_value_heads=16,
    layer_types=["full_attention" if i % 4 == 1 else "sliding_attention" for i in range(62)],
    layer_rope_theta=[0 if i % 4 == 1 else 5e5 for i in range(62)],
    mlp_layer_types=["sparse"] * 62,
    sliding_window=2048,
    max_position_embeddings=1_048_576,
    moe_hidden_size=4096,
    moe_intermediate_size=4096,
    num_local_experts=256,
    num_experts_per_tok=8,
    routed_scaling_factor=1.0,
    qk_scale_factor=5.4730064863875,
    output_multiplier=0.17677669529663687,
    vocab_size=202_048,
)


def test_the_released_model_is_what_its_configuration_says() -> None:
    assert MuseConfig.from_dict(RELEASED_TEXT) == RELEASED
    assert [i for i, kind in enumerate(RELEASED.layers) if kind.window == 0] == list(
        range(1, 62, 4)
    )
    assert RELEASED.softmax_scale == pytest.approx(0.68412580, rel=1e-6)
    assert RELEASED.max_rows == 16


def test_a_configuration_is_read_from_a_file_or_its_folder(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"model_type": "muse_spark", "text_config": text_config()}))
    assert MuseConfig.from_file(tmp_path) == MuseConfig.from_file(file) == model()


def test_window_and_rotation_are_of_a_layer() -> None:
    assert model().layers == (LayerKind(16, 5e5), LayerKind(0, 0.0), LayerKind(0, 1e4))


def test_a_key_that_says_nothing_of_the_math_is_ignored() -> None:
    assert model(intermediate_size=512, dtype="bfloat16", something_new=3) == model()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"mlp_layer_types": ["sparse", "dense", "sparse"]}, "layers [1] are dense"),
        ({"head_dim": 128}, "head_dim is 128, covered is 64"),
        ({"hidden_size": 320}, "hidden_size is 320, covered are multiples of 128 up to 8192"),
        ({"hidden_size": 16384}, "hidden_size is 16384"),
        ({"moe_hidden_size": 192}, "moe_hidden_size is 192, covered are multiples of 128"),
        ({"moe_intermediate_size": 96}, "moe_intermediate_size is 96"),
        ({"num_attention_heads": 32}, "16 query heads a kv head, covered are up to 8"),
        ({"num_attention_heads": 7}, "7 query heads do not divide into 2 kv heads"),
        ({"num_local_experts": 512}, "num_local_experts is 512, covered are multiples of 16 up to"),
        ({"num_experts_per_tok": 17}, "num_experts_per_tok is 17, covered are 1 to 16"),
        ({"attention_bias": True}, "attention_bias is True, covered is False"),
        ({"tie_word_embeddings": True}, "tie_word_embeddings is True"),
        ({"num_shared_experts": 1}, "num_shared_experts is 1"),
        ({"hidden_act": "gelu"}, "hidden_act is gelu, covered is silu"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "rope_type is 'yarn'"),
        ({"layer_types": ["sliding_attention"]}, "layer_types has 1 entries for 3 layers"),
        ({"layer_types": ["linear", "full_attention", "full_attention"]}, "holds 'linear'"),
    ],
)
def test_a_model_that_is_not_covered_is_refused_with_the_reason(
    changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(UsageError) as refused:
        model(**changes)
    assert said in str(refused.value)


def test_all_reasons_are_given_at_once() -> None:
    with pytest.raises(UsageError, match=r"attention_bias is True.*; hidden_size is 320"):
        model(hidden_size=320, attention_bias=True)


def test_a_missing_size_is_named() -> None:
    text = text_config()
    del text["moe_hidden_size"]
    with pytest.raises(UsageError, match="has no 'moe_hidden_size'"):
        MuseConfig.from_dict(text)


def test_what_is_no_configuration_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot read"):
        MuseConfig.from_file(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(UsageError, match="is no configuration"):
        MuseConfig.from_file(tmp_path)


def test_a_rank_of_eight_of_the_released_model() -> None:
    shape = RELEASED.shard(3, 8, shard_projections=True)
    assert (shape.heads, shape.kv_heads, shape.first_kv_head, shape.qkv_rows) == (16, 2, 6, 2304)
    assert (shape.local_experts, shape.first_expert) == (32, 96)
    assert (shape.pre_rows, shape.first_pre_row) == (512, 1536)
    assert (shape.post_rows, shape.first_post_row) == (1024, 3072)


def test_projections_around_the_experts_are_whole_unless_divided() -> None:
    shape = RELEASED.shard(3, 8)
    assert (shape.pre_rows, shape.first_pre_row) == (4096, 0)
    assert (shape.post_rows, shape.first_post_row) == (8192, 0)


def test_kv_heads_are_replicated_over_more_ranks() -> None:
    shapes = [model().shard(rank, 4) for rank in range(4)]
    assert [shape.kv_heads for shape in shapes] == [1, 1, 1, 1]
    assert [shape.first_kv_head for shape in shapes] == [0, 0, 1, 1]


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("divided", [False, True])
def test_ranks_share_what_is_shared(ranks: int, divided: bool) -> None:
    whole = model()
    shapes = [whole.shard(rank, ranks, divided) for rank in range(ranks)]
    assert sum(shape.heads for shape in shapes) == whole.heads
    experts = [shape.first_expert + i for shape in shapes for i in range(shape.local_experts)]
    assert experts == list(range(whole.experts))
    if divided:
        assert sum(shape.pre_rows for shape in shapes) == whole.expert_width
        assert sum(shape.post_rows for shape in shapes) == whole.hidden
    # A rank's queries belong to its own keys.
    per_key = whole.heads // whole.kv_heads
    for shape in shapes:
        keys = {(shape.rank * shape.heads + i) // per_key for i in range(shape.heads)}
        assert keys == {shape.first_kv_head + i for i in range(shape.kv_heads)}


@pytest.mark.parametrize(
    ("ranks", "said"),
    [
        (3, "8 query heads do not divide"),
        (8, "1 query heads a rank are 64 columns"),
        (16, "at most 8 are covered"),
    ],
)
def test_a_division_that_is_not_covered_is_refused(ranks: int, said: str) -> None:
    with pytest.raises(UsageError) as refused:
        model().shard(0, ranks)
    assert said in str(refused.value)


def test_a_rank_outside_its_group_is_refused() -> None:
    with pytest.raises(UsageError, match="rank 4 of 4"):
        model().shard(4, 4)


def test_rows_of_a_step_have_a_limit() -> None:
    model().check_rows(16)
    for rows in (0, 17):
        with pytest.raises(UsageError, match="takes 1 to 16"):
            model().check_rows(rows)


def test_a_size_that_is_no_number_is_refused_in_words() -> None:
    with pytest.raises(UsageError, match="no number"):
        MuseConfig.from_dict({**text_config(), "sliding_window": None})
