"""Nodes and pieces: the records of the prefix index.

Owns what the index keeps of a published prefix. Knows no pool; `plait.kv.index` changes these records, and only it.
Invariant: a piece is once in its node: in `pieces`, or in `inner` where its checkpoint lies inside a block.

A node has the blocks of the groups that keep every token: all of them, and they are evicted together, because a prefix
without one of them is none. Blocks of other groups (windows, stretches, checkpoints of states) are pieces: each comes
and goes by itself, and a node may be without. A checkpoint behind a few tokens more than a node's prefix, too few for a
node of their own, is an inner piece of that node.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from plait.core.ids import BlockId
from plait.kv.hit import Root

Tokens = tuple[int, ...]
Key = tuple[float, int, int]
"""When something unused goes: the smallest first. Last access, -length of the prefix (or what its kind says), age."""

LEASED_S = 4e9
"""Younger than anything that is not leased, outlived or not (`plait.kv.index.OUTLIVED_S`)."""


@dataclass(slots=True, eq=False)
class Node:
    """`tokens` behind the parent's prefix, and a published block of them in every group that keeps all. A root has no
    parent, no tokens and no blocks.
    """

    id: int
    root: Root
    parent: Node | None
    tokens: Tokens
    blocks: tuple[BlockId, ...]
    """By group; `NO_BLOCK` for groups that have pieces."""
    length: int
    """Tokens of the whole prefix, this node's included."""
    last_access_s: float
    num_refs: int = 0
    children: dict[Tokens, Node] = field(default_factory=dict)
    order: list[Tokens] = field(default_factory=list)
    """Keys of `children`, ascending: the child that shares most with any tokens stands next to where these would be
    inserted.
    """
    pieces: dict[int, Piece] = field(default_factory=dict)
    """By group."""
    inner: dict[Tokens, dict[int, Piece]] = field(default_factory=dict)
    """By the tokens behind the prefix, fewer than a node has, and by group."""
    num_hits: int = 0
    """Sequences that began so, and parted here from others."""
    is_trunk: bool = False
    """So many share it that it will outlive them all."""
    keeps_window: bool = False
    """Some of the pieces before its end are kept for it."""
    num_leases: int = 0
    """Sequences that wait and will begin with its prefix (`plait.kv.leases`)."""
    listed: Key | None = None
    """Of its entry among what may be evicted (`plait.kv.victims`)."""

    @property
    def key(self) -> Key:
        return self.last_access_s + (LEASED_S if self.num_leases else 0.0), -self.length, self.id

    def block(self, group: int) -> BlockId:
        """`NO_BLOCK` where a piece is missing."""
        piece = self.pieces.get(group)
        return self.blocks[group] if piece is None else piece.block

    def all_pieces(self) -> Iterator[Piece]:
        yield from self.pieces.values()
        for of_groups in self.inner.values():
            yield from of_groups.values()


@dataclass(slots=True, eq=False)
class Piece:
    """A node's block in a group that does not keep everything, or a checkpoint of a state behind the node's prefix."""

    id: int
    node: Node
    group: int
    block: BlockId
    priority: int
    last_access_s: float
    inner: Tokens = ()
    """Of an inner piece, the tokens behind the node's prefix."""
    num_refs: int = 0
    was_hit: bool = False
    """Somebody besides who computed it has used it."""
    keepers: dict[int, None] = field(default_factory=dict)
    """Trunks that somebody uses, who himself looks at it no more: node ids. All of them together have a reference of
    their own.
    """
    num_leases: int = 0
    listed: Key | None = None
    """Of its entry among what may be evicted."""

    @property
    def length(self) -> int:
        """Tokens of the whole prefix."""
        return self.node.length + len(self.inner)

    @property
    def key(self) -> Key:
        return self.last_access_s + (LEASED_S if self.num_leases else 0.0), -self.priority, self.id
