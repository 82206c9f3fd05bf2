"""Names: GGUF tensors under the names our programs use, rows in the order our operations use.

Owns the name map of the llama family and the undoing of its q/k row order. Knows formats only through tensors.
Invariant: a table that comes out holds exactly the expected names with exactly the expected shapes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

import numpy as np
import numpy.typing as npt

from plait.core.errors import ModelError
from plait.weights.gguf import GgufFile
from plait.weights.gguf_header import shown
from plait.weights.stored import StoredTensor
from plait.weights.table import WeightTable
from plait.weights.tensor import Tensor

SUPPORTED_ARCHITECTURES: Final = ("llama",)

_OUTSIDE_LAYERS: Final = {"token_embd.weight": "embed", "output_norm.weight": "final_norm", "output.weight": "head"}
_IN_LAYER: Final = {
    "attn_norm.weight": "attn_norm",
    "attn_q.weight": "q",
    "attn_k.weight": "k",
    "attn_v.weight": "v",
    "attn_output.weight": "o",
    "attn_q.bias": "q_bias",
    "attn_k.bias": "k_bias",
    "attn_v.bias": "v_bias",
    "attn_output.bias": "o_bias",
    "ffn_norm.weight": "ffn_norm",
    "ffn_gate.weight": "gate",
    "ffn_up.weight": "up",
    "ffn_down.weight": "down",
    "ffn_gate.bias": "gate_bias",
    "ffn_up.bias": "up_bias",
    "ffn_down.bias": "down_bias",
}
_ROPE_FACTORS: Final = "rope_freqs.weight"
_LAYER_NAME: Final = re.compile(r"blk\.(0|[1-9][0-9]{0,5})\.(.+)")
_QUERY_ROWS: Final = re.compile(r"layers\.\d+\.q(_bias)?")
_KEY_ROWS: Final = re.compile(r"layers\.\d+\.k(_bias)?")
_MOST_NAMES_SHOWN: Final = 5


def canonical_name(gguf_name: str) -> str | None:
    """Our name for a tensor of a llama-family GGUF file; None for a tensor the family does not have."""
    outside = _OUTSIDE_LAYERS.get(gguf_name)
    if outside is not None:
        return outside
    match = _LAYER_NAME.fullmatch(gguf_name)
    if match is None or match[2] not in _IN_LAYER:
        return None
    return f"layers.{match[1]}.{_IN_LAYER[match[2]]}"


def half_split_order(num_heads: int, num_rows: int) -> npt.NDArray[np.intp]:
    """Stored row of each of our rows of a q or k projection.

    Rotation pairs rows (j, j + head_dim / 2) of a head in our order, and rows (2j, 2j + 1) in a llama GGUF file.
    """
    interleaved = np.arange(num_rows, dtype=np.intp).reshape(num_heads, -1, 2)
    return np.ascontiguousarray(interleaved.swapaxes(1, 2)).reshape(-1)


def rope_factors(file: GgufFile) -> list[float] | None:
    """What divides each rotary frequency (Llama 3 long context), for the configuration. None where it is missing."""
    tensor = file.tensors.get(_ROPE_FACTORS)
    return None if tensor is None else [float(factor) for factor in tensor.format.dequantize(tensor.raw())]


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
    _check_architecture(file)
    found = _by_canonical_name(file, rope_factors_used)
    missing = [name for name in expected if name not in found]
    if missing:
        raise ModelError(
            f"{file.path}: {_listed(missing)} missing; the file does not hold the whole model, fetch it again"
        )
    unexpected = [tensor.name for name, tensor in found.items() if name not in expected]
    if unexpected:
        raise ModelError(
            f"{file.path}: {_listed(unexpected)} not used by this model; its metadata and tensors disagree"
        )
    _check_shapes(file, found, expected)
    heads = _head_counts(file)
    return WeightTable({name: _tensor(file, name, found[name], heads) for name in expected}, file.path, sha256)


def _check_architecture(file: GgufFile) -> None:
    architecture = file.metadata.get("general.architecture")
    if architecture not in SUPPORTED_ARCHITECTURES:
        held = "no general.architecture" if architecture is None else f"architecture {shown(str(architecture))}"
        raise ModelError(f"{file.path}: {held}; supported are {', '.join(SUPPORTED_ARCHITECTURES)}")
    num_parts = file.metadata.get("split.count", 1)
    if isinstance(num_parts, int) and num_parts > 1:
        raise ModelError(f"{file.path}: one of {num_parts} parts of a split model; merge the parts into one file first")


def _by_canonical_name(file: GgufFile, rope_factors_used: bool) -> dict[str, StoredTensor]:
    found: dict[str, StoredTensor] = {}
    unknown: list[str] = []
    for gguf_name, tensor in file.tensors.items():
        if gguf_name == _ROPE_FACTORS:
            if rope_factors_used:
                continue
            raise ModelError(
                f"{file.path}: tensor {_ROPE_FACTORS} divides the rotary frequencies (Llama 3 long context) and cannot"
                " be left out, but this model's configuration does not use it; use a model without it"
            )
        name = canonical_name(gguf_name)
        if name is None:
            unknown.append(gguf_name)
        else:
            found[name] = tensor
    if unknown:
        raise ModelError(
            f"{file.path}: {_listed(unknown)} unknown to the llama architecture; use a plain llama-family model"
        )
    return found


def _listed(names: Iterable[str]) -> str:
    """Names for a message, the first few in full: "tensors 'a', 'b' and 12 more are"."""
    quoted = [shown(name) for name in names]
    first, rest = quoted[:_MOST_NAMES_SHOWN], len(quoted) - _MOST_NAMES_SHOWN
    more = f" and {rest:,} more" if rest > 0 else ""
    return f"tensors {', '.join(first)}{more} are" if len(quoted) > 1 else f"tensor {quoted[0]} is"


def _check_shapes(file: GgufFile, found: Mapping[str, StoredTensor], expected: Mapping[str, tuple[int, ...]]) -> None:
    wrong = [
        f"{shown(found[name].name)} has shape {found[name].shape}, not {tuple(shape)}"
        for name, shape in expected.items()
        if found[name].shape != tuple(shape)
    ]
    if wrong:
        first, rest = wrong[:_MOST_NAMES_SHOWN], len(wrong) - _MOST_NAMES_SHOWN
        more = f" and {rest:,} more differ" if rest > 0 else ""
        raise ModelError(
            f"{file.path}: {', '.join(first)}{more}; the file's metadata and tensors disagree, fetch it again"
        )


def _head_counts(file: GgufFile) -> tuple[int, int]:
    """Query heads and key heads, from metadata; the second defaults to the first."""
    num_heads = _head_count(file, "llama.attention.head_count", None)
    return num_heads, _head_count(file, "llama.attention.head_count_kv", num_heads)


def _head_count(file: GgufFile, key: str, default: int | None) -> int:
    count = file.metadata.get(key, default)
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise ModelError(f"{file.path}: metadata {key} is {shown(str(count))}; it must be one whole number of heads")
    return count


def _tensor(file: GgufFile, name: str, found: StoredTensor, heads: tuple[int, int]) -> Tensor:
    if len(found.shape) == 1 and found.format.block_weights > 1:
        raise ModelError(
            f"{file.path}: vector {shown(found.name)} is in {found.format.name}; vectors must be F32, F16 or BF16"
        )
    order = None
    for rows, num_heads in zip((_QUERY_ROWS, _KEY_ROWS), heads, strict=True):
        if rows.fullmatch(name):
            order = _order_of(file, found, num_heads)
    return Tensor(name, found.shape, found.format, found.raw().reshape(found.shape[0], -1), order)


def _order_of(file: GgufFile, found: StoredTensor, num_heads: int) -> npt.NDArray[np.intp]:
    num_rows = found.shape[0]
    if num_rows % (2 * num_heads):
        raise ModelError(
            f"{file.path}: tensor {shown(found.name)} has {num_rows} rows, not pairs for each of {num_heads} heads;"
            " the file's metadata and tensors disagree"
        )
    return half_split_order(num_heads, num_rows)
