"""ModelConfig: the architecture facts of one model, whatever file they came from.

Owns the canonical names, their limits, and the two readers: GGUF metadata and Hugging Face's config.json. Families read
nothing else. What a reader cannot express is refused by name, never dropped.
Invariant: a ModelConfig that was built is consistent; a family can write its program without a further check.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Collection, Mapping, Sequence, Sized
from dataclasses import dataclass

from plait.core.errors import ModelError
from plait.model.facts import Facts
from plait.model.ops import Activation
from plait.model.rope import FactorScaling, LinearScaling, Llama3Scaling, RopeScaling, RopeSpec
from plait.model.visibility import CAUSAL, Visibility

MAX_LAYERS = 10_000
MAX_WIDTH = 1 << 20
MAX_VOCAB = 1 << 24
MAX_POSITIONS = 1 << 24
MAX_THETA = 1e12
MIN_EPS = 1e-30
MAX_SCALING = 1e6

GGUF_ARCHITECTURES = ("llama",)
HF_MODEL_TYPES = {"llama": "LlamaForCausalLM"}
"""model_type -> the class of `architectures` whose weights we can read."""

HF_ACTIVATIONS = {
    "silu": Activation.SILU,
    "swish": Activation.SILU,
    "gelu": Activation.GELU,
    "gelu_pytorch_tanh": Activation.GELU_TANH,
    "relu2": Activation.RELU2,
}


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """What a family needs to write its program. Sizes in numbers, positions in tokens."""

    family: str
    num_layers: int
    hidden: int
    ffn_hidden: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    """Tokens; the rows of the token tables behind them are `padding_rows`."""
    max_positions: int
    """Longest sequence the model was made for; rope tables end there."""
    norm_eps: float
    rope: RopeSpec
    activation: Activation
    layer_visibility: tuple[Visibility, ...]
    """What each layer sees: one entry per layer."""
    tied_embeddings: bool
    """The head's matrix is the embedding table."""
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    padding_rows: int = 0
    """Rows that make the token tables a rounder size. No token names them."""

    @property
    def table_rows(self) -> int:
        """Rows of the embedding table and of the head."""
        return self.vocab_size + self.padding_rows

    def __post_init__(self) -> None:
        fault = self._fault()
        if fault:
            raise ModelError(f"model of architecture {self.family}: {fault}; the file is damaged or not supported")

    def _fault(self) -> str | None:
        if self.num_heads % self.num_kv_heads:
            return f"{self.num_heads} attention heads do not share {self.num_kv_heads} KV heads evenly"
        if self.rope.rotary_dim % 2 or self.rope.rotary_dim > self.head_dim:
            return (
                f"rotary dimension {self.rope.rotary_dim} must be even and at most the head dimension {self.head_dim}"
            )
        if len(self.layer_visibility) != self.num_layers:
            return f"{len(self.layer_visibility)} attention patterns for {self.num_layers} layers"
        scaling = self.rope.scaling
        if isinstance(scaling, FactorScaling) and len(scaling.factors) != self.rope.rotary_dim // 2:
            return f"{len(scaling.factors)} rope factors for {self.rope.rotary_dim // 2} frequencies"
        return None


def config_from_gguf(
    metadata: Mapping[str, object],
    tensor_names: Collection[str],
    rope_factors: Mapping[str, Sequence[float]] | None = None,
) -> ModelConfig:
    """Read GGUF metadata. `rope_factors` is the content of tensors that list rope factors, by name, if there are any."""
    facts = Facts("GGUF metadata", metadata)
    arch = facts.word("general.architecture", GGUF_ARCHITECTURES, "architecture")
    facts.refuse(f"{arch}.expert_count", (0,), "mixture-of-experts models of this architecture are not supported")
    facts.refuse(f"{arch}.attention.sliding_window", (0,), "sliding windows are not supported in this architecture")
    num_layers = facts.integer(f"{arch}.block_count", 1, MAX_LAYERS)
    hidden = facts.integer(f"{arch}.embedding_length", 1, MAX_WIDTH)
    num_heads = facts.integer(f"{arch}.attention.head_count", 1, hidden)
    default_dim = _default_head_dim(facts, hidden, num_heads, f"{arch}.attention.key_length")
    head_dim = facts.integer(f"{arch}.attention.key_length", 1, MAX_WIDTH, default_dim)
    facts.refuse(f"{arch}.attention.value_length", (head_dim,), f"values must be as long as keys ({head_dim})")
    max_positions = facts.integer(f"{arch}.context_length", 1, MAX_POSITIONS)
    vocab_size, padding_rows = _gguf_vocabulary(facts, f"{arch}.vocab_size")
    return ModelConfig(
        family=arch,
        num_layers=num_layers,
        hidden=hidden,
        ffn_hidden=facts.integer(f"{arch}.feed_forward_length", 1, MAX_WIDTH),
        num_heads=num_heads,
        num_kv_heads=facts.integer(f"{arch}.attention.head_count_kv", 1, num_heads, num_heads),
        head_dim=head_dim,
        vocab_size=vocab_size,
        max_positions=max_positions,
        norm_eps=_float32(facts.number(f"{arch}.attention.layer_norm_rms_epsilon", MIN_EPS, 1.0)),
        rope=RopeSpec(
            facts.number(f"{arch}.rope.freq_base", 1.0, MAX_THETA, 10_000.0),
            facts.integer(f"{arch}.rope.dimension_count", 2, MAX_WIDTH, head_dim),
            max_positions,
            _gguf_scaling(
                facts, arch, "rope_freqs.weight" in tensor_names, (rope_factors or {}).get("rope_freqs.weight")
            ),
        ),
        activation=Activation.SILU,
        layer_visibility=(CAUSAL,) * num_layers,
        tied_embeddings="output.weight" not in tensor_names,
        qkv_bias="blk.0.attn_q.bias" in tensor_names,
        out_bias="blk.0.attn_output.bias" in tensor_names,
        mlp_bias="blk.0.ffn_gate.bias" in tensor_names,
        padding_rows=padding_rows,
    )


def config_from_hf(config: Mapping[str, object]) -> ModelConfig:
    """Read Hugging Face's config.json. A missing key has the default that `transformers` gives it.

    It says how many rows the token tables have, not how many tokens there are: here every row counts as a token.
    """
    facts = Facts("config.json", config)
    family = facts.word("model_type", HF_MODEL_TYPES, "model_type")
    _check_hf_class(facts, HF_MODEL_TYPES[family])
    num_layers = facts.integer("num_hidden_layers", 1, MAX_LAYERS)
    hidden = facts.integer("hidden_size", 1, MAX_WIDTH)
    num_heads = facts.integer("num_attention_heads", 1, hidden)
    head_dim = facts.integer("head_dim", 1, MAX_WIDTH, _default_head_dim(facts, hidden, num_heads, "head_dim"))
    facts.refuse("partial_rotary_factor", (1, 1.0), "this architecture rotates whole heads")
    max_positions = facts.integer("max_position_embeddings", 1, MAX_POSITIONS)
    attention_bias = facts.flag("attention_bias", False)
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
        norm_eps=_float32(facts.number("rms_norm_eps", MIN_EPS, 1.0, 1e-6)),
        rope=_hf_rope(facts, head_dim, max_positions),
        activation=HF_ACTIVATIONS[facts.word("hidden_act", HF_ACTIVATIONS, "activation", "silu")],
        layer_visibility=(CAUSAL,) * num_layers,
        tied_embeddings=facts.flag("tie_word_embeddings", False),
        qkv_bias=attention_bias,
        out_bias=attention_bias,
        mlp_bias=facts.flag("mlp_bias", False),
    )


def _float32(number: float) -> float:
    """The nearest float32: GGUF stores eps as one, so that both readers give the same config for the same model."""
    return float(struct.unpack("<f", struct.pack("<f", number))[0])


def _default_head_dim(facts: Facts, hidden: int, num_heads: int, key: str) -> int:
    if not facts.has(key) and hidden % num_heads:
        raise facts.error(f"width {hidden} does not divide into {num_heads} heads and {key} is missing")
    return max(1, hidden // num_heads)


def _gguf_vocabulary(facts: Facts, rows_key: str) -> tuple[int, int]:
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


def _gguf_scaling(facts: Facts, arch: str, has_factors: bool, factors: Sequence[float] | None) -> RopeScaling | None:
    if has_factors:
        if factors is None:
            raise facts.error("tensor rope_freqs.weight holds rope factors, but its content was not given")
        if not all(math.isfinite(factor) and factor > 0 for factor in factors):
            raise facts.error("tensor rope_freqs.weight holds a rope factor that is not a positive number")
        return FactorScaling(tuple(float(factor) for factor in factors))
    kind = facts.word(f"{arch}.rope.scaling.type", ("none", "linear"), "rope scaling", "none")
    if kind == "none":
        return None
    return LinearScaling(facts.number(f"{arch}.rope.scaling.factor", 0.0, MAX_SCALING))


def _check_hf_class(facts: Facts, wanted: str) -> None:
    names = facts.values.get("architectures")
    if names is None:
        return
    if not isinstance(names, list) or wanted not in names:
        raise facts.error(f"architectures is {names!r}; supported: {wanted}")


def _hf_rope(facts: Facts, head_dim: int, max_positions: int) -> RopeSpec:
    """Rope facts stand in `rope_parameters` (newer files), or in `rope_theta` and `rope_scaling`."""
    newer = facts.table("rope_parameters")
    rope = newer or facts.table("rope_scaling")
    base = newer if newer is not None and newer.has("rope_theta") else facts
    theta = base.number("rope_theta", 1.0, MAX_THETA, 10_000.0)
    return RopeSpec(theta, head_dim, max_positions, None if rope is None else _hf_scaling(rope))


def _hf_scaling(rope: Facts) -> RopeScaling | None:
    key = "rope_type" if rope.has("rope_type") or not rope.has("type") else "type"
    if rope.values.get(key) == "dynamic":
        raise rope.error(
            f"{key} is 'dynamic': dynamic NTK scaling changes with the current length, so cached keys would be wrong "
            "and answers would depend on the load; remove it or use linear or llama3 scaling"
        )
    kind = rope.word(key, ("default", "linear", "llama3"), "rope scaling", "default")
    if kind == "default":
        return None
    factor = rope.number("factor", 0.0, MAX_SCALING)
    if kind == "linear":
        return LinearScaling(factor)
    low = rope.number("low_freq_factor", 0.0, MAX_SCALING)
    high = rope.number("high_freq_factor", 0.0, MAX_SCALING)
    if high <= low:
        raise rope.error(f"high_freq_factor is {high}; it must be above low_freq_factor, {low}")
    return Llama3Scaling(factor, low, high, rope.integer("original_max_position_embeddings", 1, MAX_POSITIONS))
