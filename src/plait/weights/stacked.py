"""Stacked tensors: one tensor for each expert, however a file puts the experts of a layer together.

Owns those layouts: experts one behind another, as GGUF and newer checkpoints have them, and GPT-OSS's, with gate and up
in turns, matrices on their side, and 4-bit codes apart from their scales. Copies nothing but biases: rows are views of
the mapped file, or made as they are read.
Invariant: what comes out has the rows that our products want, and every weight keeps its value.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from plait.core.errors import ModelError
from plait.model.mixture_config import MAX_EXPERTS
from plait.weights.block_bits import FOUR, NIBBLE, Bytes
from plait.weights.formats import BYTE, MXFP4
from plait.weights.gguf_header import shown
from plait.weights.stored import StoredTensor

GGUF_STACKED: Final = re.compile(r"(.+\.ffn_(?:gate|up|down)_exps)(\.weight)")
HF_STACKED: Final = re.compile(r"(.+\.experts)(\.(?:gate_up_proj|down_proj))")
_TURNED: Final = re.compile(r"(.+\.experts)\.(gate_up|down)_proj")
_CODES: Final = re.compile(r"(.+\.experts)\.(gate_up|down)_proj_blocks")
_SCALES: Final = re.compile(r"(.+\.experts\.(?:gate_up|down)_proj)_scales")
_BIAS: Final = re.compile(r"(.+\.experts)\.gate_up_proj_bias")
_PARTS: Final = {"gate_up": ("gate", "up"), "down": ("down",)}
"""Of the rows of a matrix, taken in turns."""
_CODE_BYTES: Final = MXFP4.block_weights // 2


def unstacked(
    tensors: Mapping[str, StoredTensor], stacked: re.Pattern[str], source: Path
) -> Iterator[tuple[str, StoredTensor]]:
    """The same with a tensor for each expert, its number put between the groups of `stacked`."""
    for name, tensor in tensors.items():
        match = stacked.fullmatch(name)
        if match is None:
            yield name, tensor
            continue
        experts = _num_experts(tensor, 3, source)
        for expert in range(experts):
            first, stop = (tensor.num_bytes * at // experts for at in (expert, expert + 1))
            own = f"{match[1]}.{expert}{match[2]}"
            part = tensor.raw()[first:stop]
            yield own, StoredTensor(own, tensor.shape[1:], tensor.format, tensor.offset + first, stop - first, part)


def from_gpt_oss(tensors: Mapping[str, StoredTensor], source: Path) -> Iterator[tuple[str, StoredTensor]]:
    """The same with `NUMBER.gate_proj`, `NUMBER.up_proj` and `NUMBER.down_proj` for each expert, and biases apart."""
    for name, tensor in tensors.items():
        if _SCALES.fullmatch(name):
            if f"{name.removesuffix('_scales')}_blocks" not in tensors:
                raise ModelError(f"{source}: {shown(name)} are the scales of no codes; fetch the model again")
        elif match := _CODES.fullmatch(name):
            scales = tensors.get(f"{name.removesuffix('_blocks')}_scales")
            if scales is None:
                raise ModelError(f"{source}: {shown(name)} has no scales; fetch the model again")
            yield from _of_codes(match[1], _PARTS[match[2]], tensor, scales, source)
        elif match := _TURNED.fullmatch(name):
            yield from _of_turned(match[1], _PARTS[match[2]], tensor, source)
        elif match := _BIAS.fullmatch(name):
            yield from _of_bias(match[1], tensor, source)
        else:
            yield name, tensor


def _of_codes(
    prefix: str, parts: tuple[str, ...], codes: StoredTensor, scales: StoredTensor, source: Path
) -> Iterator[tuple[str, StoredTensor]]:
    """Codes [experts, rows, blocks, 16] and scales [experts, rows, blocks], both bytes."""
    experts = _num_experts(codes, 4, source)
    if (codes.format, scales.format) != (BYTE, BYTE) or codes.shape != (*scales.shape, _CODE_BYTES):
        raise ModelError(
            f"{source}: {shown(codes.name)} has shape {codes.shape} and its scales {scales.shape}; they must be bytes, "
            f"{_CODE_BYTES} of them for a scale"
        )
    rows, blocks = _in_turns(codes, len(parts), source), codes.shape[2]
    all_codes, all_scales = codes.raw().reshape(codes.shape), scales.raw().reshape(scales.shape)
    for expert in range(experts):
        for turn, part in enumerate(parts):
            own_codes = all_codes[expert, turn :: len(parts)]
            own_scales = all_scales[expert, turn :: len(parts)]
            name = f"{prefix}.{expert}.{part}_proj"

            def made(first: int, stop: int, codes: Bytes = own_codes, scales: Bytes = own_scales) -> Bytes:
                return _joined(codes[first:stop], scales[first:stop])

            shape = (rows, blocks * MXFP4.block_weights)
            num_bytes = rows * MXFP4.bytes_of(shape[1])
            yield name, StoredTensor(name, shape, MXFP4, codes.offset, num_bytes, own_codes, made)


def _joined(codes: Bytes, scales: Bytes) -> Bytes:
    """Rows as GGUF stores them: a scale in front of its codes, where nibbles of a byte are sixteen weights apart."""
    rows = len(codes)
    weights = np.stack([codes & NIBBLE, codes >> FOUR], axis=-1).reshape(rows, -1, MXFP4.block_weights)
    packed = weights[:, :, :_CODE_BYTES] | weights[:, :, _CODE_BYTES:] << FOUR
    return np.concatenate([scales[:, :, None], packed], axis=2).reshape(rows, -1)


def _of_turned(
    prefix: str, parts: tuple[str, ...], tensor: StoredTensor, source: Path
) -> Iterator[tuple[str, StoredTensor]]:
    """Floats [experts, depth, columns]: our rows are their columns."""
    experts = _num_experts(tensor, 3, source)
    rows, depth = _in_turns(replace(tensor, shape=(experts, tensor.shape[2])), len(parts), source), tensor.shape[1]
    size = tensor.format.block_bytes
    numbers = tensor.raw().view(f"<u{size}").reshape(tensor.shape)
    for expert in range(experts):
        for turn, part in enumerate(parts):
            own = numbers[expert, :, turn :: len(parts)]
            name = f"{prefix}.{expert}.{part}_proj"

            def made(first: int, stop: int, columns: npt.NDArray[np.unsignedinteger] = own) -> Bytes:
                turned = np.ascontiguousarray(columns[:, first:stop].T)
                return turned.view(np.uint8).reshape(stop - first, -1)

            num_bytes = rows * depth * size
            stored = tensor.raw().reshape(experts, -1)[expert]
            yield name, StoredTensor(name, (rows, depth), tensor.format, tensor.offset, num_bytes, stored, made)


def _of_bias(prefix: str, tensor: StoredTensor, source: Path) -> Iterator[tuple[str, StoredTensor]]:
    experts = _num_experts(tensor, 2, source)
    rows = _in_turns(tensor, 2, source)
    numbers = tensor.raw().reshape(experts, rows, 2, -1)
    for turn, part in enumerate(_PARTS["gate_up"]):
        own = np.ascontiguousarray(numbers[:, :, turn]).reshape(-1)
        name = f"{prefix}.{part}_proj_bias"
        yield name, StoredTensor(name, (experts, rows), tensor.format, tensor.offset, own.nbytes, own)


def _num_experts(tensor: StoredTensor, dimensions: int, source: Path) -> int:
    shape = tensor.shape
    if len(shape) != dimensions or not 1 <= shape[0] <= MAX_EXPERTS or 0 in shape:
        raise ModelError(
            f"{source}: {shown(tensor.name)} has shape {shape}; it must have {dimensions} dimensions, the first of "
            f"them 1 to {MAX_EXPERTS:,} experts"
        )
    return shape[0]


def _in_turns(tensor: StoredTensor, turns: int, source: Path) -> int:
    if tensor.shape[1] % turns:
        raise ModelError(f"{source}: {shown(tensor.name)} has {tensor.shape[1]} rows, not pairs of gate and up")
    return tensor.shape[1] // turns
