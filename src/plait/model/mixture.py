"""Mixture: the block of a layer whose MLP is a choice of experts, and how configurations say so.

Owns the ops of a router and its experts, and the keys that families with experts share.
Invariant: a layer without experts of its own has the model's gated MLP.
"""

from __future__ import annotations

from plait.model.blocks import Layer
from plait.model.facts import Facts
from plait.model.gguf_reading import GgufModel
from plait.model.limits import MAX_WIDTH
from plait.model.mixture_config import MAX_EXPERTS, MixtureConfig
from plait.model.ops import ValueId
from plait.model.parts import WeightRole


def mixture_or_mlp(layer: Layer, x: ValueId) -> ValueId:
    """What the layer has in the place of its MLP."""
    mixture = layer.config.mixture
    if mixture is None or layer.number in mixture.dense_layers:
        return layer.gated_mlp(x)
    b, router = layer.b, f"{layer.name}.router"
    bias = f"{router}_bias" if mixture.bias else None
    logits = b.linear(x, router, mixture.experts, bias=bias, role=WeightRole.ROUTER)
    routing = b.route(logits, mixture.per_token, normalize=mixture.normalize)
    activation = mixture.clamped or layer.config.activation
    return b.experts(
        x, routing, f"{layer.name}.experts", mixture.experts, mixture.ffn_hidden, activation, bias=mixture.bias
    )


def mixture_from_hf(facts: Facts, ffn_key: str, default_experts: int) -> MixtureConfig:
    """How many experts there are has had two names."""
    older, newer = "num_experts", "num_local_experts"
    return MixtureConfig(
        experts=facts.integer(newer if facts.has(newer) else older, 1, MAX_EXPERTS, default_experts),
        per_token=facts.integer("num_experts_per_tok", 1, MAX_EXPERTS),
        ffn_hidden=facts.integer(ffn_key, 1, MAX_WIDTH),
    )


def mixture_from_gguf(model: GgufModel, ffn_hidden: int) -> MixtureConfig:
    """`ffn_hidden`: of an expert, where the file does not say it apart."""
    harmless = {"expert_shared_count": (0,), "expert_weights_scale": (0.0, 1.0), "expert_group_count": (0, 1)}
    for name, values in harmless.items():
        model.facts.refuse(model.key(name), values, "this kind of a mixture of experts is not supported")
    return MixtureConfig(
        experts=model.integer("expert_count", 1, MAX_EXPERTS),
        per_token=model.integer("expert_used_count", 1, MAX_EXPERTS),
        ffn_hidden=model.integer("expert_feed_forward_length", 1, MAX_WIDTH, ffn_hidden),
    )
