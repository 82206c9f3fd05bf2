"""Hugging Face names: tensors of a safetensors checkpoint under the names our programs use.

Owns the name map of every family as `transformers` saves it. Rows stand as our operations want them; fused projections
are cut into their parts, without a copy.
Invariant: a table that comes out holds exactly the expected names with exactly the expected shapes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from plait.core.errors import ModelError
from plait.model.config import ModelConfig
from plait.weights.canonical import Named, NameMap, listed, weight_table
from plait.weights.stacked import HF_STACKED, from_gpt_oss, unstacked
from plait.weights.stored import StoredTensor
from plait.weights.table import WeightTable

_HEAD: Final = "lm_head.weight"
_PLAIN: Final = NameMap(
    re.compile(r"model\.layers\.(0|[1-9][0-9]{0,5})\.(.+)"),
    {
        "input_layernorm.weight": ("attn_norm",),
        "self_attn.q_proj.weight": ("q",),
        "self_attn.k_proj.weight": ("k",),
        "self_attn.v_proj.weight": ("v",),
        "self_attn.o_proj.weight": ("o",),
        "self_attn.q_proj.bias": ("q_bias",),
        "self_attn.k_proj.bias": ("k_bias",),
        "self_attn.v_proj.bias": ("v_bias",),
        "self_attn.o_proj.bias": ("o_bias",),
        "post_attention_layernorm.weight": ("ffn_norm",),
        "mlp.gate_proj.weight": ("gate",),
        "mlp.up_proj.weight": ("up",),
        "mlp.down_proj.weight": ("down",),
        "mlp.gate_proj.bias": ("gate_bias",),
        "mlp.up_proj.bias": ("up_bias",),
        "mlp.down_proj.bias": ("down_bias",),
    },
    {
        "model.embed_tokens.weight": "embed",
        "model.norm.weight": "final_norm",
        "model.norm.bias": "final_norm_bias",
        _HEAD: "head",
    },
)
_HEAD_NORMS: Final = {"self_attn.q_norm.weight": ("q_norm",), "self_attn.k_norm.weight": ("k_norm",)}
_POST_NORMS: Final = {
    "post_attention_layernorm.weight": ("attn_post_norm",),
    "post_feedforward_layernorm.weight": ("ffn_post_norm",),
}
_NORMS_ON_BOTH_SIDES: Final = {**_POST_NORMS, "pre_feedforward_layernorm.weight": ("ffn_norm",)}
_FUSED: Final = {"self_attn.qkv_proj.weight": ("q", "k", "v"), "mlp.gate_up_proj.weight": ("gate", "up")}
_BESIDE_IMAGES: Final = ("model.language_model", "language_model.model")
"""Where the text part of a model that also reads images stands, in newer and in older checkpoints."""
_IMAGE_PART: Final = re.compile(r"(model\.)?(vision_tower|multi_modal_projector)\..+")
_STARCODER2: Final = {
    "input_layernorm.bias": ("attn_norm_bias",),
    "post_attention_layernorm.bias": ("ffn_norm_bias",),
    "mlp.c_fc.weight": ("up",),
    "mlp.c_fc.bias": ("up_bias",),
    "mlp.c_proj.weight": ("down",),
    "mlp.c_proj.bias": ("down_bias",),
}


_EXPERTS: Final = {
    **{f"mlp.experts.*.{part}_proj.weight": (part,) for part in ("gate", "up", "down")},
    "mlp.experts.*.gate_up_proj": ("gate", "up"),
    "mlp.experts.*.down_proj": ("down",),
}
"""Each for itself, and stacked."""
_MIXTRAL_EXPERTS: Final = {
    "block_sparse_moe.experts.*.w1.weight": ("gate",),
    "block_sparse_moe.experts.*.w3.weight": ("up",),
    "block_sparse_moe.experts.*.w2.weight": ("down",),
}
_GPT_OSS: Final = {
    "self_attn.sinks": ("sinks",),
    "mlp.router.weight": ("router",),
    "mlp.router.bias": ("router_bias",),
    **{f"mlp.experts.{part}_proj_bias": (f"experts.{part}_bias",) for part in ("gate", "up", "down")},
}


def _gemma3() -> NameMap:
    """Larger Gemmas come with a part that reads images, which is left alone."""
    plain = _PLAIN | {**_NORMS_ON_BOTH_SIDES, **_HEAD_NORMS}
    beside = {
        part + name.removeprefix("model"): ours
        for name, ours in plain.outside.items()
        for part in _BESIDE_IMAGES
        if name != _HEAD
    }
    parts = "|".join(re.escape(part) for part in ("model", *_BESIDE_IMAGES))
    layer_name = re.compile(rf"(?:{parts})\.layers\.(0|[1-9][0-9]{{0,5}})\.(.+)")
    return NameMap(layer_name, plain.layer, {**plain.outside, **beside, "language_model.lm_head.weight": "head"})


HF_NAMES: Final[Mapping[str, NameMap]] = {
    "llama": _PLAIN,
    "mistral": _PLAIN,
    "qwen2": _PLAIN,
    "qwen3": _PLAIN | _HEAD_NORMS,
    "phi3": _PLAIN | _FUSED,
    "gemma": _PLAIN,
    "gemma2": _PLAIN | _NORMS_ON_BOTH_SIDES,
    "gemma3": _gemma3(),
    "olmo2": _PLAIN | {**_POST_NORMS, **_HEAD_NORMS},
    "olmo3": _PLAIN | {**_POST_NORMS, **_HEAD_NORMS},
    "granite": _PLAIN,
    "smollm3": _PLAIN,
    "starcoder2": _PLAIN | _STARCODER2,
    "mixtral": (_PLAIN | {"mlp.gate.weight": ("router",), "block_sparse_moe.gate.weight": ("router",)}).with_experts(
        {**_EXPERTS, **_MIXTRAL_EXPERTS}
    ),
    "qwen3_moe": (_PLAIN | {**_HEAD_NORMS, "mlp.gate.weight": ("router",)}).with_experts(_EXPERTS),
    "gpt_oss": (_PLAIN | _GPT_OSS).with_experts(
        {f"mlp.experts.*.{part}_proj": (part,) for part in ("gate", "up", "down")}
    ),
}
"""By family."""
_ROPE_BUFFER: Final = re.compile(r".+\.rotary_emb\.inv_freq")
"""Old checkpoints keep frequencies beside the weights; they follow from the configuration."""


def load_hf_weights(
    tensors: Mapping[str, StoredTensor],
    expected: Mapping[str, tuple[int, ...]],
    config: ModelConfig,
    source: Path,
    sha256: str | None,
) -> WeightTable:
    """The table of `expected` canonical names and shapes, in that order; every difference is a `ModelError` naming it.

    Left alone are a head that the configuration ties to the embedding table, and what reads images beside a text model.
    """
    return weight_table(list(_named(tensors, config, source)), expected, source, sha256)


def _named(tensors: Mapping[str, StoredTensor], config: ModelConfig, source: Path) -> Iterator[Named]:
    names_of = HF_NAMES[config.family]
    unknown: list[str] = []
    stacks = from_gpt_oss(tensors, source) if config.family == "gpt_oss" else unstacked(tensors, HF_STACKED, source)
    for name, tensor in stacks:
        names = names_of.ours(name)
        is_spare = names == ("head",) and config.tied_embeddings
        if is_spare or _ROPE_BUFFER.fullmatch(name) or (config.family == "gemma3" and _IMAGE_PART.fullmatch(name)):
            continue
        if names:
            yield Named(tensor, names)
        else:
            unknown.append(name)
    if unknown:
        raise ModelError(
            f"{source}: {listed(unknown)} unknown to the {config.family} architecture; use a plain model of this family"
        )
