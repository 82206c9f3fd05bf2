"""Configurations with anything in them: every reader gives a consistent ModelConfig or a ModelError of one line."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plait.core.errors import ModelError
from plait.model.config import GGUF_ARCHITECTURES, HF_MODEL_TYPES, config_from_gguf, config_from_hf
from plait.model.families import build_program
from plait.model.model_config import ModelConfig
from plait.model.rope import frequencies

MOST_LAYERS = 64
"""Programs of more layers are not written here: they take long, and say nothing new."""
EXTRA_KEYS = (
    "head_dim",
    "rope_scaling",
    "rope_parameters",
    "rope_theta",
    "rope_local_base_freq",
    "partial_rotary_factor",
    "layer_types",
    "sliding_window",
    "sliding_window_pattern",
    "no_rope_layers",
    "no_rope_layer_interval",
    "attention_bias",
    "quantization_config",
    "num_local_experts",
    "original_max_position_embeddings",
    "architectures",
)
SCALING_KEYS = (
    "rope_type",
    "type",
    "factor",
    "rope_theta",
    "low_freq_factor",
    "high_freq_factor",
    "original_max_position_embeddings",
    "beta_fast",
    "beta_slow",
    "attention_factor",
    "mscale",
    "mscale_all_dim",
    "truncate",
    "short_factor",
    "long_factor",
    "full_attention",
    "sliding_attention",
)
numbers = st.one_of(
    st.integers(-2, 70), st.sampled_from((1 << 70, 0.5, 1e-320, 1e308, float("nan"), float("inf"), -0.0))
)
words = st.sampled_from(
    ("default", "linear", "llama3", "yarn", "longrope", "dynamic", "silu", "sliding_attention", "ä\n")
)
plain = st.one_of(st.none(), st.booleans(), numbers, words)
anything = st.recursive(
    plain,
    lambda inner: st.one_of(
        st.lists(inner, max_size=5), st.dictionaries(st.sampled_from(SCALING_KEYS), inner, max_size=6)
    ),
    max_leaves=8,
)


def check_config(config: ModelConfig) -> None:
    assert len(frequencies(config.rope)) == config.rope.rotary_dim // 2
    assert all(0 <= frequency < float("inf") for frequency in frequencies(config.rope))
    if config.num_layers <= MOST_LAYERS:
        assert build_program(config).vocab_size == config.vocab_size


def check_complaint(error: ModelError) -> None:
    assert str(error)
    assert len(str(error)) < 1000


@pytest.mark.parametrize("model_type", HF_MODEL_TYPES)
@settings(max_examples=40)
@given(data=st.data())
def test_any_config_json_is_read_or_refused_in_a_line(model_type: str, data: st.DataObject) -> None:
    keys = (*HF_MODEL_TYPES[model_type].defaults, *EXTRA_KEYS)
    changes = data.draw(st.dictionaries(st.sampled_from(keys), anything, max_size=4))
    try:
        config = config_from_hf({"model_type": model_type, "num_hidden_layers": 4, **changes})
    except ModelError as error:
        check_complaint(error)
    else:
        check_config(config)


SMALL_GGUF: Mapping[str, object] = {
    "block_count": 4,
    "context_length": 64,
    "embedding_length": 32,
    "feed_forward_length": 48,
    "attention.head_count": 4,
    "attention.layer_norm_rms_epsilon": 1e-5,
    "attention.layer_norm_epsilon": 1e-5,
    "vocab_size": 70,
}
GGUF_KEYS = (
    *SMALL_GGUF,
    "attention.head_count_kv",
    "attention.key_length",
    "attention.value_length",
    "attention.sliding_window",
    "attention.sliding_window_pattern",
    "attention.scale",
    "attn_logit_softcapping",
    "final_logit_softcapping",
    "logit_scale",
    "rope.dimension_count",
    "rope.freq_base",
    "rope.freq_base_swa",
    "rope.scaling.type",
    "rope.scaling.factor",
    "rope.scaling.attn_factor",
    "rope.scaling.original_context_length",
    "rope.scaling.yarn_beta_fast",
)


@pytest.mark.parametrize("arch", GGUF_ARCHITECTURES)
@settings(max_examples=40)
@given(data=st.data())
def test_any_gguf_metadata_is_read_or_refused_in_a_line(arch: str, data: st.DataObject) -> None:
    changes = data.draw(st.dictionaries(st.sampled_from(GGUF_KEYS), anything, max_size=4))
    factors = data.draw(st.sampled_from((None, "rope_freqs.weight", "rope_factors_long.weight")))
    named = {} if factors is None else {factors: data.draw(st.lists(st.floats(), max_size=5))}
    metadata = {f"{arch}.{key}": value for key, value in {**SMALL_GGUF, **changes}.items()}
    try:
        config = config_from_gguf({"general.architecture": arch, **metadata}, [*named, "output.weight"], named)
    except ModelError as error:
        check_complaint(error)
    else:
        check_config(config)
