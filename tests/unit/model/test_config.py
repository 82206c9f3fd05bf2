"""ModelConfig: both readers give the same config for the same model, and refuse by name what they cannot express.

The GGUF metadata is that of the file SmolLM2-135M-Instruct.Q4_1.gguf as it is distributed, the config.json that of
HuggingFaceTB/SmolLM2-135M-Instruct and of meta-llama/Llama-3.1-8B-Instruct, without keys that describe no architecture.
"""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from tests.unit.model.programs import LLAMA_8B, SMOLLM2, tiny

from plait.core.errors import ModelError
from plait.model.config import HF_MODEL_TYPES, config_from_gguf, config_from_hf
from plait.model.families import build_program
from plait.model.ops import Activation
from plait.model.rope import FactorScaling, LinearScaling, Llama3Scaling, LongScaling, YarnScaling, frequencies
from plait.model.visibility import CAUSAL, window

GGUF: dict[str, object] = {
    "general.architecture": "llama",
    "general.name": "Smollm2 135M 8k Lc100K Mix1 Ep2",
    "llama.block_count": 30,
    "llama.context_length": 8192,
    "llama.embedding_length": 576,
    "llama.feed_forward_length": 1536,
    "llama.attention.head_count": 9,
    "llama.attention.head_count_kv": 3,
    "llama.rope.freq_base": 100000.0,
    "llama.attention.layer_norm_rms_epsilon": 9.999999747378752e-06,
    "general.file_type": 3,
    "llama.vocab_size": 49152,
    "llama.rope.dimension_count": 64,
    "tokenizer.ggml.tokens": ["<|endoftext|>"] * 49152,
}
TIED = ["token_embd.weight", "blk.0.attn_q.weight", "output_norm.weight"]

HF: dict[str, object] = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "hidden_act": "silu",
    "hidden_size": 576,
    "intermediate_size": 1536,
    "max_position_embeddings": 8192,
    "mlp_bias": False,
    "model_type": "llama",
    "num_attention_heads": 9,
    "num_hidden_layers": 30,
    "num_key_value_heads": 3,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "rope_scaling": None,
    "rope_theta": 100000,
    "tie_word_embeddings": True,
    "vocab_size": 49152,
}

LLAMA3_ROPE: dict[str, object] = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
    "rope_type": "llama3",
}

HF_LLAMA_8B: dict[str, object] = {
    **HF,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "max_position_embeddings": 131072,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "rope_scaling": LLAMA3_ROPE,
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
    "vocab_size": 128256,
}


def without(table: dict[str, object], *keys: str) -> dict[str, object]:
    return {key: value for key, value in table.items() if key not in keys}


def gguf_complaint(**changes: object) -> str:
    """Keys with dots for underscores of the first two parts: `llama__block_count` is llama.block_count."""
    metadata = GGUF | {key.replace("__", "."): value for key, value in changes.items()}
    with pytest.raises(ModelError) as caught:
        config_from_gguf(metadata, TIED)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def hf_complaint(**changes: object) -> str:
    with pytest.raises(ModelError) as caught:
        config_from_hf(HF | changes)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_both_readers_give_the_same_config_and_program_for_smollm2() -> None:
    assert config_from_gguf(GGUF, TIED) == config_from_hf(HF) == SMOLLM2
    assert build_program(config_from_gguf(GGUF, TIED)) == build_program(config_from_hf(HF))


def test_the_published_config_of_llama_8b_is_read() -> None:
    config = config_from_hf(HF_LLAMA_8B)
    assert config == LLAMA_8B
    assert config.rope.scaling == Llama3Scaling(8.0, 1.0, 4.0, 8192)
    assert (config.head_dim, config.tied_embeddings) == (128, False)


def test_rope_facts_of_newer_files_stand_in_one_table() -> None:
    newer = without(HF_LLAMA_8B, "rope_theta", "rope_scaling") | {
        "rope_parameters": {**LLAMA3_ROPE, "rope_theta": 500000.0}
    }
    assert config_from_hf(newer) == LLAMA_8B


def test_a_plain_rope_table_scales_nothing() -> None:
    newer = without(HF, "rope_theta") | {"rope_parameters": {"rope_type": "default", "rope_theta": 100000}}
    assert config_from_hf(newer) == SMOLLM2


def test_missing_keys_have_their_defaults() -> None:
    bare = without(HF, "attention_bias", "mlp_bias", "hidden_act", "tie_word_embeddings", "architectures", "rope_theta")
    config = config_from_hf(without(bare, "num_key_value_heads", "rms_norm_eps"))
    assert (config.num_kv_heads, config.tied_embeddings, config.activation) == (9, False, Activation.SILU)
    assert config.rope.theta == 10_000.0
    assert config.norm_eps == pytest.approx(1e-6, rel=1e-7)
    old = without(GGUF, "llama.attention.head_count_kv", "llama.rope.freq_base", "llama.rope.dimension_count")
    assert config_from_gguf(old, TIED).num_kv_heads == 9
    assert config_from_gguf(old, TIED).rope.theta == 10_000.0
    assert config_from_gguf(old, TIED).rope.rotary_dim == 64


def test_head_dim_may_differ_from_width_over_heads() -> None:
    assert config_from_hf(HF | {"head_dim": 128}).head_dim == 128
    wide = GGUF | {
        "llama.attention.key_length": 128,
        "llama.attention.value_length": 128,
        "llama.rope.dimension_count": 128,
    }
    assert config_from_gguf(wide, TIED).head_dim == 128


def test_the_vocabulary_is_counted_where_it_is_not_given() -> None:
    assert config_from_gguf(without(GGUF, "llama.vocab_size"), TIED).vocab_size == 49152
    with pytest.raises(ModelError, match=r"llama\.vocab_size is missing"):
        config_from_gguf(without(GGUF, "llama.vocab_size", "tokenizer.ggml.tokens"), TIED)


def test_rows_behind_the_last_token_are_padding() -> None:
    config = config_from_gguf(GGUF | {"llama.vocab_size": 49280}, TIED)
    assert (config.vocab_size, config.padding_rows, config.table_rows) == (49152, 128, 49280)
    whole = config_from_gguf(GGUF, TIED)
    assert (whole.vocab_size, whole.padding_rows, whole.table_rows) == (49152, 0, 49152)


def test_a_table_shorter_than_the_vocabulary_is_refused_with_both_sizes() -> None:
    with pytest.raises(ModelError, match=r"llama\.vocab_size is 49151 but tokenizer\.ggml\.tokens holds 49152 tokens"):
        config_from_gguf(GGUF | {"llama.vocab_size": 49151}, TIED)


@pytest.mark.parametrize("tokens", [None, []])
def test_without_tokens_every_row_is_one(tokens: object) -> None:
    config = config_from_gguf(GGUF | {"tokenizer.ggml.tokens": tokens}, TIED)
    assert (config.vocab_size, config.padding_rows) == (49152, 0)


def test_a_head_of_its_own_is_seen_among_the_tensors() -> None:
    assert config_from_gguf(GGUF, TIED).tied_embeddings
    assert not config_from_gguf(GGUF, [*TIED, "output.weight"]).tied_embeddings


def test_biases_are_seen_among_the_tensors_or_in_the_config() -> None:
    names = [*TIED, "blk.0.attn_q.bias", "blk.0.attn_output.bias", "blk.0.ffn_gate.bias"]
    config = config_from_gguf(GGUF, names)
    assert (config.qkv_bias, config.out_bias, config.mlp_bias) == (True, True, True)
    assert config_from_hf(HF | {"attention_bias": True, "mlp_bias": True}) == config


def test_partial_rotation_of_a_gguf_model() -> None:
    assert config_from_gguf(GGUF | {"llama.rope.dimension_count": 32}, TIED).rope.rotary_dim == 32


def test_linear_scaling_is_read_from_both_files() -> None:
    hf = config_from_hf(HF | {"rope_scaling": {"type": "linear", "factor": 4.0}})
    gguf = GGUF | {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}
    assert hf.rope.scaling == LinearScaling(4.0)
    assert config_from_gguf(gguf, TIED) == hf


def test_listed_rope_factors_are_taken_from_their_tensor() -> None:
    names = [*TIED, "rope_freqs.weight"]
    factors = [1.0] * 16 + [8.0] * 16
    assert config_from_gguf(GGUF, names, {"rope_freqs.weight": factors}).rope.scaling == FactorScaling(tuple(factors))
    for wrong, message in (
        (None, "its content was not given"),
        ([1.0] * 31, "31 rope factors for 32 frequencies"),
        ([1.0] * 31 + [0.0], "not a positive number"),
        ([1.0] * 31 + [math.nan], "not a positive number"),
    ):
        with pytest.raises(ModelError, match=message):
            config_from_gguf(GGUF, names, None if wrong is None else {"rope_freqs.weight": wrong})


def test_dynamic_scaling_is_refused_by_name_with_the_reason() -> None:
    for scaling in ({"type": "dynamic", "factor": 2.0}, {"rope_type": "dynamic", "factor": 2.0}):
        text = hf_complaint(rope_scaling=scaling)
        assert "dynamic NTK" in text
        assert "current length" in text


@pytest.mark.parametrize("kind", ["ntk", "mrope", 7])
def test_other_scalings_are_refused_with_those_that_are_known(kind: object) -> None:
    text = hf_complaint(rope_scaling={"rope_type": kind, "factor": 2.0})
    assert f"rope_type is {kind!r}" in text
    assert "supported: default, linear, llama3, yarn, longrope" in text
    assert "supported: none, linear, yarn" in gguf_complaint(llama__rope__scaling__type=kind)


def test_yarn_is_read_from_both_files() -> None:
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048}
    hf = config_from_hf(HF | {"rope_scaling": yarn})
    gguf = GGUF | {
        "llama.rope.scaling.type": "yarn",
        "llama.rope.scaling.factor": 4.0,
        "llama.rope.scaling.original_context_length": 2048,
    }
    assert hf.rope.scaling == YarnScaling(4.0, 2048, 0.1 * math.log(4.0) + 1.0)
    assert config_from_gguf(gguf, TIED) == hf


@pytest.mark.parametrize(
    ("more", "attention_factor"),
    [
        ({}, 0.1 * math.log(4.0) + 1.0),
        ({"attention_factor": 0.75}, 0.75),
        ({"mscale": 1.0, "mscale_all_dim": 2.0}, (0.1 * math.log(4.0) + 1.0) / (0.2 * math.log(4.0) + 1.0)),
    ],
)
def test_yarn_has_a_magnitude_that_the_file_may_choose(more: dict[str, object], attention_factor: float) -> None:
    scaling = config_from_hf(HF | {"rope_scaling": {"type": "yarn", "factor": 4.0, **more}}).rope.scaling
    assert isinstance(scaling, YarnScaling)
    assert scaling.attention_factor == pytest.approx(attention_factor, rel=1e-15)
    assert scaling.original_positions == 8192


PHI3: dict[str, object] = {
    "model_type": "phi3",
    "hidden_size": 32,
    "num_attention_heads": 2,
    "max_position_embeddings": 128,
    "original_max_position_embeddings": 32,
    "rope_scaling": {"type": "su", "short_factor": [1.0] * 8, "long_factor": [2.0] * 8},
}


def test_the_set_of_long_factors_follows_from_the_longest_sequence() -> None:
    config = config_from_hf(PHI3)
    assert isinstance(config.rope.scaling, LongScaling)
    assert config.rope.magnitude == pytest.approx(math.sqrt(1 + math.log(4) / math.log(32)), rel=1e-15)
    assert (config.rope.is_long, config.within(33).rope.is_long, config.within(32).rope.is_long) == (True, True, False)
    assert frequencies(config.within(32).rope) == tuple(2 * f for f in frequencies(config.rope))
    assert config.within(32).rope.magnitude == config.rope.magnitude


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"short_factor": [1.0] * 7}, "7 rope factors for 8 frequencies"),
        ({"long_factor": None}, "long_factor must be a list of numbers"),
        ({"long_factor": [2.0] * 7 + ["3"]}, "long_factor: 7 is '3'"),
        ({"long_factor": [2.0] * 7 + [0.0]}, "long_factor: 7 is 0.0"),
    ],
)
def test_wrong_long_factors_are_named(changes: dict[str, object], message: str) -> None:
    scaling = {"type": "longrope", "short_factor": [1.0] * 8, "long_factor": [2.0] * 8, **changes}
    with pytest.raises(ModelError) as caught:
        config_from_hf(PHI3 | {"rope_scaling": scaling})
    assert message in str(caught.value)


def test_a_window_that_no_sequence_outgrows_is_none() -> None:
    assert config_from_hf({"model_type": "mistral", "sliding_window": 131072}).layer_visibility == (CAUSAL,) * 32
    assert config_from_hf({"model_type": "mistral"}).layer_visibility == (window(4096),) * 32
    assert config_from_hf({"model_type": "mistral", "sliding_window": None}).layer_visibility == (CAUSAL,) * 32


@pytest.mark.parametrize("family", ["gpt_oss", "ministral", "qwen2", "olmo3"])
def test_a_layer_with_a_window_of_unknown_size_is_refused(family: str) -> None:
    config = {"model_type": family, "num_hidden_layers": 2, "sliding_window": None}
    types = ["sliding_attention", "full_attention"]
    with pytest.raises(ModelError, match="layer_types names 'sliding_attention', but no sliding_window"):
        config_from_hf({**config, "layer_types": types})
    config_from_hf({**config, "layer_types": ["full_attention"] * 2})


def test_layer_types_go_before_the_familys_own_pattern() -> None:
    types = ["full_attention", "sliding_attention"]
    listed = config_from_hf({"model_type": "gemma2", "num_hidden_layers": 2, "layer_types": types})
    assert listed.layer_visibility == (CAUSAL, window(4096))
    assert config_from_hf({"model_type": "gemma2", "num_hidden_layers": 2}).layer_visibility == (window(4096), CAUSAL)


@pytest.mark.parametrize(
    ("types", "message"),
    [
        (["full_attention"], "layer_types does not name 2 layers"),
        (["full_attention", "linear_attention"], "layer_types names 'linear_attention'; supported: full_attention, "),
        (["full_attention", ["x"]], "layer_types names ['x']"),
    ],
)
def test_other_layer_types_are_refused(types: object, message: str) -> None:
    with pytest.raises(ModelError) as caught:
        config_from_hf({"model_type": "gemma2", "num_hidden_layers": 2, "layer_types": types})
    assert message in str(caught.value)


def test_rows_behind_the_last_token_of_a_tokenizer_are_padding() -> None:
    config = config_from_hf(HF, num_tokens=49_100)
    assert (config.vocab_size, config.padding_rows) == (49_100, 52)
    assert config_from_hf(HF, num_tokens=60_000) == config_from_hf(HF)


@pytest.mark.parametrize("name", ["qwen2_moe", "olmoe", "deepseek_v3", "jamba"])
def test_other_mixtures_of_experts_are_refused_by_name(name: str) -> None:
    assert f"model_type is '{name}': this mixture of experts is not supported; supported: llama" in hf_complaint(
        model_type=name
    )


def test_a_dense_family_has_no_experts() -> None:
    assert "num_local_experts is 8; llama has no mixtures of experts" in hf_complaint(num_local_experts=8)


def test_who_chooses_more_experts_than_there_are_is_refused() -> None:
    with pytest.raises(ModelError, match="9 experts for a token of 8"):
        config_from_hf({"model_type": "mixtral", "num_experts_per_tok": 9})


def test_the_formats_of_gpt_oss_are_read_and_no_others() -> None:
    config = config_from_hf({"model_type": "gpt_oss", "quantization_config": {"quant_method": "mxfp4"}})
    assert config.mixture is not None
    assert (config.mixture.experts, config.mixture.per_token, config.sinks) == (128, 4, True)
    assert [seen.size for seen in config.layer_visibility[:4]] == [128, 0, 128, 0]
    for other in (
        {"model_type": "mixtral", "quantization_config": {"quant_method": "mxfp4"}},
        {"model_type": "gpt_oss", "quantization_config": {"quant_method": "awq"}},
    ):
        with pytest.raises(ModelError, match="quantised by another program"):
            config_from_hf(other)


def test_layers_of_qwen3_moe_without_experts_are_those_the_file_names() -> None:
    config = config_from_hf({"model_type": "qwen3_moe", "mlp_only_layers": [0], "decoder_sparse_step": 2})
    assert config.mixture is not None
    assert config.mixture.dense_layers == tuple(range(0, 24, 2))
    with pytest.raises(ModelError, match="mlp_only_layers is no list of layers"):
        config_from_hf({"model_type": "qwen3_moe", "mlp_only_layers": ["all"]})


def test_models_that_read_images_are_refused_by_name() -> None:
    assert "model_type is 'mistral3': models that also read images" in hf_complaint(model_type="mistral3")


def test_of_a_large_gemma3_the_text_part_is_read() -> None:
    text = {"hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34, "sliding_window": 1024}
    whole = {"model_type": "gemma3", "architectures": ["Gemma3ForConditionalGeneration"], "vision_config": {}}
    config = config_from_hf({**whole, "text_config": {**text, "model_type": "gemma3_text"}})
    assert config == config_from_hf({"model_type": "gemma3_text", **text})
    assert (config.vocab_size, config.tied_embeddings, config.num_kv_heads) == (262208, True, 4)
    assert not config_from_hf({**whole, "text_config": text, "tie_word_embeddings": False}).tied_embeddings
    assert config_from_hf({**whole, "text_config": text}, num_tokens=262145).padding_rows == 63
    for changes, message in (
        ({}, "text_config is missing"),
        ({"text_config": [1]}, "text_config is"),
        ({"text_config": text, "architectures": ["Other"]}, "supported: Gemma3ForConditionalGeneration"),
        ({"text_config": text, "quantization_config": {"quant_method": "awq"}}, "quant_method 'awq'"),
    ):
        with pytest.raises(ModelError) as caught:
            config_from_hf({**whole, **changes})
        assert message in str(caught.value)


@pytest.mark.parametrize(
    ("value", "named"),
    [
        ({"quant_method": "gptq", "bits": 4}, "quant_method 'gptq'"),
        ({"bits": 4}, "a method without a name"),
        ("awq", "a method without a name"),
    ],
)
def test_weights_that_another_program_quantised_are_refused_by_name(value: object, named: str) -> None:
    assert f"quantization_config says {named}; checkpoints that were quantised" in hf_complaint(
        quantization_config=value
    )


def test_a_model_that_looks_ahead_is_refused() -> None:
    with pytest.raises(ModelError, match="use_bidirectional_attention is True; models that look ahead"):
        config_from_hf({"model_type": "gemma3_text", "use_bidirectional_attention": True})


def test_gguf_files_of_gemma_hold_norm_weights_with_their_offset() -> None:
    gemma = {key.replace("llama.", "gemma."): value for key, value in GGUF.items()} | {"general.architecture": "gemma"}
    config = config_from_gguf(gemma, TIED)
    assert (config.norm_offset, config.embed_scale) == (0.0, 24.0)
    hf = {"model_type": "gemma", "hidden_size": 576, "num_attention_heads": 9, "num_key_value_heads": 3}
    assert (config_from_hf(hf).norm_offset, config_from_hf(hf).embed_scale) == (1.0, 24.0)


def gemma3_metadata(**more: object) -> dict[str, object]:
    made = {key.replace("llama.", "gemma3."): value for key, value in GGUF.items()}
    sliding = {"general.architecture": "gemma3", "gemma3.attention.sliding_window": 512}
    return made | sliding | {f"gemma3.{key.replace('__', '.')}": value for key, value in more.items()}


def test_windows_of_a_gguf_file_follow_its_pattern_or_its_family() -> None:
    known = config_from_gguf(gemma3_metadata(), TIED).layer_visibility
    assert known == tuple(CAUSAL if layer % 6 == 5 else window(512) for layer in range(30))
    every = config_from_gguf(gemma3_metadata(attention__sliding_window_pattern=3), TIED).layer_visibility
    assert every == tuple(CAUSAL if layer % 3 == 2 else window(512) for layer in range(30))
    flags = [True] + [False] * 29
    listed = config_from_gguf(gemma3_metadata(attention__sliding_window_pattern=flags), TIED).layer_visibility
    assert listed == (window(512), *[CAUSAL] * 29)
    with pytest.raises(ModelError, match="sliding_window_pattern holds 2 entries for 30 layers"):
        config_from_gguf(gemma3_metadata(attention__sliding_window_pattern=[True, False]), TIED)


def test_gemma3_files_name_their_local_table_in_two_ways() -> None:
    for key in ("rope__freq_base_swa", "rope__local__freq_base"):
        local = config_from_gguf(gemma3_metadata(**{key: 7_000.0}), TIED).local_rope
        assert local is not None
        assert local.theta == 7_000.0
    both = config_from_gguf(gemma3_metadata(), TIED)
    assert (both.rope.theta, both.local_rope and both.local_rope.theta) == (100_000.0, 10_000.0)


def test_the_largest_gemmas_scale_scores_by_their_width() -> None:
    small, large = (config_from_gguf(gemma3_metadata(block_count=layers), TIED) for layers in (48, 62))
    assert (small.attention_scale, large.attention_scale) == (0.125, 0.125)
    wide = gemma3_metadata(block_count=62, attention__key_length=128, rope__dimension_count=128)
    assert config_from_gguf(wide, TIED).attention_scale == 0.125
    wide = gemma3_metadata(block_count=48, attention__key_length=128, rope__dimension_count=128)
    assert config_from_gguf(wide, TIED).attention_scale == pytest.approx(128**-0.5, rel=1e-15)


def test_which_layers_rotate_nothing_a_file_may_say() -> None:
    base = {"model_type": "smollm3", "num_hidden_layers": 6}
    assert config_from_hf(base).unrotated_layers == (3,)
    assert config_from_hf(base | {"no_rope_layers": [0, 1, 1, 1, 1, 0]}).unrotated_layers == (0, 5)
    with pytest.raises(ModelError, match="no_rope_layers does not say 0 or 1 for each of 6 layers"):
        config_from_hf(base | {"no_rope_layers": [0, 1, 2, 1, 1, 0]})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"factor": None}, "factor is missing"),
        ({"factor": 0}, "factor is 0"),
        ({"factor": "8"}, "factor is '8'"),
        ({"low_freq_factor": None}, "low_freq_factor is missing"),
        ({"high_freq_factor": 1.0}, "high_freq_factor is 1.0; it must be above low_freq_factor, 1.0"),
        ({"original_max_position_embeddings": 8192.0}, "original_max_position_embeddings is 8192.0"),
    ],
)
def test_llama3_scaling_with_facts_missing_or_wrong(changes: dict[str, object], message: str) -> None:
    text = hf_complaint(rope_scaling=LLAMA3_ROPE | changes)
    assert text.startswith("config.json, rope_scaling: ")
    assert message in text


def test_unknown_architectures_are_refused_with_those_that_are_known() -> None:
    assert "general.architecture is 'mamba'" in gguf_complaint(general__architecture="mamba")
    assert "supported: llama, qwen2" in gguf_complaint(general__architecture="mamba")
    assert "model_type is 'mamba'" in hf_complaint(model_type="mamba")
    assert "supported: llama, mistral, ministral, qwen2" in hf_complaint(model_type="mamba")
    assert "architectures is ['LlamaForSequenceClassification']" in hf_complaint(
        architectures=["LlamaForSequenceClassification"]
    )
    assert "architectures is 'LlamaForCausalLM'" in hf_complaint(architectures="LlamaForCausalLM")


def test_an_unknown_activation_is_refused_with_those_that_are_known() -> None:
    text = hf_complaint(hidden_act="mish")
    assert "hidden_act is 'mish'; this activation is not supported; supported: silu" in text


@pytest.mark.parametrize(("name", "kind"), [("gelu", Activation.GELU), ("gelu_pytorch_tanh", Activation.GELU_TANH)])
def test_other_activations_are_read(name: str, kind: Activation) -> None:
    assert config_from_hf(HF | {"hidden_act": name}).activation is kind


def test_what_this_architecture_cannot_express_is_refused() -> None:
    assert "llama.expert_used_count is missing" in gguf_complaint(llama__expert_count=8)
    assert "value_length is 32; values must be as long as keys (64)" in gguf_complaint(
        llama__attention__value_length=32
    )
    assert "partial_rotary_factor is 0.5" in hf_complaint(partial_rotary_factor=0.5)
    config_from_gguf(GGUF | {"llama.expert_count": 0}, TIED)
    config_from_hf(HF | {"partial_rotary_factor": 1.0})


GGUF_KEYS = [
    "general.architecture",
    "llama.block_count",
    "llama.context_length",
    "llama.embedding_length",
    "llama.feed_forward_length",
    "llama.attention.head_count",
    "llama.attention.layer_norm_rms_epsilon",
]


@pytest.mark.parametrize("key", GGUF_KEYS)
def test_a_missing_gguf_key_is_named(key: str) -> None:
    with pytest.raises(ModelError, match=f"GGUF metadata: {key} is missing"):
        config_from_gguf(without(GGUF, key), TIED)


@pytest.mark.parametrize("model_type", HF_MODEL_TYPES)
def test_a_missing_key_of_config_json_has_the_default_of_its_family(model_type: str) -> None:
    """That these are the defaults of `transformers` is checked where that is installed."""
    defaults = HF_MODEL_TYPES[model_type].defaults
    bare = config_from_hf({"model_type": model_type})
    assert bare == config_from_hf({"model_type": model_type, **defaults})
    assert (bare.hidden, bare.tied_embeddings) == (defaults["hidden_size"], defaults["tie_word_embeddings"])


@pytest.mark.parametrize("key", [key for key in GGUF if key.startswith("llama.")])
@pytest.mark.parametrize("value", [-1, 0, 1e300, math.nan, "many", True, [9, 9]])
def test_absurd_gguf_values_are_refused_naming_their_key(key: str, value: object) -> None:
    with pytest.raises(ModelError) as caught:
        config_from_gguf(GGUF | {key: value}, TIED)
    assert key in str(caught.value)


@pytest.mark.parametrize("key", [key for key in HF if key not in ("pretraining_tp", "rope_scaling")])
@pytest.mark.parametrize("value", [-1, 1e300, math.nan, "many", [9, 9], {"a": 1}])
def test_absurd_values_of_config_json_are_refused_naming_their_key(key: str, value: object) -> None:
    assert key in hf_complaint(**{key: value})


def test_widths_that_do_not_divide_are_refused() -> None:
    assert "9 attention heads do not share 2 KV heads" in hf_complaint(num_key_value_heads=2)
    assert "width 577 does not divide into 9 heads and head_dim is missing" in hf_complaint(hidden_size=577)
    assert "rotary dimension 63 must be even" in hf_complaint(head_dim=63)
    assert "rotary dimension 128 must be even and at most" in gguf_complaint(llama__rope__dimension_count=128)


def test_an_empty_header_is_refused() -> None:
    with pytest.raises(ModelError, match=r"general\.architecture is missing"):
        config_from_gguf({}, [])
    with pytest.raises(ModelError, match="model_type is missing"):
        config_from_hf({})


def test_a_config_has_one_pattern_for_each_layer() -> None:
    with pytest.raises(ModelError, match="1 attention patterns for 2 layers"):
        replace(tiny(), layer_visibility=(CAUSAL,))


def test_eps_too_small_for_a_float_is_refused() -> None:
    assert "rms_norm_eps is 1e-46" in hf_complaint(rms_norm_eps=1e-46)


def test_more_layers_than_any_model_has_are_refused() -> None:
    """Building a program takes time for each."""
    assert "llama.block_count is 1001; it must be a whole number from 1 to 1000" in gguf_complaint(
        llama__block_count=1001
    )
    assert "num_hidden_layers is 1001" in hf_complaint(num_hidden_layers=1001)
