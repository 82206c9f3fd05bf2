"""Outliving: which pieces behind a sequence's window nobody is likely to hit.

Owns the choice. What it costs such a piece is the index's business. Of a window, only what stands before the end of a
hit is ever read again, and hits end where prompts part or end; what lies between is the first to go.
Invariant: what has been hit once is never outlived.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from plait.kv.keeps import Keeps
from plait.kv.nodes import Piece
from plait.kv.tables import SeqTable


class Index(Protocol):
    def outlive(self, piece: Piece, at_s: float) -> None: ...


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
