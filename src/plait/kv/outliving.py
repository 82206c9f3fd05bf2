"""Outliving: which pieces behind a sequence's window nobody is likely to hit, and which somebody is.

Owns the choice. What it does to such a piece is the index's business. Of a window, only what stands before the end of a
hit is ever read again, and hits end where prompts part or end; what lies between is the first to go. What stands before
the end of a trunk in use is the last: the next one that begins so looks at it, and without it hits nothing.
Invariant: what has been hit once is never outlived, and nothing is kept for a trunk that nobody uses.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from plait.kv.keeps import Keeps
from plait.kv.nodes import Node, Piece
from plait.kv.tables import SeqTable


class Index(Protocol):
    def trunk(self, node_id: int | None) -> Node | None: ...
    def keep(self, piece: Piece, trunk: Node) -> None: ...
    def outlive(self, piece: Piece, at_s: float) -> None: ...


def keep(index: Index, keeps: Keeps, table: SeqTable, pieces: Sequence[Piece]) -> None:
    """`pieces` have just left the window of a sequence. Those in the window at the end of the trunk that it began with
    are kept while anybody uses it.
    """
    trunk = index.trunk(table.branch)
    if trunk is None:
        return
    dead = keeps.dead(trunk.length)
    for piece in pieces:
        if piece.node.length <= trunk.length and piece.node.length // len(piece.node.tokens) - 1 not in dead:
            index.keep(piece, trunk)


def outlive(
    index: Index, keeps: Keeps, table: SeqTable, group: int, pieces: Sequence[Piece], behind: int, at_s: float
) -> None:
    """`pieces` of `group` have just left the window of a sequence; those that left it `behind` tokens ago are outlived,
    unless the sequence's prompt ends there, or parts from another.
    """
    left = [*table.left.get(group, ()), *pieces]
    gone = keeps.dead(max(0, table.num_committed - behind)).stop
    ends = [(keeps.dead(max(0, end - behind)).stop, end) for end in (table.num_matched, table.num_prompt)]
    table.left[group] = []
    for piece in left:
        end = piece.node.length
        place = end // len(piece.node.tokens) - 1
        if place >= gone:
            table.left[group].append(piece)
        elif not any(first <= place and end <= last for first, last in ends):
            index.outlive(piece, at_s)
