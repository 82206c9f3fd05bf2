"""HF reading: what the config.json of most decoder-only models says, in our names.

Owns the keys that families share, with their limits; a family's own file says what differs and which value a missing
key has. What cannot be expressed is refused by name, never dropped.
Invariant: a missing key has the value that `transformers` gives it; a null is not missing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from plait.model.facts import Facts
from plait.model.hf_rope import rope_of
from plait.model.limits import (
    MAX_LAYERS,
    MAX_POSITIONS,
    MAX_SCALING,
    MAX_VOCAB,
    MAX_WIDTH,
    MIN_EPS,
    MIN_SCALING,
    as_float32,
)
from plait.model.model_config import ModelConfig
from plait.model.ops import Activation
from plait.model.visibility import CAUSAL, Visibility, window

HF_ACTIVATIONS: Final = {
    "silu": Activation.SILU,
    "swish": Activation.SILU,
    "gelu": Activation.GELU,
    "gelu_pytorch_tanh": Activation.GELU_TANH,
    "gelu_new": Activation.GELU_TANH,
    "relu2": Activation.RELU2,
}
_LAYER_TYPES: Final = ("full_attention", "sliding_attention")
_QUANTIZATION_KEYS: Final = ("quantization_config", "compression_config", "quantization")
_READABLE: Final = ("gpt_oss", "quant_method 'mxfp4'")
"""The one family that is published in such numbers."""
_EXPERT_KEYS: Final = ("num_local_experts", "num_experts", "n_routed_experts")


def plain_config(
    family: str,
    facts: Facts,
    *,
    activation_key: str = "hidden_act",
    eps_key: str = "rms_norm_eps",
    rotates_parts: bool = False,
    has_experts: bool = False,
) -> ModelConfig:
    """A model in which every layer sees everything and nothing is scaled, capped or biased. The keys that all families
    share are read; what differs, the family replaces.
    """
    for key in () if has_experts else _EXPERT_KEYS:
        facts.refuse(key, (0, 1), f"{family} has no mixtures of experts; use a dense model of this family")
    num_layers = facts.integer("num_hidden_layers", 1, MAX_LAYERS)
    hidden = facts.integer("hidden_size", 1, MAX_WIDTH)
    num_heads = facts.integer("num_attention_heads", 1, hidden)
    head_dim = facts.integer("head_dim", 1, MAX_WIDTH, default_head_dim(facts, hidden, num_heads, "head_dim"))
    max_positions = facts.integer("max_position_embeddings", 1, MAX_POSITIONS)
    rope = rope_of(facts, head_dim, max_positions)
    if rope.rotary_dim != head_dim and not rotates_parts:
        part = rope.rotary_dim / head_dim
        raise facts.error(f"partial_rotary_factor is {part:g}; this architecture rotates whole heads")
    return ModelConfig(
        family=family,
        num_layers=num_layers,
        hidden=hidden,
        ffn_hidden=facts.integer("intermediate_size", 1, MAX_WIDTH),
        num_heads=num_heads,
        num_kv_heads=facts.integer("num_key_value_heads", 1, num_heads, num_heads),
        head_dim=head_dim,
        vocab_size=facts.integer("vocab_size", 1, MAX_VOCAB),
        max_positions=max_positions,
        norm_eps=as_float32(facts.number(eps_key, MIN_EPS, 1.0)),
        rope=rope,
        activation=HF_ACTIVATIONS[facts.word(activation_key, HF_ACTIVATIONS, "activation")],
        layer_visibility=(CAUSAL,) * num_layers,
        tied_embeddings=facts.flag("tie_word_embeddings", False),
    )


def default_head_dim(facts: Facts, hidden: int, num_heads: int, key: str) -> int:
    if not facts.has(key) and hidden % num_heads:
        raise facts.error(f"width {hidden} does not divide into {num_heads} heads and {key} is missing")
    return max(1, hidden // num_heads)


def positive(facts: Facts, key: str, default: float) -> float:
    return facts.number(key, MIN_SCALING, MAX_SCALING, default)


def softcap(facts: Facts, key: str) -> float | None:
    return facts.number(key, MIN_SCALING, MAX_SCALING) if facts.has(key) else None


def windowed_layers(
    facts: Facts, config: ModelConfig, size: int | None, is_windowed: Callable[[int], bool]
) -> tuple[Visibility, ...]:
    """What each layer sees, by `layer_types` or else by the family's rule; no `size` and no list: everything."""
    types = facts.values.get("layer_types")
    if types is not None:
        if not isinstance(types, list) or len(types) != config.num_layers:
            raise facts.error(f"layer_types does not name {config.num_layers} layers")
        unknown = [kind for kind in types if kind not in _LAYER_TYPES]
        if unknown:
            raise facts.error(f"layer_types names {unknown[0]!r}; supported: {', '.join(_LAYER_TYPES)}")
        if size is None and "sliding_attention" in types:
            raise facts.error(
                "layer_types names 'sliding_attention', but no sliding_window says how far it reaches (or it is "
                "switched off); give its tokens, or write full_attention"
            )
        kinds = list(types)
        return visibilities(config, size, lambda layer: kinds[layer] == "sliding_attention")
    return visibilities(config, size, is_windowed)


def window_size(facts: Facts, key: str = "sliding_window") -> int | None:
    return facts.integer(key, 1, MAX_POSITIONS) if facts.has(key) else None


def visibilities(config: ModelConfig, size: int | None, is_windowed: Callable[[int], bool]) -> tuple[Visibility, ...]:
    """A window that no sequence outgrows is none."""
    if size is None or size >= config.max_positions:
        return config.layer_visibility
    return tuple(window(size) if is_windowed(layer) else CAUSAL for layer in range(config.num_layers))


def refuse_quantization(facts: Facts) -> None:
    """Weights that another program quantised are packed integers with scales beside them, nonsense as plain weights."""
    for key in _QUANTIZATION_KEYS:
        value = facts.values.get(key)
        if not value or (facts.values.get("model_type"), _quantization_method(key, value)) == _READABLE:
            continue
        raise facts.error(
            f"{key} says {_quantization_method(key, value)[:60]}; checkpoints that were quantised by another program "
            "are not supported; use the original in F32, F16 or BF16 (with --quantize), or a GGUF file"
        )


def _quantization_method(key: str, value: object) -> str:
    if key == "quantization":
        return "quant_method 'mlx'"
    facts = value if isinstance(value, Mapping) else {}
    method = facts.get("quant_method") or facts.get("format")
    if method is None and (facts.get("load_in_4bit") or facts.get("load_in_8bit")):
        method = "bitsandbytes"
    return f"quant_method {method!r}" if isinstance(method, str) else "a method without a name"


def check_class(facts: Facts, wanted: str) -> None:
    names = facts.values.get("architectures")
    if names is None:
        return
    if not isinstance(names, list) or wanted not in names:
        raise facts.error(f"architectures is {names!r}; supported: {wanted}")
