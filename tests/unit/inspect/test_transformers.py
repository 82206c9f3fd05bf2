"""Against `transformers`: what its own models allocate for a sequence is what the readers say, number by number.

A convolution's tail is one column wider there, because the newest column is kept too.
"""

from __future__ import annotations

from typing import Any

import pytest

from plait.inspect.config import facts_from_config
from plait.inspect.known import known_models
from plait.inspect.layers import KeysValues, Layer, NumberType, memory_groups
from plait.inspect.sources import find_facts
from plait.model.parts import GroupKind

pytestmark = pytest.mark.torch

TOKENS = 20
BASE = {
    "vocab_size": 64,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
MAMBA2 = {
    "mamba_n_heads": 8,
    "mamba_d_head": 16,
    "mamba_n_groups": 2,
    "mamba_d_state": 16,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
}
EXPERTS = {"num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 16}
CASES: dict[str, dict[str, object]] = {
    "llama": {},
    "gemma2": {"head_dim": 16, "sliding_window": 8},
    "gemma3_text": {"head_dim": 16, "sliding_window": 8, "num_hidden_layers": 6},
    "jamba": {
        "attn_layer_period": 4,
        "attn_layer_offset": 2,
        "mamba_d_state": 8,
        "mamba_d_conv": 4,
        "mamba_expand": 2,
        "num_experts": 2,
        "num_experts_per_tok": 1,
    },
    "bamba": {"attn_layer_indices": [1], **MAMBA2},
    "granitemoehybrid": {
        "layer_types": ["mamba", "attention", "mamba", "mamba"],
        "num_local_experts": 2,
        "num_experts_per_tok": 1,
        "shared_intermediate_size": 32,
        **MAMBA2,
    },
    "falcon_h1": {**MAMBA2, "mamba_d_ssm": 96, "mamba_n_heads": 6, "head_dim": 16},
    "nemotron_h": {
        "hybrid_override_pattern": "M-M*",
        "mamba_num_heads": 8,
        "mamba_head_dim": 16,
        "n_groups": 2,
        "ssm_state_size": 16,
        "conv_kernel": 4,
        "head_dim": 16,
    },
    "zamba2": {
        "layers_block_type": ["mamba", "hybrid", "mamba", "hybrid"],
        "n_mamba_heads": 8,
        "mamba_headdim": 16,
        "mamba_ngroups": 1,
        "mamba_d_state": 16,
        "mamba_d_conv": 4,
        "mamba_expand": 2,
        "num_mem_blocks": 1,
        "num_key_value_heads": 4,
    },
    "qwen3_next": {
        "head_dim": 16,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 8,
        "linear_conv_kernel_dim": 4,
        "shared_expert_intermediate_size": 16,
        **EXPERTS,
    },
    "lfm2": {"layer_types": ["conv", "full_attention", "conv", "conv"], "conv_L_cache": 3},
    "mamba": {"state_size": 8, "expand": 2, "conv_kernel": 4, "intermediate_size": 128},
    "mamba2": {"num_heads": 8, "head_dim": 16, "n_groups": 2, "state_size": 16, "conv_kernel": 4, "expand": 2},
}
WITHOUT_ATTENTION = ("num_attention_heads", "num_key_value_heads", "max_position_embeddings")


def allocated(layer: Any) -> dict[str, tuple[int, ...]]:
    """Shapes of one layer's tensors, by what they are."""
    found = {}
    for name in ("keys", "values"):
        tensor = getattr(layer, name, None)
        if tensor is not None and tensor.numel():
            found[name] = tuple(tensor.shape)
    for name in ("conv_states", "recurrent_states"):
        tensors = getattr(layer, name, None) or {}
        for tensor in tensors.values() if isinstance(tensors, dict) else tensors:
            if tensor is not None:
                found[name] = tuple(tensor.shape)
    return found


def said(layers: list[Layer]) -> list[tuple[str, int]]:
    """(what, numbers) for every tensor that the readers foretell, for `TOKENS` tokens."""
    found: list[tuple[str, int]] = []
    for layer in layers:
        if isinstance(layer, KeysValues):
            held = min(TOKENS, layer.window - 1) if layer.window else TOKENS
            found.append(("keys", held * layer.num_heads * layer.head_dim_k))
            found.append(("values", held * layer.num_heads * layer.head_dim_v))
        else:
            found += [("conv" if part.name == "conv" else "scan", part.num_elements) for part in layer.parts]
    return found


def made(cache: Any) -> list[tuple[str, int]]:
    """The same for what a model has allocated; a window holds what the next token will see besides itself."""
    found = []
    for layer in cache.layers:
        for name, shape in allocated(layer).items():
            numbers = 1
            for size in shape:
                numbers *= size
            if name == "conv_states":
                found.append(("conv", numbers // shape[-1] * (shape[-1] - 1)))
            else:
                found.append(("scan" if name == "recurrent_states" else name, numbers))
    return found


@pytest.mark.parametrize("family", CASES)
def test_a_models_own_cache_has_the_sizes_that_the_reader_says(family: str) -> None:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = {**BASE, **CASES[family]}
    if family.startswith("mamba"):
        config = {name: value for name, value in config.items() if name not in WITHOUT_ATTENTION}
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **config)).eval()
    with torch.no_grad():
        output = model(torch.randint(3, 60, (1, TOKENS)), use_cache=True)
    cache = getattr(output, "past_key_values", None) or output.cache_params
    facts = facts_from_config({"model_type": family, **config}, "made up", "made up")
    assert sorted(made(cache)) == sorted(said(list(facts.layers)))


UNLIKE = ("kimi_k2", "kimi_linear", "mllama_text_model")
"""Families whose cache `transformers` does not make from these keys alone."""


def test_known_models_have_the_layers_that_transformers_would_make() -> None:
    from transformers import AutoConfig, DynamicCache

    models = [model for model in known_models().values() if model.config["model_type"] not in UNLIKE]
    found, expected = {}, {}
    for model in models:
        config = dict(model.config)
        cache = DynamicCache(config=AutoConfig.for_model(str(config.pop("model_type")), **config))
        longest = int(str(config["max_position_embeddings"]))
        windows = [window for layer in cache.layers if (window := getattr(layer, "sliding_window", None)) is not None]
        states = sum("LinearAttention" in type(layer).__name__ for layer in cache.layers)
        expected[model.name] = (sum(window < longest for window in windows), states)
        facts = find_facts(model.name)
        groups = memory_groups(facts.layers, NumberType.BF16, facts.numbers)
        short = sum(one.num_layers for one in groups if one.kind in (GroupKind.WINDOW, GroupKind.CHUNKED))
        found[model.name] = (short, sum(one.num_layers for one in groups if one.is_state))
    assert found == expected
