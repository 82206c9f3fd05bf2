"""GGUF files of tiny models, as a converter writes them.

Owns the keys and the changes to tensors that converters of each architecture make (rows of q and k for neighbouring
pairs, Gemma's one in norm weights, divisors of Llama 3's frequencies), written anew from what the files mean, so that
the readers are not tested against themselves. Tensors get their names from the `gguf` package.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import gguf
import numpy as np
import numpy.typing as npt
from tests.conformance.families import FamilyCase, FamilyModel

from plait.model.mixture_config import MixtureConfig
from plait.model.visibility import CAUSAL

Floats = npt.NDArray[np.float32]

ARCHITECTURES: Final[Mapping[str, str]] = {
    "mistral": "llama",
    "gemma3_text": "gemma3",
    "olmo3": "olmo2",
    "mixtral": "llama",
} | {
    "qwen3_moe": "qwen3moe",
    "gpt_oss": "gpt-oss",
}
"""Where a file does not say `model_type`."""
NEIGHBOURS: Final = ("llama", "granite", "smollm3")
"""Architectures that rotate neighbouring rows together."""


def gguf_form(case: FamilyCase) -> FamilyCase:
    """The case as far as GGUF can say it: scores are scaled by the width of a head, Qwen has no windows, and
    what routers and gates of experts do follows from the architecture.
    """
    changes: dict[str, object] = {}
    if "query_pre_attn_scalar" in case.config:
        changes["query_pre_attn_scalar"] = case.config["head_dim"]
    if case.model_type in ("qwen2", "qwen3"):
        changes["use_sliding_window"] = False
    if case.model_type == "qwen3_moe":
        changes |= {"norm_topk_prob": True, "mlp_only_layers": []}
    if case.model_type == "gpt_oss":
        changes["swiglu_limit"] = 7.0
    return FamilyCase(case.number, case.name, {**case.config, **changes}, case.longest)


def write_gguf(path: Path, case: FamilyCase, model: FamilyModel) -> None:
    arch = ARCHITECTURES.get(case.model_type, case.model_type)
    writer = gguf.GGUFWriter(path, arch)
    _write_sizes(writer, case, model)
    _write_rope(writer, case, model)
    _write_family(writer, case, model)
    names = gguf.get_tensor_name_map(_architecture(arch), model.config.num_layers)
    if model.config.mixture is not None:
        _write_experts(writer, model, model.config.mixture)
    for name, array in model.tensors.items():
        if ".experts." in name:
            continue
        found = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert found is not None, name
        found += ".weight" if name.endswith("sinks") else ""
        writer.add_tensor(found, _converted(arch, name, array, model))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _write_experts(writer: gguf.GGUFWriter, model: FamilyModel, mixture: MixtureConfig) -> None:
    writer.add_expert_count(mixture.experts)
    writer.add_expert_used_count(mixture.per_token)
    if model.config.family != "mixtral":
        writer.add_expert_feed_forward_length(mixture.ffn_hidden)
    for layer in range(model.config.num_layers):
        for part in ("gate", "up", "down"):
            of_all = [
                model.weights[f"layers.{layer}.experts.{expert}.{part}"].dequantize()
                for expert in range(mixture.experts)
            ]
            writer.add_tensor(f"blk.{layer}.ffn_{part}_exps.weight", np.stack(of_all))
            if mixture.bias:
                bias = model.weights[f"layers.{layer}.experts.{part}_bias"].dequantize()
                writer.add_tensor(f"blk.{layer}.ffn_{part}_exps.bias", bias)


def _architecture(arch: str) -> gguf.MODEL_ARCH:
    return next(known for known, name in gguf.MODEL_ARCH_NAMES.items() if name == arch)


def _converted(arch: str, name: str, array: Floats, model: FamilyModel) -> Floats:
    heads = {"q_proj": model.config.num_heads, "k_proj": model.config.num_kv_heads}
    of = next((count for part, count in heads.items() if f".{part}." in name), None)
    if of is not None and arch in NEIGHBOURS:
        halves = array.reshape(of, 2, -1, *array.shape[1:])
        return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(array.shape)
    if arch.startswith("gemma") and name.endswith("norm.weight"):
        return array + np.float32(1)
    return array


def _write_sizes(writer: gguf.GGUFWriter, case: FamilyCase, model: FamilyModel) -> None:
    config = model.config
    writer.add_block_count(config.num_layers)
    writer.add_context_length(int(str(case.config["max_position_embeddings"])))
    writer.add_embedding_length(config.hidden)
    writer.add_feed_forward_length(config.ffn_hidden)
    writer.add_head_count(config.num_heads)
    writer.add_head_count_kv(config.num_kv_heads)
    writer.add_vocab_size(config.vocab_size)
    if "head_dim" in case.config:
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)
    if case.model_type == "starcoder2":
        writer.add_layer_norm_eps(config.norm_eps)
    else:
        writer.add_layer_norm_rms_eps(config.norm_eps)
    windows = [seen.size for seen in config.layer_visibility]
    if any(windows):
        writer.add_sliding_window(max(windows))
        if CAUSAL in config.layer_visibility and case.model_type != "gemma2":
            writer.add_sliding_window_pattern([size > 0 for size in windows])


def _write_rope(writer: gguf.GGUFWriter, case: FamilyCase, model: FamilyModel) -> None:
    rope = model.config.rope
    writer.add_rope_freq_base(rope.theta)
    writer.add_rope_dimension_count(rope.rotary_dim)
    if case.model_type == "gemma3_text" and model.config.local_rope is not None:
        writer.add_float32("gemma3.rope.freq_base_swa", model.config.local_rope.theta)
    scaling = case.config.get("rope_scaling") or case.config.get("rope_parameters")
    if not isinstance(scaling, Mapping):
        return
    match scaling.get("rope_type", scaling.get("type")):
        case "linear":
            writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
            writer.add_rope_scaling_factor(scaling["factor"])
        case "yarn":
            writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
            writer.add_rope_scaling_factor(scaling["factor"])
            writer.add_rope_scaling_orig_ctx_len(scaling["original_max_position_embeddings"])
            if "attention_factor" in scaling:
                writer.add_rope_scaling_attn_factors(scaling["attention_factor"])
            if "beta_fast" in scaling:
                writer.add_rope_scaling_yarn_beta_fast(scaling["beta_fast"])
        case "llama3":
            writer.add_tensor("rope_freqs.weight", _llama3_divisors(rope.theta, rope.rotary_dim, scaling))
        case "longrope":
            for kind in ("short", "long"):
                writer.add_tensor(f"rope_factors_{kind}.weight", np.asarray(scaling[f"{kind}_factor"], np.float32))
            original = int(str(case.config["original_max_position_embeddings"]))
            writer.add_rope_scaling_orig_ctx_len(original)
            ratio = int(str(case.config["max_position_embeddings"])) / original
            writer.add_rope_scaling_attn_factors(math.sqrt(1 + math.log(ratio) / math.log(original)))


def _llama3_divisors(theta: float, dim: int, scaling: Mapping[str, float]) -> Floats:
    """By how much each frequency is divided: not at all if its wave fits often into the original length."""
    divisors = []
    for pair in range(dim // 2):
        fits = scaling["original_max_position_embeddings"] / (2 * math.pi * theta ** (2 * pair / dim))
        low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
        kept = min(1.0, max(0.0, (fits - low) / (high - low)))
        divisors.append(1.0 / (kept + (1.0 - kept) / scaling["factor"]))
    return np.asarray(divisors, np.float32)


def _write_family(writer: gguf.GGUFWriter, case: FamilyCase, model: FamilyModel) -> None:
    config = model.config
    if case.model_type == "gemma2":
        assert config.attention_softcap is not None
        assert config.logit_softcap is not None
        writer.add_attn_logit_softcapping(config.attention_softcap)
        writer.add_final_logit_softcapping(config.logit_softcap)
    if case.model_type == "granite":
        assert config.attention_scale is not None
        writer.add_attention_scale(config.attention_scale)
        writer.add_embedding_scale(config.embed_scale)
        writer.add_residual_scale(config.residual_scale)
        writer.add_logit_scale(1.0 / config.logit_scale)
