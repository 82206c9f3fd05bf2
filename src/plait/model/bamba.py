"""The bamba family: layers of Mamba-2 with a few that attend among them, each with a gated MLP.

Owns its readers and its program.
"""

from __future__ import annotations

from dataclasses import replace

from plait.model import hf_reading
from plait.model.blocks import Layer, decoder
from plait.model.facts import Facts
from plait.model.family import Family, HfForm
from plait.model.hf_reading import HF_ACTIVATIONS
from plait.model.limits import MAX_LAYERS, MAX_WIDTH
from plait.model.mamba2 import Mamba2
from plait.model.model_config import ModelConfig
from plait.model.ops import Activation, ValueId
from plait.model.program import Program

MOST_TAPS = 16
ROTATED_PART = 0.5
"""Of a head, whatever the file says: so `transformers` computes it."""


def bamba_program(config: ModelConfig) -> Program:
    def layer(at: Layer, x: ValueId) -> ValueId:
        normed = at.norm(x, "attn_norm")
        x = at.add(x, at.recurrence(normed) if at.is_recurrent else at.attention(normed))
        return at.add(x, at.gated_mlp(at.norm(x, "ffn_norm")))

    return decoder(config, layer)


def from_hf(facts: Facts) -> ModelConfig:
    facts = Facts(facts.source, {**facts.values, "partial_rotary_factor": ROTATED_PART})
    plain = hf_reading.plain_config("bamba", facts, rotates_parts=True)
    if HF_ACTIVATIONS[facts.word("hidden_act", HF_ACTIVATIONS, "activation")] is not Activation.SILU:
        raise facts.error("hidden_act is another than silu; this architecture has no other")
    rotated = facts.integer("attn_rotary_emb", 2, MAX_WIDTH, plain.rope.rotary_dim)
    if rotated != plain.rope.rotary_dim:
        raise facts.error(f"attn_rotary_emb is {rotated}; half of a head of {plain.head_dim} columns is rotated")
    bias = facts.flag("attention_bias", False)
    return replace(
        plain,
        qkv_bias=bias,
        out_bias=bias,
        mlp_bias=facts.flag("mlp_bias", False),
        mamba2=mamba2_of(facts, plain.num_layers, plain.hidden),
    )


def mamba2_of(facts: Facts, num_layers: int, hidden: int) -> Mamba2:
    _refuse_limits(facts)
    inner = facts.integer("mamba_expand", 1, MAX_WIDTH) * hidden
    heads = facts.integer("mamba_n_heads", 1, MAX_WIDTH)
    is_given = facts.values.get("mamba_d_head", "auto") != "auto"
    head_dim = facts.integer("mamba_d_head", 1, MAX_WIDTH) if is_given else inner // heads
    if heads * head_dim != inner:
        raise facts.error(f"mamba_n_heads is {heads}, which does not divide {inner} columns into heads of {head_dim}")
    attends = _attending(facts, num_layers)
    return Mamba2(
        layers=tuple(layer for layer in range(num_layers) if layer not in attends),
        heads=heads,
        head_dim=head_dim,
        state_dim=facts.integer("mamba_d_state", 1, MAX_WIDTH),
        groups=facts.integer("mamba_n_groups", 1, heads),
        conv_width=facts.integer("mamba_d_conv", 2, MOST_TAPS),
        conv_bias=facts.flag("mamba_conv_bias", True),
        projection_bias=facts.flag("mamba_proj_bias", False),
    )


def _attending(facts: Facts, num_layers: int) -> tuple[int, ...]:
    layers = facts.values.get("attn_layer_indices")
    numbers = [] if layers is None else layers
    if not isinstance(numbers, list) or any(isinstance(n, bool) or not isinstance(n, int) for n in numbers):
        raise facts.error("attn_layer_indices is no list of layers")
    outside = [number for number in numbers if not 0 <= number < min(num_layers, MAX_LAYERS)]
    if outside:
        raise facts.error(f"attn_layer_indices names layer {outside[0]}; there are {num_layers}")
    if len(set(numbers)) == num_layers:
        raise facts.error("attn_layer_indices names every layer; this architecture keeps states in some")
    return tuple(numbers)


def _refuse_limits(facts: Facts) -> None:
    """Steps in time are not cut off: no model of this family needs it."""
    limits = facts.values.get("time_step_limit")
    endless = ({"__float__": "Infinity"}, float("inf"))
    if limits is not None and not (
        isinstance(limits, list) and len(limits) == 2 and limits[0] == 0 and limits[1] in endless
    ):
        raise facts.error("time_step_limit bounds steps in time, which is not supported; leave it out")


DEFAULTS = {
    "vocab_size": 128000,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "hidden_act": "silu",
    "max_position_embeddings": 262144,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "attn_layer_indices": None,
    "mamba_n_heads": 128,
    "mamba_n_groups": 1,
    "mamba_d_state": 256,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
    "mamba_conv_bias": True,
    "mamba_proj_bias": False,
    "attention_bias": False,
    "mlp_bias": False,
}

BAMBA = Family("bamba", bamba_program, HfForm("BambaForCausalLM", DEFAULTS, from_hf))
