"""Looking: what a prompt finds in the prefix index.

Owns the walk down the tree and the length that is possible in every group. Changes nothing.
Invariant: a hit names the blocks of all that rows behind it will look at, and its tail can be copied in every group.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from plait.core.ids import BlockId
from plait.kv.hit import NO_BLOCK, Hit, Root, Tail
from plait.kv.index import PrefixIndex
from plait.kv.keeps import Keeps, KeepsRows, longest_possible
from plait.kv.nodes import Node, Piece
from plait.kv.planned import PlannedBlocks


class Looking:
    """Lookups in one index. `planned`: blocks that steps in flight will publish. `tails`: whether hits end inside
    blocks.
    """

    def __init__(
        self,
        index: PrefixIndex,
        planned: PlannedBlocks,
        keeps: Sequence[Keeps],
        tokens_per_block: int,
        tails: bool = True,
    ) -> None:
        self._index = index
        self._planned = planned
        self._keeps = tuple(keeps)
        self._size = tokens_per_block
        self._tails = tails
        self._parts = [g for g, one in enumerate(keeps) if not one.keeps_all and not isinstance(one, KeepsRows)]
        self._states = [g for g, one in enumerate(keeps) if one.is_state]

    def no_hit(self, num_asked: int = 0) -> Hit:
        return Hit(0, tuple(() for _ in self._keeps), None, None, num_asked, None)

    def lookup(self, tokens: Sequence[int], root: Root, cap: int) -> Hit:
        """The longest prefix of at most `cap` tokens that every group can take up."""
        start = node = self._index.root(root)
        if start is None or node is None or cap < 1:
            return self.no_hit(len(tokens))
        size = self._size
        chain: list[Node] = []
        pending = None
        while node.length + size <= cap:
            key = tuple(tokens[node.length : node.length + size])
            child = node.children.get(key)
            if child is None:
                pending = self._planned.find(node.id, key)
                break
            node = child
            chain.append(node)
        num_matched = node.length
        losses: tuple[int, ...] = ()
        allowed: tuple[int, ...] = ()
        branch = node.id if chain else None
        if self._parts:
            losses, allowed = self._cut_to_possible(chain)
            end = chain[-1] if chain else start
            node, pending = end, pending if end is node else None
        rest = tuple(tokens[node.length : min(node.length + size, cap)]) if self._tails and not self._states else ()
        near = self._index.closest(node, rest) if rest else None
        if near is not None and len(near[0].pieces) < len(self._parts):
            near = None
        return Hit(
            num_tokens=node.length,
            blocks=tuple(self._blocks_of_hit(chain)),
            tail=Tail(self.blocks_of(near[0]), near[1], near[0].id) if near else None,
            pending=pending,
            num_asked=len(tokens),
            node=node.id if chain else None,
            num_matched=num_matched,
            losses=losses,
            allowed=allowed,
            branch=branch,
        )

    def _cut_to_possible(self, chain: list[Node]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Cut the nodes that match a prompt to the longest prefix that every group can take up. Returns the tokens that
        each group alone loses by it, and those that each alone would allow.
        """
        whole = [range(len(chain) + 1)]
        possible = [self._keeps[g].possible([g in node.pieces for node in chain]) for g in self._parts]
        length = longest_possible([whole, *possible])
        losses = [0] * len(self._keeps)
        allowed = [len(chain) * self._size] * len(self._keeps)
        for place, g in enumerate(self._parts):
            allowed[g] = longest_possible([whole, possible[place]]) * self._size
        if length < len(chain):
            for place, g in enumerate(self._parts):
                others = longest_possible([whole, *possible[:place], *possible[place + 1 :]])
                losses[g] = (others - length) * self._size
            del chain[length:]
        return tuple(losses), tuple(allowed)

    def blocks_of(self, node: Node) -> tuple[BlockId, ...]:
        return tuple(node.block(g) for g in range(len(self._keeps))) if self._parts else node.blocks

    def _blocks_of_hit(self, chain: Sequence[Node]) -> Iterator[tuple[BlockId, ...]]:
        for g, keeps in enumerate(self._keeps):
            if keeps.keeps_all:
                yield tuple(node.blocks[g] for node in chain)
            elif keeps.is_state:
                yield (chain[-1].block(g),) if chain else ()
            elif isinstance(keeps, KeepsRows):
                yield ()
            else:
                dead = keeps.dead(len(chain) * self._size)
                yield tuple(NO_BLOCK if place in dead else node.block(g) for place, node in enumerate(chain))

    def pieces_of(self, hit: Hit, node: Node) -> list[Piece] | None:
        """What a hit takes from groups that do not keep everything; None: some of it is not there any more."""
        pieces: list[Piece] = []
        for g in self._parts:
            at: Node | None = node
            for block in reversed(hit.blocks[g]):
                if at is None:
                    return None
                if block != NO_BLOCK:
                    piece = at.pieces.get(g)
                    if piece is None or piece.block != block:
                        return None
                    pieces.append(piece)
                at = at.parent
        return pieces
