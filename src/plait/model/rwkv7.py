"""The rwkv7 family: RWKV-7, layers that keep a state instead of keys and values. Time mixing is a generalised delta
rule whose decay and rates come from each token; channel mixing is an MLP; both mix each token with the one before it.

Owns its order of operations and its readers. A sequence keeps one block whatever its length: for each layer the last
normed row of either mixing, and the matrices of the heads.
"""

from __future__ import annotations

from dataclasses import replace

from plait.core.ids import GroupId
from plait.model.blocks import norm
from plait.model.builder import ProgramBuilder
from plait.model.facts import Facts
from plait.model.family import Family, HfForm
from plait.model.gguf_reading import GgufModel, vocabulary_rows
from plait.model.limits import MAX_LAYERS, MAX_POSITIONS, MAX_VOCAB, MAX_WIDTH, MIN_EPS, as_float32
from plait.model.model_config import ModelConfig, RwkvRanks
from plait.model.ops import Activation, NormKind, ScanKind, ValueId
from plait.model.program import CacheGroup, GroupKind, Program
from plait.model.rope import RopeSpec
from plait.model.visibility import CAUSAL

MIXES = 6
"""Inputs of time mixing, each with the token before it in another proportion."""
TIME_SHIFT, MATRICES, CHANNEL_SHIFT = range(3)
"""Parts of a layer's state."""
_RANK_STEP = 32


def rwkv7_program(config: ModelConfig) -> Program:
    b = ProgramBuilder(config.family)
    group = b.group(_state_group(config))
    b.span("embed", "embed")
    x = norm(b, config, b.embed("embed", config.table_rows, config.hidden), "embed_norm")
    first_value: ValueId | None = None
    for number in range(config.num_layers):
        # The first layer's value goes on to all others, which mix it into their own.
        b.span(f"layers.{number}", "layer" if number else "first layer")
        layer = _Layer(b, config, number, group)
        x, first_value = layer.time_mixing(x, first_value)
        x = layer.channel_mixing(x)
    b.span("head", "head")
    x = norm(b, config, b.select(x), "final_norm")
    logits = b.linear(x, "embed" if config.tied_embeddings else "head", config.table_rows)
    b.sample(logits, vocab_size=config.vocab_size)
    return b.finish()


def _state_group(config: ModelConfig) -> CacheGroup:
    matrices = config.num_heads * config.head_dim * config.head_dim
    parts = (config.hidden, matrices, config.hidden)
    return CacheGroup(GroupId(0), "rwkv", GroupKind.STATE, config.num_layers, state_parts=parts)


class _Layer:
    """A layer being written."""

    def __init__(self, b: ProgramBuilder, config: ModelConfig, number: int, group: GroupId) -> None:
        assert config.rwkv is not None
        self._b, self._config, self._number, self._group = b, config, number, group
        self._ranks = config.rwkv
        self._name = f"layers.{number}"

    def time_mixing(self, x: ValueId, first_value: ValueId | None) -> tuple[ValueId, ValueId]:
        """The residual behind it, and the first layer's value."""
        b = self._b
        r_in, w_in, k_in, v_in, a_in, g_in = self._mixed(self._norm(x, "attn_norm"), "mix", MIXES, TIME_SHIFT)
        r, k, v = self._linear(r_in, "r"), self._linear(k_in, "k"), self._linear(v_in, "v")
        w = self._low_rank(w_in, "decay", self._ranks.decay, between=Activation.TANH)
        a = b.act(self._low_rank(a_in, "rate", self._ranks.rate), Activation.SIGMOID)
        g = self._low_rank(g_in, "gate", self._ranks.gate, between=Activation.SIGMOID, bias=False)
        if first_value is None:
            first_value = v
        else:
            share = b.act(self._low_rank(v_in, "value", self._ranks.value), Activation.SIGMOID)
            v = b.add(v, b.mul(b.add(first_value, v, factor=-1.0), share))
        y = b.mul(self._read(r, w, k, v, a), g)
        return b.add(x, self._linear(y, "o")), first_value

    def channel_mixing(self, x: ValueId) -> ValueId:
        b, config = self._b, self._config
        (mixed,) = self._mixed(self._norm(x, "ffn_norm"), "ffn_mix", 1, CHANNEL_SHIFT)
        up = b.act(self._linear(mixed, "up", config.ffn_hidden), config.activation)
        return b.add(x, self._linear(up, "down"))

    def _read(self, r: ValueId, w: ValueId, k: ValueId, v: ValueId, a: ValueId) -> ValueId:
        """What r reads from the state behind this token, normed by heads, and the token's own share of its value."""
        b, heads, dim, width = self._b, self._config.num_heads, self._config.head_dim, self._config.hidden
        names = (f"{self._name}.key_scale", f"{self._name}.key_rate", f"{self._name}.bonus")
        scanned = b.scan(
            (r, w, k, v, a),
            ScanKind.RWKV7,
            dict.fromkeys(names, (width,)),
            (heads, dim, dim),
            self._group,
            self._number,
            part=MATRICES,
        )
        read = b.norm(
            b.view(scanned, 0, width, "read"),
            f"{self._name}.read_norm",
            as_float32(dim * self._config.norm_eps),
            kind=NormKind.LAYER,
            bias=f"{self._name}.read_norm_bias",
            parts=heads,
            own_weights=True,
        )
        return b.add(read, b.view(scanned, width, width, "own"))

    def _mixed(self, x: ValueId, name: str, mixes: int, part: int) -> list[ValueId]:
        b, width = self._b, self._config.hidden
        mixed = b.shift(x, f"{self._name}.{name}", mixes, self._group, self._number, part=part)
        return [b.view(mixed, at * width, width, f"{name} {at}") for at in range(mixes)]

    def _low_rank(
        self, x: ValueId, name: str, rank: int, *, between: Activation | None = None, bias: bool = True
    ) -> ValueId:
        down = self._linear(x, f"{name}_down", rank)
        weight = f"{self._name}.{name}_up"
        return self._b.linear(
            down if between is None else self._b.act(down, between),
            weight,
            self._config.hidden,
            bias=f"{weight}_bias" if bias else None,
        )

    def _linear(self, x: ValueId, name: str, width: int | None = None) -> ValueId:
        return self._b.linear(x, f"{self._name}.{name}", self._config.hidden if width is None else width)

    def _norm(self, x: ValueId, name: str) -> ValueId:
        return norm(self._b, self._config, x, f"{self._name}.{name}")


def from_hf(facts: Facts) -> ModelConfig:
    """As flash-linear-attention writes RWKV-7."""
    facts.refuse("attn", (), "layers of attention among those of RWKV are not supported; use a model without them")
    facts.refuse("norm_first", (True,), "a model without a norm of its embeddings is not supported")
    facts.refuse("norm_bias", (True,), "norms without a bias are not supported")
    facts.word("hidden_act", ("sqrelu",), "activation")
    num_layers = facts.integer("num_hidden_layers", 1, MAX_LAYERS)
    hidden = facts.integer("hidden_size", 1, MAX_WIDTH)
    head_dim = _head_dim(facts, hidden)
    _check_values(facts, hidden)
    root = hidden**0.5
    wide = head_dim / 64
    ffn = -(-int(hidden * facts.number("hidden_ratio", 0.0, 64.0, 4.0)) // _RANK_STEP) * _RANK_STEP
    return _config(
        facts,
        num_layers,
        hidden,
        head_dim,
        ffn_hidden=facts.integer("intermediate_size", 1, MAX_WIDTH, ffn),
        vocab_size=facts.integer("vocab_size", 1, MAX_VOCAB),
        max_positions=facts.integer("max_position_embeddings", 1, MAX_POSITIONS),
        norm_eps=facts.number("norm_eps", MIN_EPS, 1.0),
        ranks=RwkvRanks(
            decay=facts.integer("decay_low_rank_dim", 1, MAX_WIDTH, _rank(2.5 * root * wide)),
            rate=facts.integer("a_low_rank_dim", 1, MAX_WIDTH, _rank(2.5 * root * wide)),
            value=facts.integer("v_low_rank_dim", 1, MAX_WIDTH, _rank(1.7 * root * wide)),
            gate=facts.integer("gate_low_rank_dim", 1, MAX_WIDTH, _rank(5 * root)),
        ),
        tied=facts.flag("tie_word_embeddings", False),
    )


def _rank(size: float) -> int:
    """What a missing rank is: the nearest multiple, at least one."""
    return max(_RANK_STEP, round(size / _RANK_STEP) * _RANK_STEP)


def _head_dim(facts: Facts, hidden: int) -> int:
    if facts.has("head_dim") or not facts.has("num_heads"):
        return facts.integer("head_dim", 1, hidden, 64)
    heads = facts.integer("num_heads", 1, hidden)
    if hidden % heads:
        raise facts.error(f"hidden_size is {hidden}, which does not divide into num_heads {heads}")
    return hidden // heads


def _check_values(facts: Facts, hidden: int) -> None:
    """Values may be wider than keys in the format; in no published model they are."""
    widths = facts.values.get("value_dim")
    listed = widths if isinstance(widths, list) else [widths]
    if any(width not in (None, hidden) for width in listed):
        raise facts.error(f"value_dim is not hidden_size, {hidden}, in every layer; such a model is not supported")


def from_gguf(model: GgufModel) -> ModelConfig:
    """As llama.cpp's converter writes it."""
    hidden = model.integer("embedding_length", 1, MAX_WIDTH)
    vocab_size, padding_rows = vocabulary_rows(model.facts, model.key("vocab_size"))
    config = _config(
        model.facts,
        model.integer("block_count", 1, MAX_LAYERS),
        hidden,
        model.integer("wkv.head_size", 1, hidden),
        ffn_hidden=model.integer("feed_forward_length", 1, MAX_WIDTH),
        vocab_size=vocab_size,
        max_positions=model.integer("context_length", 1, MAX_POSITIONS),
        norm_eps=model.number("attention.layer_norm_epsilon", MIN_EPS, 1.0),
        ranks=RwkvRanks(
            decay=model.integer("attention.decay_lora_rank", 1, MAX_WIDTH),
            rate=model.integer("attention.iclr_lora_rank", 1, MAX_WIDTH),
            value=model.integer("attention.value_residual_mix_lora_rank", 1, MAX_WIDTH),
            gate=model.integer("attention.gate_lora_rank", 1, MAX_WIDTH),
        ),
        tied="output.weight" not in model.tensor_names,
    )
    return replace(config, padding_rows=padding_rows)


def _config(
    facts: Facts,
    num_layers: int,
    hidden: int,
    head_dim: int,
    *,
    ffn_hidden: int,
    vocab_size: int,
    max_positions: int,
    norm_eps: float,
    ranks: RwkvRanks,
    tied: bool,
) -> ModelConfig:
    if hidden % head_dim:
        raise facts.error(f"width {hidden} does not divide into heads of {head_dim}")
    return ModelConfig(
        family="rwkv7",
        num_layers=num_layers,
        hidden=hidden,
        ffn_hidden=ffn_hidden,
        num_heads=hidden // head_dim,
        num_kv_heads=hidden // head_dim,
        head_dim=head_dim,
        vocab_size=vocab_size,
        max_positions=max_positions,
        norm_eps=as_float32(norm_eps),
        rope=RopeSpec(10_000.0, 2, max_positions),
        activation=Activation.RELU2,
        layer_visibility=(CAUSAL,) * num_layers,
        tied_embeddings=tied,
        unrotated_layers=tuple(range(num_layers)),
        norm_kind=NormKind.LAYER,
        rwkv=ranks,
    )


DEFAULTS = {
    "vocab_size": 32000,
    "hidden_size": 2048,
    "num_hidden_layers": 24,
    "hidden_act": "sqrelu",
    "max_position_embeddings": 2048,
    "norm_eps": 1e-5,
    "tie_word_embeddings": False,
}

RWKV7 = Family("rwkv7", rwkv7_program, HfForm("RWKV7ForCausalLM", DEFAULTS, from_hf), from_gguf)
