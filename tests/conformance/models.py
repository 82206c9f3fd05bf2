"""Made-up models: whole llama programs, small enough that a dense double-precision forward of them takes milliseconds.

Owns their shapes and their seeded random weights, given to executors as a weight table and to the oracle as arrays.
Invariant: every cache group has as many layers as every other, so that a block of one takes the bytes of a block of
any other, and reuse of memory between groups is tested wherever blocks are reused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from plait.model.cache_layout import CacheLayout, plan_layout
from plait.model.cache_type import CacheType
from plait.model.config import ModelConfig, config_from_hf
from plait.model.families import build_program
from plait.model.ops import Activation
from plait.model.program import Program
from plait.model.rope import RopeSpec
from plait.model.visibility import CAUSAL, Visibility, chunk, window
from plait.weights.formats import F32
from plait.weights.table import WeightTable
from plait.weights.tensor import Tensor

Floats = npt.NDArray[np.float32]

VOCAB_SIZE = 100
MAX_POSITIONS = 1024


@dataclass(frozen=True, slots=True, eq=False)
class TinyModel:
    config: ModelConfig
    program: Program
    arrays: Mapping[str, Floats]
    """Weights by canonical name."""

    def table(self, replaced: Mapping[str, Floats] | None = None) -> WeightTable:
        """The weights as an executor loads them, some of them replaced."""
        arrays = dict(self.arrays) | dict(replaced or {})
        return WeightTable({name: _tensor(name, a) for name, a in arrays.items()}, Path("made-up"), "0" * 64)

    def layout(self, num_pages: int, tokens_per_block: int = 8) -> CacheLayout:
        """Memory of `num_pages` pages, each holding one block of any group."""
        one_page = plan_layout(
            self.program, memory_bytes=1 << 30, tokens_per_block=tokens_per_block, cache_type=CacheType.F32
        ).page_bytes
        return plan_layout(
            self.program, memory_bytes=num_pages * one_page, tokens_per_block=tokens_per_block, cache_type=CacheType.F32
        )


def tiny_model(
    visibility: tuple[Visibility, ...] = (CAUSAL, CAUSAL), seed: int = 1, hidden: int = 32, ffn_hidden: int = 48
) -> TinyModel:
    """Hidden width 32 if nothing else is said, 4 heads on 2 KV heads, biases on q, k and v, an untied head."""
    config = ModelConfig(
        family="llama",
        num_layers=len(visibility),
        hidden=hidden,
        ffn_hidden=ffn_hidden,
        num_heads=4,
        num_kv_heads=2,
        head_dim=8,
        vocab_size=VOCAB_SIZE,
        max_positions=MAX_POSITIONS,
        norm_eps=1e-5,
        rope=RopeSpec(10_000.0, 8, MAX_POSITIONS),
        activation=Activation.SILU,
        layer_visibility=visibility,
        tied_embeddings=False,
        qkv_bias=True,
    )
    program = build_program(config)
    random = np.random.default_rng(seed)
    arrays = {name: _weight(name, spec.shape, random) for name, spec in program.weights.items()}
    return TinyModel(config, program, arrays)


def tiny_rwkv(seed: int = 1) -> TinyModel:
    """RWKV-7 of three layers and two heads of 8: sequences keep a state and no tokens."""
    config = config_from_hf(
        {
            "model_type": "rwkv7",
            "vocab_size": VOCAB_SIZE,
            "hidden_size": 16,
            "num_hidden_layers": 3,
            "head_dim": 8,
            "intermediate_size": 48,
            "max_position_embeddings": MAX_POSITIONS,
            "decay_low_rank_dim": 4,
            "a_low_rank_dim": 3,
            "v_low_rank_dim": 5,
            "gate_low_rank_dim": 6,
        }
    )
    program = build_program(config)
    random = np.random.default_rng(seed)
    return TinyModel(
        config, program, {name: _weight(name, spec.shape, random) for name, spec in program.weights.items()}
    )


def _weight(name: str, shape: tuple[int, ...], random: np.random.Generator) -> Floats:
    noise = random.standard_normal(shape)
    if name.endswith("norm"):
        return (1.0 + 0.2 * noise).astype(np.float32)
    if len(shape) == 1:
        return (0.3 * noise).astype(np.float32)
    # The head is wide, so that the most likely token is usually ahead of the second by much more than rounding.
    spread = 1.0 if name == "embed" else (3.0 if name == "head" else 1.5) / np.sqrt(shape[1])
    return (spread * noise).astype(np.float32)


def _tensor(name: str, array: Floats) -> Tensor:
    stored = np.ascontiguousarray(array, "<f4").reshape(len(array), -1).view(np.uint8)
    return Tensor(name, array.shape, F32, stored)


VISIBILITIES: Mapping[str, tuple[Visibility, ...]] = {
    "causal": (CAUSAL, CAUSAL),
    "window beside causal": (CAUSAL, window(21)),
    "chunked beside window": (chunk(24), window(5)),
}


@cache
def model_named(name: str) -> TinyModel:
    """One of the models that plans are made for; the same object every time."""
    return tiny_model(VISIBILITIES[name], seed=len(name))
