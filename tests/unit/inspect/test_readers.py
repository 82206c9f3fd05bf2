"""Readers: each kind of architecture as groups, in bytes that its own implementation would allocate."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from plait.core.errors import ModelError, UsageError
from plait.inspect.config import facts_from_config
from plait.inspect.layers import NumberType, memory_groups
from plait.inspect.readers.table import READERS
from plait.kv.layouts.groups import MemoryGroup

BASE: Mapping[str, object] = {
    "num_hidden_layers": 4,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1000,
}
MAMBA2 = {"mamba_n_heads": 8, "mamba_d_head": 16, "mamba_n_groups": 2, "mamba_d_state": 16, "mamba_d_conv": 4}


def read(family: str, ranks: int = 1, **config: object) -> list[MemoryGroup]:
    facts = facts_from_config({**BASE, "model_type": family, **config}, "made up", "made up")
    return memory_groups(facts.layers, NumberType.BF16, facts.numbers, ranks)


def shape(groups: list[MemoryGroup]) -> list[tuple[str, int, int]]:
    """(name, layers, bytes of one layer for a token or a sequence)."""
    return [(group.name, group.num_layers, group.token_bytes or group.state_bytes) for group in groups]


# 2 KV heads of 16, keys and values, 2 bytes.
FULL = ("full", 4, 128)


@pytest.mark.parametrize("family", ["llama", "qwen3", "qwen3_moe", "olmo2", "glm4_moe", "granite", "phi3", "mixtral"])
def test_attention_to_everything(family: str) -> None:
    assert shape(read(family, head_dim=16, sliding_window=None)) == [FULL]


@pytest.mark.parametrize(
    ("family", "config", "expected"),
    [
        ("mistral", {"sliding_window": 100}, [("window 100", 4, 128)]),
        ("phi3", {"sliding_window": 1000}, [FULL]),
        ("qwen2", {"sliding_window": 100, "use_sliding_window": False, "max_window_layers": 1}, [FULL]),
        (
            "qwen2",
            {"sliding_window": 100, "use_sliding_window": True, "max_window_layers": 1},
            [("full", 1, 128), ("window 100", 3, 128)],
        ),
        ("gemma2", {"head_dim": 16, "sliding_window": 100}, [("window 100", 2, 128), ("full", 2, 128)]),
        ("gpt_oss", {"head_dim": 16, "sliding_window": 100}, [("window 100", 2, 128), ("full", 2, 128)]),
        ("cohere2", {"sliding_window": 100}, [("window 100", 3, 128), ("full", 1, 128)]),
        ("gemma3_text", {"head_dim": 16, "sliding_window": 100}, [("window 100", 4, 128)]),
        (
            "gemma3_text",
            {"head_dim": 16, "sliding_window": 100, "sliding_window_pattern": 2},
            [("window 100", 2, 128), ("full", 2, 128)],
        ),
        (
            "ministral",
            {"sliding_window": 100, "layer_types": ["full_attention", *["sliding_attention"] * 3]},
            [("full", 1, 128), ("window 100", 3, 128)],
        ),
        ("smollm3", {"use_sliding_window": False}, [FULL]),
        ("llama4_text", {"head_dim": 16, "attention_chunk_size": 100}, [("chunked 100", 3, 128), ("full", 1, 128)]),
        (
            "llama4_text",
            {"head_dim": 16, "attention_chunk_size": 100, "no_rope_layers": [1, 0, 1, 0]},
            [("chunked 100", 2, 128), ("full", 2, 128)],
        ),
        ("mllama_text_model", {"cross_attention_layers": [1, 3]}, [("full", 2, 128), ("cross", 2, 128)]),
        (
            "mimo_v2_flash",
            {
                "head_dim": 16,
                "v_head_dim": 8,
                "sliding_window": 100,
                "hybrid_layer_pattern": [0, 1, 1, 1],
                "swa_num_key_value_heads": 4,
                "swa_head_dim": 16,
                "swa_v_head_dim": 8,
            },
            [("full", 1, 96), ("window 100", 3, 192)],
        ),
    ],
)
def test_windows_chunks_and_images(
    family: str, config: dict[str, object], expected: list[tuple[str, int, int]]
) -> None:
    assert shape(read(family, **config)) == expected


def test_layers_that_read_what_others_keep_keep_nothing() -> None:
    groups = read("gemma3n_text", num_hidden_layers=10, num_kv_shared_layers=5, head_dim=16, sliding_window=100)
    assert shape(groups) == [("window 100", 4, 128), ("full", 1, 128)]


def test_gemma_4_has_wider_heads_where_it_looks_at_everything() -> None:
    groups = read(
        "gemma4_text",
        num_hidden_layers=6,
        head_dim=16,
        global_head_dim=32,
        num_global_key_value_heads=1,
        attention_k_eq_v=True,
        sliding_window=100,
    )
    assert shape(groups) == [("window 100", 5, 128), ("full", 1, 128)]


@pytest.mark.parametrize("family", ["deepseek_v2", "deepseek_v3", "kimi_k2"])
def test_one_latent_vector_for_all_heads_whole_on_every_rank(family: str) -> None:
    config = {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "num_hidden_layers": 61}
    assert shape(read(family, **config)) == [("latent", 61, 1152)]
    assert shape(read(family, ranks=8, **config)) == [("latent", 61, 1152)]


def test_an_indexer_keeps_keys_of_eight_bits_beside_the_latent_vector() -> None:
    groups = read("deepseek_v32", kv_lora_rank=512, qk_rope_head_dim=64, index_head_dim=128)
    assert shape(groups) == [("latent", 4, 1152), ("indexer keys", 4, 132)]


@pytest.mark.parametrize(
    ("family", "config", "label", "num_layers", "parts"),
    [
        (
            "jamba",
            {"attn_layer_period": 4, "attn_layer_offset": 2, "mamba_d_state": 8, "mamba_d_conv": 4, "mamba_expand": 2},
            "mamba",
            3,
            {"conv": 128 * 3, "ssm": 128 * 8},
        ),
        (
            "mamba",
            {"state_size": 8, "conv_kernel": 4, "intermediate_size": 128},
            "mamba",
            4,
            {"conv": 384, "ssm": 1024},
        ),
        (
            "mamba2",
            {"num_heads": 8, "head_dim": 16, "n_groups": 2, "state_size": 16, "conv_kernel": 4},
            "mamba2",
            4,
            {"conv": 192 * 3, "ssm": 8 * 16 * 16},
        ),
        ("bamba", {"attn_layer_indices": [1], "mamba_expand": 2, **MAMBA2}, "mamba2", 3, {"conv": 576, "ssm": 2048}),
        (
            "granitemoehybrid",
            {"layer_types": ["mamba", "attention", "mamba", "mamba"], "mamba_expand": 2, **MAMBA2},
            "mamba2",
            3,
            {"conv": 576, "ssm": 2048},
        ),
        (
            "falcon_h1",
            {"mamba_d_ssm": 96, **MAMBA2, "mamba_n_heads": 6, "head_dim": 16},
            "mamba2",
            4,
            {"conv": 480, "ssm": 1536},
        ),
        (
            "nemotron_h",
            {
                "hybrid_override_pattern": "M-M*",
                "mamba_num_heads": 8,
                "mamba_head_dim": 16,
                "n_groups": 2,
                "ssm_state_size": 16,
                "conv_kernel": 4,
                "head_dim": 16,
                "mamba_ssm_cache_dtype": "bfloat16",
            },
            "mamba2",
            2,
            {"conv": 576, "ssm": 2048},
        ),
        (
            "zamba2",
            {
                "layers_block_type": ["mamba", "hybrid", "mamba", "hybrid"],
                "n_mamba_heads": 8,
                "mamba_headdim": 16,
                "mamba_ngroups": 1,
                "mamba_d_state": 16,
                "mamba_d_conv": 4,
                "mamba_expand": 2,
            },
            "mamba2",
            4,
            {"conv": 480, "ssm": 2048},
        ),
        (
            "qwen3_next",
            {
                "head_dim": 16,
                "linear_num_key_heads": 2,
                "linear_num_value_heads": 4,
                "linear_key_head_dim": 16,
                "linear_value_head_dim": 8,
                "linear_conv_kernel_dim": 4,
            },
            "gated delta",
            3,
            {"conv": 288, "recurrent": 512},
        ),
        ("lfm2", {"full_attn_idxs": [1], "conv_L_cache": 3}, "short conv", 3, {"conv": 128}),
        (
            "minimax",
            {"layer_types": ["linear_attention", "full_attention"] * 2, "dtype": "float32"},
            "lightning",
            2,
            {"recurrent": 4 * 16 * 16},
        ),
    ],
)
def test_states(family: str, config: dict[str, object], label: str, num_layers: int, parts: dict[str, int]) -> None:
    width = 4 if config.get("dtype") == "float32" else 2
    state = next(group for group in read(family, **config) if group.is_state)
    assert (state.name, state.num_layers) == (label, num_layers)
    assert {part.name: part.num_bytes for part in state.state_parts} == {
        name: width * count for name, count in parts.items()
    }


def test_hybrid_layers_of_zamba_attend_over_twice_the_width() -> None:
    groups = read(
        "zamba2",
        layers_block_type=["mamba", "hybrid", "mamba", "hybrid"],
        num_key_value_heads=4,
        mamba_expand=2,
    )
    assert ("full", 2, 2 * 4 * 32 * 2) in shape(groups)


def test_rwkv_keeps_its_sums_in_float32_and_no_tokens() -> None:
    (state,) = read("rwkv")
    assert {part.name: part.num_bytes for part in state.state_parts} == {"shift": 2 * 64 * 2, "sums": 3 * 64 * 4}


def test_rwkv7_keeps_a_matrix_for_each_head_and_no_tokens() -> None:
    (state,) = read("rwkv7", head_dim=16)
    assert {part.name: part.num_bytes for part in state.state_parts} == {"shift": 2 * 64 * 2, "wkv": 64 * 16 * 4}


def test_kimi_linear_counts_its_layers_from_one() -> None:
    linear = {"full_attn_layers": [4], "num_heads": 4, "head_dim": 16, "short_conv_kernel_size": 4}
    groups = read("kimi_linear", linear_attn_config=linear, kv_lora_rank=16, qk_rope_head_dim=8)
    assert shape(groups) == [("delta", 3, 2 * 3 * 64 * 3 + 4 * 4 * 16 * 16), ("latent", 1, 2 * 24)]


def test_the_file_may_name_the_type_of_a_state() -> None:
    config = {
        "head_dim": 16,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 8,
        "linear_conv_kernel_dim": 4,
        "mamba_ssm_dtype": "float32",
    }
    state = next(group for group in read("qwen3_5_text", **config) if group.is_state)
    assert {part.name: part.num_bytes for part in state.state_parts} == {"conv": 2 * 288, "recurrent": 4 * 512}


def test_the_text_part_of_a_model_with_images_is_read() -> None:
    inner = {**BASE, "model_type": "gemma3_text", "head_dim": 16, "sliding_window": 100}
    facts = facts_from_config({"model_type": "gemma3", "text_config": inner}, "made up", "made up")
    assert (facts.family, facts.num_layers) == ("gemma3_text", 4)


def test_what_a_file_leaves_out_is_what_transformers_fills_in() -> None:
    """As gemma-3-4b's file does: no heads, no head dimension, no pattern."""
    config = {"model_type": "gemma3_text", "hidden_size": 2560, "num_hidden_layers": 34, "sliding_window": 1024}
    facts = facts_from_config(config, "made up", "made up")
    groups = memory_groups(facts.layers, NumberType.BF16, facts.numbers)
    assert shape(groups) == [("window 1024", 29, 4096), ("full", 5, 4096)]


def test_ranks_share_heads_and_keep_those_that_are_too_few_several_times() -> None:
    assert shape(read("llama", ranks=2)) == [("full", 4, 64)]
    assert shape(read("llama", ranks=4)) == [("full", 4, 64)]
    with pytest.raises(UsageError, match="2 KV heads do not divide among 3 ranks"):
        read("llama", ranks=3)


def test_states_that_do_not_divide_among_ranks_are_refused() -> None:
    config = {"mamba_d_ssm": 96, **MAMBA2, "mamba_n_heads": 6, "head_dim": 16}
    state = next(group for group in read("falcon_h1", ranks=2, **config) if group.is_state)
    assert state.state_bytes == 2 * (480 + 1536) // 2
    with pytest.raises(UsageError, match="a state of 2 heads or groups"):
        read("falcon_h1", ranks=4, **config)


def test_a_convolution_over_one_column_keeps_nothing() -> None:
    (state,) = read("mamba", state_size=8, conv_kernel=1, intermediate_size=128)
    assert [part.name for part in state.state_parts] == ["ssm"]
    with pytest.raises(ModelError, match="no layer of the model keeps anything"):
        read("nemotron_h", hybrid_override_pattern="-E-E")


def test_int8_has_a_scale_for_each_token_and_head() -> None:
    facts = facts_from_config({**BASE, "model_type": "llama"}, "made up", "made up")
    (group,) = memory_groups(facts.layers, NumberType.INT8, facts.numbers)
    assert group.token_bytes == 2 * 2 * (16 + 4)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"model_type": "qwen33"}, "'qwen33' keeps in memory is not known (the nearest known type is qwen3); describe"),
        ({"model_type": None}, "model_type is missing"),
        ({"model_type": "llama", "num_hidden_layers": None}, "num_hidden_layers is missing"),
        ({"model_type": "llama", "num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000; it must be"),
        ({"model_type": "llama", "num_attention_heads": 5}, "hidden_size 64 does not divide into 5 heads"),
        ({"model_type": "llama", "layer_types": ["full_attention"]}, "layer_types must be a list of 4 words"),
        ({"model_type": "llama", "layer_types": ["magic"] * 4}, "layer_types holds 'magic'; supported here"),
        ({"model_type": "mllama", "cross_attention_layers": [9]}, "cross_attention_layers must be a list of layer"),
        ({"model_type": "nemotron_h", "hybrid_override_pattern": "M?"}, "must be spelt in *, M, -, E"),
        ({"model_type": "nemotron_h"}, "hybrid_override_pattern and layers_block_type are missing"),
        ({"model_type": "kimi_linear"}, "linear_attn_config is missing"),
        ({"model_type": "lfm2"}, "layer_types and full_attn_idxs are missing"),
        ({"model_type": "zamba2"}, "layers_block_type is missing"),
        ({"model_type": "mimo_v2_flash"}, "hybrid_layer_pattern must be a list of 4 marks"),
    ],
)
def test_what_a_file_does_not_say_is_asked_for_in_one_line(config: dict[str, object], words: str) -> None:
    with pytest.raises(ModelError) as caught:
        facts_from_config({**BASE, **config}, "made up", "config.json")
    message = str(caught.value)
    assert words in message
    assert "\n" not in message


@pytest.mark.parametrize("family", sorted(READERS))
def test_an_empty_file_of_any_family_is_an_error_of_one_line(family: str) -> None:
    with pytest.raises(ModelError) as caught:
        facts_from_config({"model_type": family}, "made up", "config.json")
    assert "config.json" in str(caught.value)
    assert "\n" not in str(caught.value)
