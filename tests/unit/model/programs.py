"""Programs for the tests of this room: real models by their published sizes, and small ones that use every operation.

Owns configurations and builders only; what is expected of them stands in the tests.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from plait.core.ids import GroupId
from plait.core.step import ChunkShape, StepShape
from plait.model.builder import ProgramBuilder
from plait.model.config import ModelConfig
from plait.model.llama import llama_program
from plait.model.ops import Activation, Op, PoolKind, ScanKind, Space, ValueId
from plait.model.program import CacheGroup, GroupKind, Program, WeightRole
from plait.model.rope import Llama3Scaling, RopeSpec
from plait.model.visibility import ALL, CAUSAL, Visibility

AnyOp = TypeVar("AnyOp", bound=Op)

SMOLLM2 = ModelConfig(
    family="llama",
    num_layers=30,
    hidden=576,
    ffn_hidden=1536,
    num_heads=9,
    num_kv_heads=3,
    head_dim=64,
    vocab_size=49152,
    max_positions=8192,
    norm_eps=9.999999747378752e-06,
    rope=RopeSpec(100_000.0, 64, 8192),
    activation=Activation.SILU,
    layer_visibility=(CAUSAL,) * 30,
    tied_embeddings=True,
)

LLAMA_8B = ModelConfig(
    family="llama",
    num_layers=32,
    hidden=4096,
    ffn_hidden=14336,
    num_heads=32,
    num_kv_heads=8,
    head_dim=128,
    vocab_size=128_256,
    max_positions=131_072,
    norm_eps=9.999999747378752e-06,
    rope=RopeSpec(500_000.0, 128, 131_072, Llama3Scaling(8.0, 1.0, 4.0, 8192)),
    activation=Activation.SILU,
    layer_visibility=(CAUSAL,) * 32,
    tied_embeddings=False,
)


def tiny(*layers: Visibility, tied: bool = True) -> ModelConfig:
    """Two heads of 4 columns over one KV head; one layer for each pattern."""
    patterns = layers or (CAUSAL, CAUSAL)
    return replace(
        SMOLLM2,
        num_layers=len(patterns),
        hidden=8,
        ffn_hidden=12,
        num_heads=2,
        num_kv_heads=1,
        head_dim=4,
        vocab_size=32,
        max_positions=64,
        rope=RopeSpec(10_000.0, 4, 64),
        layer_visibility=patterns,
        tied_embeddings=tied,
    )


def tiny_program(*layers: Visibility, tied: bool = True) -> Program:
    return llama_program(tiny(*layers, tied=tied))


def step(*chunks: tuple[int, int] | tuple[int, int, int]) -> StepShape:
    """Chunks as (start, num_tokens) with one output, or (start, num_tokens, num_outputs)."""
    return StepShape(tuple(ChunkShape(c[0], c[1], c[2] if len(c) > 2 else 1) for c in chunks))


def one_span(build: Callable[[ProgramBuilder], object]) -> Program:
    b = ProgramBuilder("test")
    b.span("all", "all")
    build(b)
    return b.finish()


def first_of(program: Program, kind: type[AnyOp]) -> AnyOp:
    """The first op of a kind."""
    return next(op for op in program.ops if isinstance(op, kind))


def mamba_span(b: ProgramBuilder, layer: str, group: GroupId, slot: int, x: ValueId) -> ValueId:
    """A Mamba-2 layer of 2 heads of 3 columns over a state of 4: projection, convolution, scan, gate."""
    mixed = b.linear(x, f"{layer}.in", 6 + 6 + 4 + 4 + 2)
    gate = b.view(mixed, 0, 6, "gate")
    wide = b.conv(b.view(mixed, 6, 14, "conv in"), f"{layer}.conv", 4, group, slot, part=0)
    parts = (b.view(wide, 0, 6, "x"), b.view(mixed, 20, 2, "dt"), b.view(wide, 6, 4, "B"), b.view(wide, 10, 4, "C"))
    weights = {f"{layer}.{name}": (2,) for name in ("a_log", "d", "dt_bias")}
    y = b.scan(parts, ScanKind.MAMBA2, weights, (2, 3, 4), group, slot, part=1)
    return b.add(x, b.linear(b.mul(y, b.act(gate, Activation.SILU)), f"{layer}.out", b.width(x)))


def expert_span(b: ProgramBuilder, layer: str, x: ValueId) -> ValueId:
    """Four experts of 6 columns, two for each row."""
    routing = b.route(b.linear(x, f"{layer}.router", 4, role=WeightRole.ROUTER), 2)
    return b.add(x, b.experts(x, routing, f"{layer}.experts", 4, 6, Activation.SILU))


def hybrid_program() -> Program:
    """Two state layers, two expert layers, an image, a tap and a pool: what llama does not use."""
    b = ProgramBuilder("hybrid")
    states = b.group(CacheGroup(GroupId(0), "states", GroupKind.STATE, 2, state_parts=(14 * 3, 2 * 3 * 4)))
    images = b.group(CacheGroup(GroupId(0), "images", GroupKind.EMBEDDING, 1, 1, 8, 0, max_rows=5))
    b.span("embed", "embed")
    x = b.place(b.scale(b.embed("embed", 32, 8), 2.0), images)
    for i in range(2):
        b.span(f"layers.{i}", "layer")
        x = expert_span(b, f"layers.{i}", mamba_span(b, f"layers.{i}", states, i, x))
    b.span("head", "head")
    b.tap(x, "last hidden")
    b.pool(b.select(x), PoolKind.MEAN, normalize=True)
    return b.finish()


def encoder_program() -> Program:
    """One layer over image patches: attention among themselves, then keys and values kept for cross attention."""
    b = ProgramBuilder("encoder")
    cross = b.group(CacheGroup(GroupId(0), "cross", GroupKind.CROSS, 1, 1, 4, 4, max_rows=6))
    x = b.input(Space.ENCODER, 8, "patches")
    b.span("layers.0", "layer")
    q, k, v = (b.linear(x, name, 8) for name in "qkv")
    y = b.add(x, b.attend_values(q, k, v, 2, 2, ALL))
    b.cache_write(b.linear(y, "cross_k", 4), b.linear(y, "cross_v", 4), cross, 0)
    return b.finish()


def cross_program() -> Program:
    """One layer whose queries look at what `encoder_program` kept."""
    b = ProgramBuilder("cross")
    cross = b.group(CacheGroup(GroupId(0), "cross", GroupKind.CROSS, 1, 1, 4, 4, max_rows=6))
    b.span("all", "all")
    q = b.embed("embed", 32, 8)
    b.sample(b.linear(b.select(b.attend(q, cross, 0, 2, visibility=ALL)), "head", 32))
    return b.finish()
