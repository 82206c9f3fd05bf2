"""Layers: what each layer of a model keeps for a sequence, in numbers, and how equal layers become groups.

Owns the words in which a reader describes an architecture. Knows no file format and no layout.
Invariant: layers that keep the same, in equal shapes, are one group, in the order in which they first appear.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from plait.core.errors import ModelError, UsageError
from plait.kv.layouts.groups import MemoryGroup, StatePart
from plait.model.parts import GroupKind


class NumberType(StrEnum):
    """What a number in a cache or a state is."""

    F32 = "f32"
    F16 = "f16"
    BF16 = "bf16"
    FP8 = "fp8"
    INT8 = "int8"
    """8 bits and one f32 scale for each token and head; widths in whole sixteens."""

    def vector_bytes(self, width: int) -> int:
        """A key or a value of one token and one head."""
        if self is NumberType.INT8:
            return -(-width // 16) * 16 + 4 if width else 0
        return width * self.number_bytes

    @property
    def number_bytes(self) -> int:
        return {NumberType.F32: 4, NumberType.F16: 2, NumberType.BF16: 2}.get(self, 1)


@dataclass(frozen=True, slots=True)
class KeysValues:
    """A layer that keeps rows: keys and values of tokens, or one latent vector for both."""

    kind: GroupKind
    num_heads: int
    head_dim_k: int
    head_dim_v: int
    window: int = 0
    label: str = ""
    """A word for the group's name, where its kind does not say enough."""
    splits: bool = True
    """Whether ranks of a tensor-parallel group share the heads; a latent vector is whole on each."""
    row_bytes: int = 0
    """Bytes of a row, where the numbers are not known one by one."""

    def bytes_of(self, numbers: NumberType, ranks: int) -> int:
        """Of one row on one rank. Fewer heads than ranks are kept several times."""
        if self.row_bytes:
            return self.row_bytes
        heads = self.num_heads
        if self.splits:
            if max(heads, ranks) % min(heads, ranks):
                raise UsageError(
                    f"{heads} KV heads do not divide among {ranks} ranks; choose another --tensor-parallel-size"
                )
            heads = max(1, heads // ranks)
        return heads * (numbers.vector_bytes(self.head_dim_k) + numbers.vector_bytes(self.head_dim_v))


@dataclass(frozen=True, slots=True)
class Part:
    """One tensor of a state. `numbers` None: of the model's own type."""

    name: str
    num_elements: int
    numbers: NumberType | None = None


@dataclass(frozen=True, slots=True)
class State:
    """A layer that keeps one state, however long the sequence is."""

    label: str
    parts: tuple[Part, ...]
    split_by: int = 1
    """Heads or groups that ranks can share."""

    def parts_of(self, model: NumberType, ranks: int) -> tuple[StatePart, ...]:
        if self.split_by % ranks:
            raise UsageError(
                f"a state of {self.split_by} heads or groups ({self.label}) does not divide among {ranks} ranks; "
                "choose another --tensor-parallel-size"
            )
        return tuple(
            StatePart(part.name, part.num_elements // ranks * (part.numbers or model).number_bytes)
            for part in self.parts
            if part.num_elements
        )

    @property
    def num_elements(self) -> int:
        return sum(part.num_elements for part in self.parts)


Layer: TypeAlias = KeysValues | State


def memory_groups(
    layers: Iterable[Layer], cache: NumberType, model: NumberType, ranks: int = 1, prefix: str = ""
) -> list[MemoryGroup]:
    """Equal layers as groups, in bytes on one rank. `prefix` tells the models of one pool apart."""
    # A convolution over one column, for example, has no tail to keep.
    counts = Counter(layer for layer in layers if not isinstance(layer, State) or layer.num_elements)
    if not counts:
        raise ModelError("no layer of the model keeps anything for a sequence; check the configuration")
    names: Counter[str] = Counter()
    groups = []
    for layer, num_layers in counts.items():
        name = prefix + layer_name(layer)
        names[name] += 1
        name += f" {names[name]}" if names[name] > 1 else ""
        if isinstance(layer, State):
            group = MemoryGroup(name, GroupKind.STATE, num_layers, state_parts=layer.parts_of(model, ranks))
        else:
            group = MemoryGroup(name, layer.kind, num_layers, layer.bytes_of(cache, ranks), layer.window)
        groups.append(group)
    return groups


def layer_name(layer: Layer) -> str:
    if isinstance(layer, State):
        return layer.label
    if layer.label:
        return layer.label
    return f"{layer.kind} {layer.window}" if layer.window else str(layer.kind)
