"""GGUF reading: what the metadata of most decoder-only models says, in our names.

Owns the keys that architectures share, with their limits and what a missing one means; a family's own file says what
differs. What cannot be expressed is refused by name, never dropped.
Invariant: nothing is read but metadata, names of tensors and the factors of rotary frequencies.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence, Sized
from dataclasses import dataclass
from typing import Final

from plait.model.facts import Facts
from plait.model.hf_reading import default_head_dim, visibilities
from plait.model.hf_rope import yarn_magnitude
from plait.model.limits import (
    MAX_LAYERS,
    MAX_POSITIONS,
    MAX_SCALING,
    MAX_THETA,
    MAX_VOCAB,
    MAX_WIDTH,
    MIN_EPS,
    MIN_SCALING,
    as_float32,
)
from plait.model.model_config import ModelConfig
from plait.model.ops import Activation
from plait.model.rope import FactorScaling, LinearScaling, LongScaling, RopeScaling, RopeSpec, YarnScaling
from plait.model.visibility import CAUSAL, Visibility

FACTORS: Final = "rope_freqs.weight"
SHORT_FACTORS: Final = "rope_factors_short.weight"
LONG_FACTORS: Final = "rope_factors_long.weight"
DEFAULT_THETA: Final = 10_000.0


@dataclass(frozen=True, slots=True)
class GgufModel:
    """What a GGUF file says before its tensors are read. `rope_factors`: by the tensor that lists them."""

    facts: Facts
    arch: str
    tensor_names: Collection[str]
    rope_factors: Mapping[str, Sequence[float]]

    def key(self, name: str) -> str:
        return f"{self.arch}.{name}"

    def has(self, name: str) -> bool:
        return self.facts.has(self.key(name))

    @property
    def has_experts(self) -> bool:
        return self.facts.values.get(self.key("expert_count")) not in (None, 0)

    def integer(self, name: str, low: int, high: int, default: int | None = None) -> int:
        return self.facts.integer(self.key(name), low, high, default)

    def number(self, name: str, above: float, high: float, default: float | None = None) -> float:
        return self.facts.number(self.key(name), above, high, default)

    def scale(self, name: str, default: float) -> float:
        return self.number(name, MIN_SCALING, MAX_SCALING, default)


def plain_config(
    family: str,
    model: GgufModel,
    *,
    eps_key: str = "attention.layer_norm_rms_epsilon",
    activation: Activation = Activation.SILU,
    has_experts: bool = False,
) -> ModelConfig:
    """A model in which every layer sees everything and nothing is scaled or capped. The keys that all architectures
    share are read; what differs, the family replaces.
    """
    facts = model.facts
    if not has_experts:
        facts.refuse(model.key("expert_count"), (0,), f"{family} has no mixtures of experts; use a dense model")
    num_layers = model.integer("block_count", 1, MAX_LAYERS)
    hidden = model.integer("embedding_length", 1, MAX_WIDTH)
    num_heads = model.integer("attention.head_count", 1, hidden)
    key_length = model.key("attention.key_length")
    head_dim = facts.integer(key_length, 1, MAX_WIDTH, default_head_dim(facts, hidden, num_heads, key_length))
    value_length = model.key("attention.value_length")
    facts.refuse(value_length, (head_dim,), f"values must be as long as keys ({head_dim})")
    max_positions = model.integer("context_length", 1, MAX_POSITIONS)
    vocab_size, padding_rows = _vocabulary(facts, model.key("vocab_size"))
    names = model.tensor_names
    return ModelConfig(
        family=family,
        num_layers=num_layers,
        hidden=hidden,
        ffn_hidden=model.integer("feed_forward_length", 1, MAX_WIDTH),
        num_heads=num_heads,
        num_kv_heads=model.integer("attention.head_count_kv", 1, num_heads, num_heads),
        head_dim=head_dim,
        vocab_size=vocab_size,
        max_positions=max_positions,
        norm_eps=as_float32(model.number(eps_key, MIN_EPS, 1.0)),
        rope=_rope_of(model, head_dim, max_positions),
        activation=activation,
        layer_visibility=(CAUSAL,) * num_layers,
        tied_embeddings="output.weight" not in names,
        qkv_bias="blk.0.attn_q.bias" in names,
        out_bias="blk.0.attn_output.bias" in names,
        mlp_bias="blk.0.ffn_up.bias" in names or "blk.0.ffn_gate.bias" in names,
        padding_rows=padding_rows,
    )


def windowed_layers(
    model: GgufModel, config: ModelConfig, is_windowed: Callable[[int], bool]
) -> tuple[Visibility, ...]:
    """What each layer sees. The window is the file's; which layers have it, the file may say, or the family knows."""
    if not model.has("attention.sliding_window") or model.facts.values[model.key("attention.sliding_window")] == 0:
        return config.layer_visibility
    size = model.integer("attention.sliding_window", 1, MAX_POSITIONS)
    key = model.key("attention.sliding_window_pattern")
    pattern = model.facts.values.get(key)
    if pattern is None:
        return visibilities(config, size, is_windowed)
    if isinstance(pattern, Sequence) and not isinstance(pattern, str):
        flags = [bool(flag) for flag in pattern]
        if len(flags) != config.num_layers:
            raise model.facts.error(f"{key} holds {len(flags)} entries for {config.num_layers} layers")
        return visibilities(config, size, lambda layer: flags[layer])
    every = model.integer("attention.sliding_window_pattern", 1, MAX_LAYERS)
    return visibilities(config, size, lambda layer: (layer + 1) % every != 0)


def _rope_of(model: GgufModel, head_dim: int, max_positions: int) -> RopeSpec:
    return RopeSpec(
        model.number("rope.freq_base", 1.0, MAX_THETA, DEFAULT_THETA),
        model.integer("rope.dimension_count", 2, MAX_WIDTH, head_dim),
        max_positions,
        _scaling(model, max_positions),
    )


def _scaling(model: GgufModel, max_positions: int) -> RopeScaling | None:
    if LONG_FACTORS in model.tensor_names or SHORT_FACTORS in model.tensor_names:
        return LongScaling(
            _factors(model, SHORT_FACTORS),
            _factors(model, LONG_FACTORS),
            model.integer("rope.scaling.original_context_length", 1, MAX_POSITIONS, max_positions),
            model.scale("rope.scaling.attn_factor", 1.0),
        )
    if FACTORS in model.tensor_names:
        return FactorScaling(_factors(model, FACTORS))
    kinds = ("none", "linear", "yarn")
    kind = model.facts.word(model.key("rope.scaling.type"), kinds, "rope scaling", "none")
    if kind == "none":
        return None
    factor = model.number("rope.scaling.factor", MIN_SCALING, MAX_SCALING)
    if kind == "linear":
        return LinearScaling(factor)
    return YarnScaling(
        factor,
        model.integer("rope.scaling.original_context_length", 1, MAX_POSITIONS, max_positions),
        model.scale("rope.scaling.attn_factor", yarn_magnitude(factor)),
        model.scale("rope.scaling.yarn_beta_fast", 32.0),
        model.scale("rope.scaling.yarn_beta_slow", 1.0),
    )


def _factors(model: GgufModel, name: str) -> tuple[float, ...]:
    factors = model.rope_factors.get(name)
    if factors is None:
        raise model.facts.error(f"tensor {name} holds rope factors, but its content was not given")
    if not all(MIN_SCALING < factor <= MAX_SCALING for factor in factors):
        raise model.facts.error(f"tensor {name} holds a rope factor that is not a positive number of usual size")
    return tuple(float(factor) for factor in factors)


def _vocabulary(facts: Facts, rows_key: str) -> tuple[int, int]:
    """Tokens, and rows of padding behind them."""
    tokens = facts.values.get("tokenizer.ggml.tokens")
    num_tokens = len(tokens) if isinstance(tokens, Sized) else 0
    rows = facts.integer(rows_key, 1, MAX_VOCAB, num_tokens or None)
    if rows < num_tokens:
        raise facts.error(
            f"{rows_key} is {rows} but tokenizer.ggml.tokens holds {num_tokens} tokens: the embedding table has no row "
            "for the last of them; convert the model again"
        )
    # Without tokens there is nothing to compare with; whoever reads the tokenizer refuses the file.
    return num_tokens or rows, rows - num_tokens if num_tokens else 0
