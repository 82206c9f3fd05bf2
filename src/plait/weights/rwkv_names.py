"""RWKV names: tensors of an RWKV-7 checkpoint under the names our programs use.

Owns the name maps of flash-linear-attention's checkpoints and of GGUF files, and the joining of what the former keep
apart: the six proportions in which a layer's inputs are mixed are one weight here. Vectors come without the dimensions
of one that files give them.
Invariant: only such vectors are copied; matrices stay in the mapped file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np

from plait.core.errors import ModelError
from plait.weights.canonical import NameMap
from plait.weights.stored import StoredTensor

RWKV7_NAMES: Final = NameMap(
    re.compile(r"model\.layers\.(0|[1-9][0-9]{0,5})\.(.+)"),
    {
        "attn_norm.weight": ("attn_norm",),
        "attn_norm.bias": ("attn_norm_bias",),
        "ffn_norm.weight": ("ffn_norm",),
        "ffn_norm.bias": ("ffn_norm_bias",),
        "attn.x_x": ("mix",),
        "attn.r_proj.weight": ("r",),
        "attn.k_proj.weight": ("k",),
        "attn.v_proj.weight": ("v",),
        "attn.o_proj.weight": ("o",),
        "attn.w_lora.lora.0.weight": ("decay_down",),
        "attn.w_lora.lora.2.weight": ("decay_up",),
        "attn.w_lora.lora.2.bias": ("decay_up_bias",),
        "attn.a_lora.lora.0.weight": ("rate_down",),
        "attn.a_lora.lora.2.weight": ("rate_up",),
        "attn.a_lora.lora.2.bias": ("rate_up_bias",),
        "attn.v_lora.lora.0.weight": ("value_down",),
        "attn.v_lora.lora.2.weight": ("value_up",),
        "attn.v_lora.lora.2.bias": ("value_up_bias",),
        "attn.g_lora.lora.0.weight": ("gate_down",),
        "attn.g_lora.lora.2.weight": ("gate_up",),
        "attn.k_k": ("key_scale",),
        "attn.k_a": ("key_rate",),
        "attn.r_k": ("bonus",),
        "attn.g_norm.weight": ("read_norm",),
        "attn.g_norm.bias": ("read_norm_bias",),
        "ffn.x_k": ("ffn_mix",),
        "ffn.key.weight": ("up",),
        "ffn.value.weight": ("down",),
    },
    {
        "model.embeddings.weight": "embed",
        "model.layers.0.pre_norm.weight": "embed_norm",
        "model.layers.0.pre_norm.bias": "embed_norm_bias",
        "model.norm.weight": "final_norm",
        "model.norm.bias": "final_norm_bias",
        "lm_head.weight": "head",
    },
)
RWKV7_GGUF_NAMES: Final = NameMap(
    re.compile(r"blk\.(0|[1-9][0-9]{0,5})\.(.+)"),
    {
        "attn_norm.weight": ("attn_norm",),
        "attn_norm.bias": ("attn_norm_bias",),
        "attn_norm_2.weight": ("ffn_norm",),
        "attn_norm_2.bias": ("ffn_norm_bias",),
        "time_mix_lerp_fused.weight": ("mix",),
        "time_mix_receptance.weight": ("r",),
        "time_mix_key.weight": ("k",),
        "time_mix_value.weight": ("v",),
        "time_mix_output.weight": ("o",),
        "time_mix_w1.weight": ("decay_down",),
        "time_mix_w2.weight": ("decay_up",),
        "time_mix_w0.weight": ("decay_up_bias",),
        "time_mix_a1.weight": ("rate_down",),
        "time_mix_a2.weight": ("rate_up",),
        "time_mix_a0.weight": ("rate_up_bias",),
        "time_mix_v1.weight": ("value_down",),
        "time_mix_v2.weight": ("value_up",),
        "time_mix_v0.weight": ("value_up_bias",),
        "time_mix_g1.weight": ("gate_down",),
        "time_mix_g2.weight": ("gate_up",),
        "time_mix_k_k.weight": ("key_scale",),
        "time_mix_k_a.weight": ("key_rate",),
        "time_mix_r_k.weight": ("bonus",),
        "time_mix_ln.weight": ("read_norm",),
        "time_mix_ln.bias": ("read_norm_bias",),
        "channel_mix_lerp_k.weight": ("ffn_mix",),
        "channel_mix_key.weight": ("up",),
        "channel_mix_value.weight": ("down",),
    },
    {
        "token_embd.weight": "embed",
        "token_embd_norm.weight": "embed_norm",
        "token_embd_norm.bias": "embed_norm_bias",
        "output_norm.weight": "final_norm",
        "output_norm.bias": "final_norm_bias",
        "output.weight": "head",
    },
)
_SPARE: Final = re.compile(r"blk\.0\.time_mix_v[012]\.weight")
"""The converter fills the first layer's place, which has no such gate, with copies of others."""
_GGUF_FLAT: Final = re.compile(r"blk\.[0-9]+\.time_mix_([wav]0|k_k|k_a|r_k)\.weight")
_GGUF_ROWS: Final = re.compile(r"blk\.[0-9]+\.(time_mix_lerp_fused|channel_mix_lerp_k)\.weight")
_MIX: Final = re.compile(r"(model\.layers\.[0-9]+\.attn\.x_)([rwkvag])")
_MIXES: Final = "rwkvag"
_FLAT: Final = re.compile(r"model\.layers\.[0-9]+\.attn\.(k_k|k_a|r_k)")
_ONE_ROW: Final = re.compile(r"model\.layers\.[0-9]+\.ffn\.x_k")


def rwkv7_tensors(tensors: Mapping[str, StoredTensor], source: Path) -> Iterator[StoredTensor]:
    """The tensors with the six mixes of a layer as one, as older checkpoints have them, and vectors in our shapes."""
    for name, tensor in tensors.items():
        mix = _MIX.fullmatch(name)
        if mix is None:
            yield _shaped(name, tensor)
        elif mix[2] == _MIXES[0]:
            yield _joined(mix[1], tensors, source)
        elif f"{mix[1]}{_MIXES[0]}" not in tensors:
            raise ModelError(
                f"{source}: tensor {name!r} is there and {mix[1]}{_MIXES[0]} is not; the file does not hold the whole"
                " model, fetch it again"
            )


def rwkv7_gguf_tensors(tensors: Mapping[str, StoredTensor]) -> Iterator[StoredTensor]:
    """The tensors in our shapes, without those that stand for nothing."""
    for name, tensor in tensors.items():
        if _SPARE.fullmatch(name):
            continue
        rows = _GGUF_ROWS.fullmatch(name)
        if _GGUF_FLAT.fullmatch(name):
            yield replace(tensor, shape=(_count(tensor),))
        elif rows and _count(tensor) % len(_MIXES) == 0 and rows[1] == "time_mix_lerp_fused":
            yield replace(tensor, shape=(len(_MIXES), _count(tensor) // len(_MIXES)))
        elif rows:
            yield replace(tensor, shape=(1, _count(tensor)))
        else:
            yield tensor


def _joined(prefix: str, tensors: Mapping[str, StoredTensor], source: Path) -> StoredTensor:
    parts = [tensors.get(prefix + letter) for letter in _MIXES]
    found = [part for part in parts if part is not None]
    first = found[0]
    if len(found) < len(parts) or any(one.format is not first.format or _count(one) != _count(first) for one in found):
        raise ModelError(
            f"{source}: tensors {prefix}[{_MIXES}] are not six of one size and number type; fetch the model again"
        )
    mapped = np.concatenate([part.raw() for part in found])
    shape = (len(found), _count(first))
    return StoredTensor(f"{prefix}x", shape, first.format, first.offset, len(mapped), mapped)


def _shaped(name: str, tensor: StoredTensor) -> StoredTensor:
    if _FLAT.fullmatch(name):
        return replace(tensor, shape=(_count(tensor),))
    if _ONE_ROW.fullmatch(name):
        return replace(tensor, shape=(1, _count(tensor)))
    return tensor


def _count(tensor: StoredTensor) -> int:
    return int(np.prod(tensor.shape, dtype=np.int64))
