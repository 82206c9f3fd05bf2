"""Looking: what a prompt finds in the prefix index.

Owns the walk down the tree and the length that is possible in every group. Changes nothing.
Invariant: a hit names the blocks of all that rows behind it will look at, and its tail can be copied in every group.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from plait.core.ids import BlockId
from plait.kv.hit import NO_BLOCK, Hit, Root, Tail
from plait.kv.index import PrefixIndex
from plait.kv.keeps import Keeps, KeepsRows, longest_possible, windows_of
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
        self._windows = windows_of(keeps)
        self._nothing = Hit(0, tuple(() for _ in keeps), None, None, 0, None)
        self._of_tokens = bool(self._windows) or any(one.keeps_all for one in keeps)

    def no_hit(self, num_asked: int = 0) -> Hit:
        return self._nothing if not num_asked else replace(self._nothing, num_asked=num_asked)

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
        num_matched, branch = node.length, node.id if chain else None
        losses: tuple[int, ...] = ()
        allowed: tuple[int, ...] = ()
        matched = [start, *chain]
        if self._parts:
            losses, allowed = self._cut_to_possible(chain)
            end = chain[-1] if chain else start
            node, pending = end, pending if end is node else None
        hit = Hit(
            num_tokens=node.length,
            blocks=tuple(self._blocks_of_hit(chain)),
            tail=None,
            pending=pending,
            num_asked=len(tokens),
            node=node.id if chain else None,
            num_matched=num_matched,
            losses=losses,
            allowed=allowed,
            branch=branch,
        )
        if not self._tails:
            return hit
        return (
            self._to_checkpoint(hit, matched, tokens, cap) if self._states else self._with_tail(hit, node, tokens, cap)
        )

    def _with_tail(self, hit: Hit, node: Node, tokens: Sequence[int], cap: int) -> Hit:
        """`hit`, which ends with `node`, with what matches of the block behind it."""
        near = self._near(node, tuple(tokens[node.length : min(node.length + self._size, cap)]))
        if near is None:
            return hit
        return replace(hit, tail=Tail(self.blocks_of(near[0]), near[1], near[0].id), shorter=hit)

    def _near(self, node: Node, rest: tuple[int, ...]) -> tuple[Node, int] | None:
        """A block behind `node` that begins as `rest` does, with all that can be copied of it, and how far."""
        near = self._index.closest(node, rest) if rest else None
        return near if near is not None and all(g in near[0].pieces for g in self._windows) else None

    def _to_checkpoint(self, hit: Hit, matched: Sequence[Node], tokens: Sequence[int], cap: int) -> Hit:
        """`hit`, or a longer one that ends inside a block, at a checkpoint. `matched`: the root and the nodes behind it
        that match, those too that are no end of a hit.
        """
        for place in range(len(matched) - 1, hit.num_tokens // self._size - 1, -1):
            node = matched[place]
            if not node.inner or not self._can_end(matched[1:], place):
                continue
            rest = tuple(tokens[node.length : min(node.length + self._size - 1, cap)])
            near = self._near(node, rest) if self._of_tokens else None
            for count in range(near[1] if near is not None else 0 if self._of_tokens else len(rest), 0, -1):
                states = node.inner.get(rest[:count], {})
                if len(states) == len(self._states):
                    blocks = self._blocks_to_copy(near[0] if near is not None else None, states)
                    tail = Tail(blocks, count, near[0].id if near is not None else None, tokens=rest[:count])
                    return self._longer(hit, matched[1 : place + 1], tail)
        return hit

    def _can_end(self, chain: Sequence[Node], num_blocks: int) -> bool:
        """Whether windows can take up so many nodes of a prompt, and more of its tokens."""
        of_windows = (self._keeps[g].possible([g in node.pieces for node in chain]) for g in self._windows)
        return all(any(num_blocks in lengths for lengths in possible) for possible in of_windows)

    def _longer(self, hit: Hit, chain: Sequence[Node], tail: Tail) -> Hit:
        length = len(chain) * self._size
        return replace(
            hit,
            num_tokens=length,
            blocks=tuple(self._blocks_of_hit(chain, with_states=False)),
            tail=tail,
            node=chain[-1].id if chain else None,
            losses=tuple(max(0, lost - (length - hit.num_tokens)) for lost in hit.losses),
            allowed=tuple(max(length, count) for count in hit.allowed),
            shorter=hit,
        )

    def _blocks_to_copy(self, node: Node | None, states: Mapping[int, Piece]) -> tuple[BlockId, ...]:
        """By group: the block of a node, or a checkpoint."""
        groups = range(len(self._keeps))
        return tuple(states[g].block if g in states else NO_BLOCK if node is None else node.block(g) for g in groups)

    def can_copy(self, source: Node, tail: Tail) -> bool:
        """Whether a node still has all that a tail takes from it, checkpoints apart."""
        return all(source.block(g) == block for g, block in enumerate(tail.blocks) if g not in self._states)

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

    def _blocks_of_hit(self, chain: Sequence[Node], *, with_states: bool = True) -> Iterator[tuple[BlockId, ...]]:
        for g, keeps in enumerate(self._keeps):
            if keeps.keeps_all:
                yield tuple(node.blocks[g] for node in chain)
            elif keeps.is_state:
                yield (chain[-1].block(g),) if chain and with_states else ()
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
        if hit.tail is not None and hit.tail.tokens:
            states = node.inner.get(hit.tail.tokens, {})
            if any(g not in states or states[g].block != hit.tail.blocks[g] for g in self._states):
                return None
            pieces += states.values()
        return pieces
