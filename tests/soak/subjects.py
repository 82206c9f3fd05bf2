"""Subjects: the models that a soak runs. Made-up ones of every shape and weight format, and the default model.

Owns how a shape and its random weights are drawn. Invariant: equal seeds give equal models.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tests.conformance.models import MAX_POSITIONS, VOCAB_SIZE, TinyModel

from plait.model.cache_layout import CacheLayout, plan_layout
from plait.model.cache_type import INT8_TOKENS, CacheType
from plait.model.config import ModelConfig, config_from_gguf
from plait.model.families import build_program
from plait.model.ops import Activation
from plait.model.program import Program, expected_weights
from plait.model.rope import RopeSpec
from plait.model.visibility import CAUSAL, Visibility, chunk, window
from plait.weights.formats import BF16, F16, F32, INT8, Q4_0, Q4_1, Q8_0, Bytes, WeightFormat
from plait.weights.gguf import read_gguf
from plait.weights.names import load_gguf_weights
from plait.weights.table import WeightTable
from plait.weights.tensor import Tensor

MATRIX_FORMATS = (F32, F16, BF16, Q8_0, Q4_0, Q4_1, INT8)
LARGEST_MEMORY = 1 << 40


@dataclass(frozen=True, slots=True, eq=False)
class Subject:
    """`exact` is the same model for the oracle, where the executor computes in float32 and nothing else is rounded."""

    name: str
    program: Program
    weights: WeightTable
    max_positions: int
    cache_type: CacheType
    tokens_per_block: int
    eos_token_ids: tuple[int, ...] = ()
    exact: TinyModel | None = None

    def layout(self, num_tokens: int) -> CacheLayout:
        """Memory for so many tokens in every cache group. A page holds one block of any group."""
        size = self.tokens_per_block
        page = plan_layout(
            self.program, memory_bytes=LARGEST_MEMORY, tokens_per_block=size, cache_type=self.cache_type
        ).page_bytes
        num_pages = -(-num_tokens // size) * len(self.program.cache_groups)
        return plan_layout(
            self.program, memory_bytes=num_pages * page, tokens_per_block=size, cache_type=self.cache_type
        )


def draw_subject(seed: int, *, causal: bool = False) -> Subject:
    """A made-up model. `causal`: every layer sees everything, which is what the engine's memory serves."""
    random = np.random.default_rng(seed)
    config = _draw_config(random, (CAUSAL,) * int(random.integers(1, 4)) if causal else _draw_visibilities(random))
    program = build_program(config)
    matrix_format = MATRIX_FORMATS[int(random.integers(len(MATRIX_FORMATS)))]
    cache_type = list(CacheType)[int(random.integers(len(CacheType)))]
    tensors = {
        name: _tensor(name, spec.shape, matrix_format if len(spec.shape) > 1 else F32, random)
        for name, spec in program.weights.items()
    }
    exact = None
    if matrix_format in (F32, F16, BF16) and cache_type is CacheType.F32 and not config.tied_embeddings:
        exact = TinyModel(config, program, {name: one.dequantize() for name, one in tensors.items()})
    return Subject(
        name=f"{len(config.layer_visibility)} layers of {matrix_format.name}, cache of {cache_type}",
        program=program,
        weights=WeightTable(tensors, Path("made-up"), f"{seed:064x}"),
        max_positions=MAX_POSITIONS,
        cache_type=cache_type,
        tokens_per_block=INT8_TOKENS if cache_type is CacheType.INT8 else int(random.choice([8, 16])),
        eos_token_ids=(3,),
        exact=exact,
    )


def open_subject(path: Path) -> Subject:
    """A model file, with the numbers of the cache that it is served with."""
    file = read_gguf(path)
    config = config_from_gguf(file.metadata, file.tensors.keys())
    program = build_program(config)
    weights = load_gguf_weights(file, expected_weights(program), "0" * 64)
    return Subject(path.stem, program, weights, config.max_positions, cache_type=CacheType.F16, tokens_per_block=16)


def _draw_visibilities(random: np.random.Generator) -> tuple[Visibility, ...]:
    """As many layers of each kind, so that a block of any group takes the bytes of a block of any other."""
    kinds = [CAUSAL, window(int(random.integers(1, 40))), chunk(int(random.integers(2, 40)))]
    chosen = [kinds[at] for at in random.permutation(len(kinds))[: int(random.integers(1, 4))]]
    layers = chosen * int(random.integers(1, 3))
    return tuple(layers[at] for at in random.permutation(len(layers)))


def _draw_config(random: np.random.Generator, visibility: Sequence[Visibility]) -> ModelConfig:
    """Depths of products are multiples of 32, the groups of quantised weights."""
    kv_heads, per_kv_head = int(random.integers(1, 4)), int(random.choice([1, 2, 3, 4]))
    head_dim = int(random.choice([8, 16, 32, 64]))
    while kv_heads * per_kv_head * head_dim % 32:
        per_kv_head *= 2
    return ModelConfig(
        family="llama",
        num_layers=len(visibility),
        hidden=32 * int(random.integers(1, 4)),
        ffn_hidden=32 * int(random.integers(1, 5)),
        num_heads=kv_heads * per_kv_head,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        vocab_size=VOCAB_SIZE,
        max_positions=MAX_POSITIONS,
        norm_eps=1e-5,
        rope=RopeSpec(10_000.0, head_dim, MAX_POSITIONS),
        activation=Activation.SILU,
        layer_visibility=tuple(visibility),
        tied_embeddings=bool(random.random() < 0.3),
        qkv_bias=True,
    )


def _tensor(name: str, shape: tuple[int, ...], stored_as: WeightFormat, random: np.random.Generator) -> Tensor:
    row = math.prod(shape[1:])
    noise = random.standard_normal((shape[0], row))
    if name.endswith("norm"):
        noise = 1.0 + 0.2 * noise
    elif len(shape) == 1:
        noise *= 0.3
    elif name != "embed":
        noise *= (3.0 if name == "head" else 1.5) / math.sqrt(row)
    weights = noise.astype(np.float32)
    if stored_as is INT8:
        # No file has it: it is rounded when it is read.
        return Tensor(name, shape, INT8, weights.view(np.uint8), rounded_from=F32)
    return Tensor(name, shape, stored_as, _encode(weights, stored_as))


def _encode(weights: np.ndarray[tuple[int, int], np.dtype[np.float32]], stored_as: WeightFormat) -> Bytes:
    """Rows of weights as a file of that format holds them, rounded to what it can hold."""
    rows = len(weights)
    if stored_as is F32:
        return weights.view(np.uint8)
    if stored_as is F16:
        return weights.astype("<f2").view(np.uint8)
    if stored_as is BF16:
        return np.ascontiguousarray(weights.view("<u2")[:, 1::2]).view(np.uint8)
    blocks = weights.reshape(-1, stored_as.block_weights)
    low = blocks.min(axis=1, keepdims=True) if stored_as is Q4_1 else np.zeros((len(blocks), 1), np.float32)
    most = {"Q8_0": 127, "Q4_0": 7, "Q4_1": 15}[stored_as.name]
    scale = (np.abs(blocks - low).max(axis=1, keepdims=True) / most).astype("<f2")
    low = low.astype("<f2")
    numbers = np.rint((blocks - low.astype(np.float32)) / np.maximum(scale.astype(np.float32), 1e-6))
    head = [scale.view(np.uint8), *([low.view(np.uint8)] if stored_as is Q4_1 else [])]
    if stored_as is Q8_0:
        body = numbers.clip(-127, 127).astype(np.int8).view(np.uint8)
    else:
        nibbles = (numbers + (8 if stored_as is Q4_0 else 0)).clip(0, 15).astype(np.uint8)
        body = nibbles[:, :16] | nibbles[:, 16:] << 4
    return np.concatenate([*head, body], axis=1).reshape(rows, -1)
