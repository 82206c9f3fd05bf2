"""GGUF names: tensors of a GGUF file under the names our programs use, rows in the order our operations use.

Owns the name map of every architecture and the undoing of llama's q/k row order. Knows formats only through tensors.
Invariant: a table that comes out holds exactly the expected names with exactly the expected shapes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np
import numpy.typing as npt

from plait.core.errors import ModelError
from plait.model.limits import MAX_WIDTH
from plait.weights.canonical import Named, NameMap, listed, weight_table
from plait.weights.gguf import GgufFile
from plait.weights.gguf_header import shown
from plait.weights.stacked import GGUF_STACKED, unstacked
from plait.weights.stored import StoredTensor
from plait.weights.table import WeightTable

_PLAIN: Final = NameMap(
    re.compile(r"blk\.(0|[1-9][0-9]{0,5})\.(.+)"),
    {
        "attn_norm.weight": ("attn_norm",),
        "attn_q.weight": ("q",),
        "attn_k.weight": ("k",),
        "attn_v.weight": ("v",),
        "attn_output.weight": ("o",),
        "attn_q.bias": ("q_bias",),
        "attn_k.bias": ("k_bias",),
        "attn_v.bias": ("v_bias",),
        "attn_output.bias": ("o_bias",),
        "ffn_norm.weight": ("ffn_norm",),
        "ffn_gate.weight": ("gate",),
        "ffn_up.weight": ("up",),
        "ffn_down.weight": ("down",),
        "ffn_gate.bias": ("gate_bias",),
        "ffn_up.bias": ("up_bias",),
        "ffn_down.bias": ("down_bias",),
    },
    {
        "token_embd.weight": "embed",
        "output_norm.weight": "final_norm",
        "output_norm.bias": "final_norm_bias",
        "output.weight": "head",
    },
)
_HEAD_NORMS: Final = {"attn_q_norm.weight": ("q_norm",), "attn_k_norm.weight": ("k_norm",)}
_POST_NORMS: Final = {
    "post_attention_norm.weight": ("attn_post_norm",),
    "post_ffw_norm.weight": ("ffn_post_norm",),
}
_FUSED: Final = {"attn_qkv.weight": ("q", "k", "v"), "ffn_up.weight": ("gate", "up")}
_ROUTER: Final = {"ffn_gate_inp.weight": ("router",)}
_EXPERTS: Final = {
    **{f"ffn_{part}_exps.*.weight": (part,) for part in ("gate", "up", "down")},
    **{f"ffn_{part}.*.weight": (part,) for part in ("gate", "up", "down")},
}
"""Stacked, and as older files have them."""
_GPT_OSS: Final = {
    **_ROUTER,
    "ffn_gate_inp.bias": ("router_bias",),
    "attn_sinks.weight": ("sinks",),
    "post_attention_norm.weight": ("ffn_norm",),
    **{f"ffn_{part}_exps.bias": (f"experts.{part}_bias",) for part in ("gate", "up", "down")},
}
_NORM_BIASES: Final = {"attn_norm.bias": ("attn_norm_bias",), "ffn_norm.bias": ("ffn_norm_bias",)}
GGUF_NAMES: Final[Mapping[str, NameMap]] = {
    "llama": (_PLAIN | _ROUTER).with_experts(_EXPERTS),
    "qwen2": _PLAIN,
    "qwen3": _PLAIN | _HEAD_NORMS,
    "phi3": _PLAIN | _FUSED,
    "gemma": _PLAIN,
    "gemma2": _PLAIN | _POST_NORMS,
    "gemma3": _PLAIN | {**_POST_NORMS, **_HEAD_NORMS},
    "olmo2": _PLAIN | {**_POST_NORMS, **_HEAD_NORMS},
    "granite": _PLAIN,
    "smollm3": _PLAIN,
    "starcoder2": _PLAIN | _NORM_BIASES,
    "qwen3moe": (_PLAIN | {**_HEAD_NORMS, **_ROUTER}).with_experts(_EXPERTS),
    "gpt-oss": (_PLAIN | _GPT_OSS).with_experts(_EXPERTS),
}
"""By architecture."""
INTERLEAVED: Final = frozenset({"llama", "granite", "smollm3"})
"""Architectures whose converters put the rows of q and k so that neighbours are rotated together."""

_ROPE_FACTORS: Final[tuple[str, ...]] = ("rope_freqs.weight", "rope_factors_short.weight", "rope_factors_long.weight")
_QUERY_ROWS: Final = re.compile(r"layers\.\d+\.q(_bias)?")
_KEY_ROWS: Final = re.compile(r"layers\.\d+\.k(_bias)?")


def half_split_order(num_heads: int, num_rows: int, rotary_dim: int | None = None) -> npt.NDArray[np.intp]:
    """Stored row of each of our rows of a q or k projection.

    Rotation pairs rows (j, j + rotary_dim / 2) of a head in our order, and rows (2j, 2j + 1) in such a GGUF file; rows
    behind the first `rotary_dim` of a head are not rotated. None: all of them are.
    """
    stored = np.arange(num_rows, dtype=np.intp).reshape(num_heads, -1)
    rotated = stored[:, :rotary_dim].reshape(num_heads, -1, 2).swapaxes(1, 2).reshape(num_heads, -1)
    return np.concatenate([rotated, stored[:, rotated.shape[1] :]], axis=1).reshape(-1)


def rope_factors(file: GgufFile) -> dict[str, list[float]] | None:
    """What divides each rotary frequency, by the tensor that lists it, for the configuration: `rope_freqs.weight` in
    Llama 3, short and long factors in Phi 3. None where the file has no such tensor.
    """
    found = {name: file.tensors[name] for name in _ROPE_FACTORS if name in file.tensors}
    for name, one in found.items():
        if (count := math.prod(one.shape)) > MAX_WIDTH:
            raise ModelError(
                f"{file.path}: tensor {name} holds {count:,} rope factors; no head has more than {MAX_WIDTH:,}, fetch "
                "or convert the file again"
            )
    factors = {name: [float(factor) for factor in one.format.dequantize(one.raw())] for name, one in found.items()}
    return factors or None


def load_gguf_weights(
    file: GgufFile,
    expected: Mapping[str, tuple[int, ...]],
    sha256: str | None = None,
    *,
    rope_factors_used: bool = False,
) -> WeightTable:
    """The table of `expected` canonical names and shapes, in that order; every difference is a `ModelError` naming it.

    `sha256` is the file's checksum where it is known already (from the catalogue); it is trusted. `rope_factors_used`
    says that the configuration took `rope_factors(file)`; a file that has them is refused otherwise.
    """
    architecture = _architecture(file)
    found = list(_named(file, architecture, rope_factors_used))
    if architecture not in INTERLEAVED:
        return weight_table(found, expected, file.path, sha256)
    heads = _head_counts(file, architecture)

    def row_order(name: str, stored: StoredTensor) -> npt.NDArray[np.intp] | None:
        for rows, num_heads in zip((_QUERY_ROWS, _KEY_ROWS), heads, strict=True):
            if rows.fullmatch(name):
                return _order_of(file, architecture, stored, num_heads)
        return None

    return weight_table(found, expected, file.path, sha256, row_order)


def _architecture(file: GgufFile) -> str:
    architecture = file.metadata.get("general.architecture")
    if not isinstance(architecture, str) or architecture not in GGUF_NAMES:
        held = "no general.architecture" if architecture is None else f"architecture {shown(str(architecture))}"
        raise ModelError(f"{file.path}: {held}; supported are {', '.join(GGUF_NAMES)}")
    num_parts = file.metadata.get("split.count", 1)
    if isinstance(num_parts, int) and num_parts > 1:
        raise ModelError(f"{file.path}: one of {num_parts} parts of a split model; merge the parts into one file first")
    return architecture


def _named(file: GgufFile, architecture: str, rope_factors_used: bool) -> Iterator[Named]:
    unknown: list[str] = []
    for gguf_name, tensor in unstacked(file.tensors, GGUF_STACKED, file.path):
        if gguf_name in _ROPE_FACTORS:
            if rope_factors_used:
                continue
            raise ModelError(
                f"{file.path}: tensor {gguf_name} divides the rotary frequencies (long context) and cannot"
                " be left out, but this model's configuration does not use it; use a model without it"
            )
        names = GGUF_NAMES[architecture].ours(gguf_name)
        if names:
            yield Named(tensor, names)
        else:
            unknown.append(gguf_name)
    if unknown:
        raise ModelError(
            f"{file.path}: {listed(unknown)} unknown to the {architecture} architecture; use a plain model of this"
            " family"
        )


def _head_counts(file: GgufFile, architecture: str) -> tuple[int, int]:
    """Query heads and key heads, from metadata; the second defaults to the first."""
    num_heads = _head_count(file, f"{architecture}.attention.head_count", None)
    return num_heads, _head_count(file, f"{architecture}.attention.head_count_kv", num_heads)


def _head_count(file: GgufFile, key: str, default: int | None) -> int:
    count = file.metadata.get(key, default)
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise ModelError(f"{file.path}: metadata {key} is {shown(str(count))}; it must be one whole number of heads")
    return count


def _order_of(file: GgufFile, architecture: str, found: StoredTensor, num_heads: int) -> npt.NDArray[np.intp]:
    num_rows = found.shape[0]
    if num_rows % (2 * num_heads):
        raise ModelError(
            f"{file.path}: tensor {shown(found.name)} has {num_rows} rows, not pairs for each of {num_heads} heads;"
            " the file's metadata and tensors disagree"
        )
    head_dim = num_rows // num_heads
    key = f"{architecture}.rope.dimension_count"
    rotary = file.metadata.get(key, head_dim)
    if not isinstance(rotary, int) or isinstance(rotary, bool) or rotary % 2 or not 2 <= rotary <= head_dim:
        raise ModelError(
            f"{file.path}: metadata {key} is {shown(str(rotary))}; it must be an even number up to the {head_dim} rows"
            " of a head"
        )
    return half_split_order(num_heads, num_rows, rotary)
