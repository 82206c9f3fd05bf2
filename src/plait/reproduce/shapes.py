"""Shapes: models whose families are not served, as programs to be priced and to hold memory.

Owns how a layer of each kind is written down: enough for its products, its keys or state and its traffic; norms,
rotations and activations, which weigh nothing beside them, are left out. Nothing here could be run.
Invariant: the cache groups are those of the real model, as many layers and numbers in each.

One rank's part of a model on several devices is written as a smaller model: heads, states, hidden layers and vocabulary
divided. What the ranks tell each other is not priced.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from plait.core.ids import GroupId
from plait.model.builder import ProgramBuilder
from plait.model.ops import Activation, ScanKind, ValueId
from plait.model.program import CacheGroup, GroupKind, Program
from plait.model.visibility import ALL, CAUSAL, Visibility, chunk, window


class Mixer(StrEnum):
    """What mixes tokens in a layer."""

    FULL = "full"
    WINDOW = "window"
    CHUNKED = "chunked"
    CROSS = "cross"
    """Attention over the rows of an image."""
    MAMBA = "mamba"
    SAME = "same"
    """Attention that reads what the layer before keeps."""


_KINDS = {Mixer.FULL: GroupKind.FULL, Mixer.WINDOW: GroupKind.WINDOW, Mixer.CHUNKED: GroupKind.CHUNKED}


@dataclass(frozen=True, slots=True)
class StateShape:
    """Mamba's: channels, numbers of state for each, and columns of the convolution."""

    channels: int
    numbers: int
    columns: int
    rank: int


@dataclass(frozen=True, slots=True)
class Shape:
    """`layers` in order. `experts[i]`: experts in layer i; 0: one MLP. All sizes are one rank's."""

    name: str
    layers: tuple[Mixer, ...]
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    size: int = 0
    """Of windows or stretches, tokens."""
    rows: int = 0
    """Of an image, at most."""
    state: StateShape | None = None
    experts: tuple[int, ...] = ()
    top_k: int = 1


def program_of(shape: Shape) -> Program:
    b = ProgramBuilder(shape.name)
    groups = _groups(b, shape)
    b.span("embed", "embed")
    x = b.embed("embed", shape.vocab, shape.hidden)
    used = dict.fromkeys(groups, 0)
    before = Mixer.FULL
    for i, mixer in enumerate(shape.layers):
        experts = shape.experts[i] if shape.experts else 0
        b.span(f"layers.{i}", f"{mixer} {before if mixer is Mixer.SAME else ''} {experts}")
        keeps = before if mixer is Mixer.SAME else mixer
        slot = used[keeps] - (mixer is Mixer.SAME)
        y = _mixed(b, shape, x, i, mixer, keeps, (groups[keeps], slot))
        if mixer is not Mixer.SAME:
            used[keeps] += 1
        x = b.add(x, y)
        x = b.add(x, _experts(b, shape, x, i, experts) if experts else _mlp(b, shape, x, i))
        before = keeps
    b.span("head", "head")
    b.sample(b.linear(b.select(x), "head", shape.vocab))
    return b.finish()


def _groups(b: ProgramBuilder, shape: Shape) -> Mapping[Mixer, GroupId]:
    groups: dict[Mixer, GroupId] = {}
    for mixer in dict.fromkeys(shape.layers):
        count = shape.layers.count(mixer)
        if mixer is Mixer.MAMBA and shape.state is not None:
            of = shape.state
            parts = (of.channels * (of.columns - 1), of.channels * of.numbers)
            groups[mixer] = b.group(CacheGroup(GroupId(0), "mamba", GroupKind.STATE, count, state_parts=parts))
        elif mixer is Mixer.CROSS:
            heads, dim = shape.kv_heads, shape.head_dim
            cross = CacheGroup(GroupId(0), "cross", GroupKind.CROSS, count, heads, dim, dim, max_rows=shape.rows)
            groups[mixer] = b.group(cross)
        elif mixer is not Mixer.SAME:
            size = 0 if mixer is Mixer.FULL else shape.size
            groups[mixer] = b.kv_group(mixer.value, count, shape.kv_heads, shape.head_dim, _KINDS[mixer], size)
    return groups


def _mixed(
    b: ProgramBuilder, shape: Shape, x: ValueId, i: int, mixer: Mixer, keeps: Mixer, place: tuple[GroupId, int]
) -> ValueId:
    if mixer is Mixer.MAMBA:
        return _mamba(b, shape, x, i, place)
    q = b.linear(x, f"{i}.q", shape.heads * shape.head_dim)
    if mixer in _KINDS:
        k = b.linear(x, f"{i}.k", shape.kv_heads * shape.head_dim)
        v = b.linear(x, f"{i}.v", shape.kv_heads * shape.head_dim)
        b.cache_write(k, v, *place)
    y = b.attend(q, *place, shape.heads, visibility=_sight(shape, keeps))
    return b.linear(y, f"{i}.o", shape.hidden)


def _sight(shape: Shape, keeps: Mixer) -> Visibility:
    match keeps:
        case Mixer.WINDOW:
            return window(shape.size)
        case Mixer.CHUNKED:
            return chunk(shape.size)
        case Mixer.CROSS:
            return ALL
        case _:
            return CAUSAL


def _mamba(b: ProgramBuilder, shape: Shape, x: ValueId, i: int, place: tuple[GroupId, int]) -> ValueId:
    of = shape.state
    assert of is not None
    n = of.channels
    both = b.linear(x, f"{i}.in", 2 * n)
    mixed = b.conv(b.view(both, 0, n, "x"), f"{i}.conv", of.columns, *place, activation=Activation.SILU)
    small = b.linear(mixed, f"{i}.x", of.rank + 2 * of.numbers)
    dt = b.linear(b.view(small, 0, of.rank, "dt"), f"{i}.dt", n)
    into, out = (b.view(small, of.rank + part * of.numbers, of.numbers, "bc"[part]) for part in (0, 1))
    weights = {f"{i}.a": (n, of.numbers), f"{i}.d": (n,), f"{i}.dt_bias": (n,)}
    y = b.scan((mixed, dt, into, out), ScanKind.MAMBA1, weights, (n, 1, of.numbers), *place, part=1)
    return b.linear(b.mul(y, b.view(both, n, n, "gate")), f"{i}.out", shape.hidden)


def _mlp(b: ProgramBuilder, shape: Shape, x: ValueId, i: int) -> ValueId:
    gate, up = (b.linear(x, f"{i}.{name}", shape.ffn) for name in ("gate", "up"))
    return b.linear(b.glu(gate, up, Activation.SILU), f"{i}.down", shape.hidden)


def _experts(b: ProgramBuilder, shape: Shape, x: ValueId, i: int, experts: int) -> ValueId:
    routing = b.route(b.linear(x, f"{i}.router", experts), shape.top_k)
    return b.experts(x, routing, f"{i}.experts", experts, shape.ffn, Activation.SILU)
