"""Groups as layouts see them: layers that keep the same for every token, in bytes, and the sequences that fill them.

Owns what a group needs for a sequence, whoever lays it out. Knows no layout and no number type.
Invariant: what a group needs never exceeds what a layout keeps for it.
"""

from __future__ import annotations

from dataclasses import dataclass

from plait.model.parts import OF_IMAGES, GroupKind


@dataclass(frozen=True, slots=True)
class StatePart:
    """One tensor of a layer's state."""

    name: str
    num_bytes: int


@dataclass(frozen=True, slots=True)
class MemoryGroup:
    """Layers that keep the same. `token_bytes` and `state_parts` are of one layer."""

    name: str
    kind: GroupKind
    num_layers: int
    token_bytes: int = 0
    """Of one token; 0 for states."""
    window: int = 0
    """Tokens that a WINDOW or CHUNKED group needs at most."""
    state_parts: tuple[StatePart, ...] = ()

    @property
    def is_state(self) -> bool:
        return self.kind is GroupKind.STATE

    @property
    def state_bytes(self) -> int:
        """Of one layer and one sequence."""
        return sum(part.num_bytes for part in self.state_parts)

    @property
    def bytes_per_token(self) -> int:
        """Of all layers; 0 for states."""
        return self.num_layers * self.token_bytes

    def rows(self, size: SequenceSize) -> int:
        """Rows that are ever written for a sequence: its tokens, or those of its images."""
        return size.image_tokens if self.kind in OF_IMAGES else size.tokens

    def needed_tokens(self, size: SequenceSize) -> int:
        """Rows that must be kept. A chunked group is counted at its fullest, on the way to the end of a chunk."""
        rows = self.rows(size)
        return min(rows, self.window) if self.kind in (GroupKind.WINDOW, GroupKind.CHUNKED) else rows

    def needed_bytes(self, size: SequenceSize) -> int:
        if self.is_state:
            return self.num_layers * self.state_bytes if size.tokens else 0
        return self.needed_tokens(size) * self.bytes_per_token


@dataclass(frozen=True, slots=True)
class SequenceSize:
    """How long a sequence is. `image_tokens` are rows that groups of images keep beside the tokens, not among them."""

    tokens: int
    image_tokens: int = 0

    @property
    def total(self) -> int:
        return self.tokens + self.image_tokens


@dataclass(frozen=True, slots=True)
class Load:
    """Sequences that are in memory together, as (how many, how long).

    At its `peak` a window is counted where it touches the most blocks, which depends on where it happens to end.
    """

    sequences: tuple[tuple[int, SequenceSize], ...]
    peak: bool = False

    @property
    def count(self) -> int:
        return sum(count for count, _ in self.sequences)


def one(tokens: int, image_tokens: int = 0, *, peak: bool = False) -> Load:
    """A single sequence."""
    return Load(((1, SequenceSize(tokens, image_tokens)),), peak)
