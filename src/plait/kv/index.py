"""Prefix index: which published blocks hold which tokens.

Owns the nodes, the pieces and their references, and turns their blocks in the pools: SHARED while referenced, else
EVICTABLE. Which of those goes first is decided in `plait.kv.victims`. A hit compares token ids, never hashes alone, so
neither a collision nor another tenant can leak in.
Invariant: a user of a node references every node on the way to the root; so an unreferenced node has only unreferenced
descendants. A piece is referenced only by users of its node.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import count

from plait.core.errors import InvariantError
from plait.core.ids import BlockId
from plait.kv.blocks import BlockPool
from plait.kv.hit import Root
from plait.kv.images import Images
from plait.kv.keeps import Keeps
from plait.kv.nodes import Node, Piece, Tokens
from plait.kv.owners import trunk_of
from plait.kv.rules import ALL_RULES, MemoryRules, any_priority
from plait.kv.victims import Victim, Victims

TRUNK_HITS = 2
"""A prefix that was hit twice is hit again: four times of five, says Jenga (SOSP 2025) of a minute's traffic."""

OUTLIVED_S = 1e9
"""Older than anything that is not outlived, on any clock; small enough for microseconds to count beside it."""


class PrefixIndex:
    """A tree of nodes per root. O(log n) per node or piece referenced, inserted or evicted."""

    def __init__(
        self,
        pools: Sequence[BlockPool],
        keeps: Sequence[Keeps],
        images: Images,
        rules: MemoryRules = ALL_RULES,
        shares_pages: bool = True,
        pool_bytes: int = 0,
    ) -> None:
        """`pool_bytes`: of all groups together."""
        self.num_evictions = 0
        """Nodes and pieces."""
        self.num_evictable = 0
        """Nodes with blocks of their own, and pieces."""
        self._pools = tuple(pools)
        self._keeps = tuple(keeps)
        self._rules = rules
        self._whole = tuple((g, pool) for g, pool in enumerate(pools) if keeps[g].keeps_all)
        self._owners: dict[tuple[int, BlockId], Node] = {}
        self._pieces: dict[tuple[int, BlockId], Piece] = {}
        self._roots: dict[Root, Node] = {}
        self._nodes: dict[int, Node] = {}
        self._keeping: dict[int, Node] = {}
        """Trunks that keep pieces before their ends, those that began first."""
        self._kept_bytes = 0
        self._most_kept_bytes = int(rules.kept_fraction * pool_bytes)
        self.leased_bytes = 0
        """Of nodes and pieces that leases name, used or not."""
        self._node_bytes = sum(pool.layout.block_bytes for _, pool in self._whole)
        self._ids = count(1)
        self._victims = Victims(pools, [g for g, _ in self._whole], self, images, shares_pages)

    @property
    def num_nodes(self) -> int:
        return len(self._nodes)

    @property
    def num_pieces(self) -> int:
        return len(self._pieces)

    @property
    def num_roots(self) -> int:
        return len(self._roots)

    def node(self, node_id: int) -> Node | None:
        """The node if it still exists; ids are never used twice."""
        return self._nodes.get(node_id)

    def root(self, root: Root) -> Node | None:
        return self._roots.get(root)

    def ensure_root(self, root: Root) -> Node:
        found = self._roots.get(root)
        if found is None:
            found = self._roots[root] = Node(next(self._ids), root, None, (), (), 0, 0.0)
        return found

    def owner(self, group: int, block: BlockId) -> Node | None:
        """The node that a published block belongs to."""
        piece = self._pieces.get((group, block))
        return self._owners.get((group, block)) if piece is None else piece.node

    def piece(self, group: int, block: BlockId) -> Piece | None:
        return self._pieces.get((group, block))

    def whole_node(self, group: int, block: BlockId) -> Node | None:
        """The node that a block of a group which keeps everything belongs to."""
        return self._owners.get((group, block))

    def acquire(self, node: Node) -> None:
        """Reference `node` and every node above it."""
        at: Node | None = node
        while at is not None:
            self.extend(at)
            at = at.parent

    def hit(self, node_id: int) -> None:
        """A sequence begins with the tokens of a node, as others did. At the second time it becomes a trunk, with all
        above it: its blocks do not die with the sequence that computed them, so no other may put its own on their
        pages.
        """
        node = self._nodes[node_id]
        node.num_hits += 1
        at: Node | None = node if node.num_hits == TRUNK_HITS else None
        while at is not None and at.parent is not None and not at.is_trunk:
            at.is_trunk = True
            for g, pool in self._whole:
                pool.claim(pool.page_of(at.blocks[g]), trunk_of(node_id))
            at = at.parent

    def extend(self, node: Node) -> None:
        """Reference `node` for a user who references its parent already."""
        if node.num_refs == 0 and node.parent is not None and self._whole:
            self.num_evictable -= 1
            for g, pool in self._whole:
                pool.reference(node.blocks[g])
        node.num_refs += 1

    def release(self, node: Node, at_s: float) -> None:
        """Take one reference back from `node` and every node above it, and stamp them."""
        at: Node | None = node
        while at is not None:
            parent = at.parent
            at.num_refs -= 1
            at.last_access_s = max(at.last_access_s, at_s)
            if at.num_refs == 0:
                if parent is not None and self._whole:
                    self.num_evictable += 1
                    for g, pool in self._whole:
                        pool.unreference(at.blocks[g])
                if at.keeps_window:
                    self._keep_no_more(at)
                self._settle(at)
            at = parent

    def take(self, piece: Piece) -> None:
        """Reference a piece, for a user of its node."""
        if piece.num_refs == 0:
            self.num_evictable -= 1
            self._pools[piece.group].reference(piece.block)
        piece.num_refs += 1

    def give(self, piece: Piece, at_s: float) -> None:
        """Take a reference back from a piece and stamp it."""
        piece.num_refs -= 1
        piece.last_access_s = max(piece.last_access_s, at_s)
        if piece.num_refs == 0:
            self.num_evictable += 1
            self._pools[piece.group].unreference(piece.block)
            self._victims.add_piece(piece)

    def outlive(self, piece: Piece, at_s: float) -> None:
        """Whoever computed it went on. If nobody uses it, and nobody ever hit it, it is older than all else now."""
        if piece.num_refs == 0 and not piece.was_hit and self.piece(piece.group, piece.block) is piece:
            piece.last_access_s = at_s - OUTLIVED_S
            self._victims.renewed(piece)

    def stamp(self, piece: Piece, at_s: float) -> None:
        """Somebody leaves who went on from a piece, or left it behind."""
        piece.last_access_s = max(piece.last_access_s, at_s)
        if not piece.num_refs:
            self._victims.renewed(piece)

    def trunk(self, node_id: int | None) -> Node | None:
        """The node, if it is a trunk that somebody uses."""
        node = None if node_id is None else self._nodes.get(node_id)
        return node if node is not None and node.is_trunk and node.num_refs else None

    def keep(self, piece: Piece, trunk: Node) -> None:
        """Whoever parts at the end of a trunk looks at a piece which those that use the trunk now leave behind. So the
        trunk references it, until nobody uses the trunk, or trunks keep too much and it did so first. Trunks that have
        it in common have one reference, as long as one of them keeps it.
        """
        if trunk.id in piece.keepers or self.piece(piece.group, piece.block) is not piece:
            return
        if not piece.keepers:
            self.take(piece)
            self._kept_bytes += self._piece_bytes(piece)
        piece.keepers[trunk.id] = None
        trunk.keeps_window = True
        self._keeping[trunk.id] = trunk
        while self._kept_bytes > self._most_kept_bytes:
            self.keep_less()

    def keep_less(self) -> bool:
        """The trunk that began first to keep pieces gives them up; False if none keeps any."""
        trunk = next(iter(self._keeping.values()), None)
        if trunk is not None:
            self._keep_no_more(trunk)
        return trunk is not None

    def keep_nothing(self) -> None:
        """Not even for trunks in use."""
        while self.keep_less():
            pass

    def _keep_no_more(self, trunk: Node) -> None:
        """What other trunks keep too stays."""
        trunk.keeps_window = False
        del self._keeping[trunk.id]
        at = trunk
        while at.parent is not None:
            for piece in at.pieces.values():
                if trunk.id in piece.keepers:
                    del piece.keepers[trunk.id]
                    if not piece.keepers:
                        self._kept_bytes -= self._piece_bytes(piece)
                        self.give(piece, piece.last_access_s)
            at = at.parent

    def leave(self, node: Node, at_s: float) -> None:
        """A user of `node` and all above it ends. Without balance, that makes all their pieces as young as its last."""
        at: Node | None = node if not self._rules.balanced else None
        while at is not None:
            for piece in at.all_pieces():
                if not piece.num_refs and piece.last_access_s < at_s:
                    piece.last_access_s = at_s
                    self._victims.renewed(piece)
            at = at.parent
        self.release(node, at_s)

    def branched(self, node_id: int, groups: Sequence[int], at_s: float) -> None:
        """Somebody leaves who had a trunk in common with others. Where they part, the next one looks into the window:
        its blocks are as young as the trunk, though they left this sequence's own window long ago.
        """
        end = self._nodes.get(node_id)
        if end is not None and end.is_trunk:
            self.keep_young(end, {g: self._keeps[g].dead(end.length) for g in groups}, at_s)

    def keep_young(self, end: Node, dead: Mapping[int, range], at_s: float) -> None:
        """Stamp the pieces of a prefix whose places, by group, are not dead."""
        at = end
        while at.parent is not None:
            place = at.parent.length // len(at.tokens)
            for g, places in dead.items():
                piece = at.pieces.get(g)
                if piece is not None and place not in places:
                    self.stamp(piece, at_s)
            at = at.parent

    def unleased_bytes(self, node: Node, pieces: Sequence[Piece]) -> int:
        """Of a prefix and of pieces on its way, those that no lease names."""
        found = sum(self._piece_bytes(one) for one in pieces if not one.num_leases)
        at = node
        while at.parent is not None and not at.num_leases:
            found += self._node_bytes
            at = at.parent
        return found

    def lease(self, node: Node, pieces: Sequence[Piece]) -> None:
        """Somebody will want a prefix, and pieces on its way: they go after all that nobody is known to want."""
        at = node
        while at.parent is not None:
            at.num_leases += 1
            if at.num_leases == 1:
                self.leased_bytes += self._node_bytes
                self._rekeyed(at)
            at = at.parent
        for piece in pieces:
            piece.num_leases += 1
            if piece.num_leases == 1:
                self.leased_bytes += self._piece_bytes(piece)
                self._rekeyed(piece)

    def unlease(self, node: Node, pieces: Sequence[Piece]) -> None:
        """Take a lease back. Of what was evicted meanwhile nothing is left to take back."""
        at = node
        while at.parent is not None:
            if self._nodes.get(at.id) is at:
                at.num_leases -= 1
                if not at.num_leases:
                    self.leased_bytes -= self._node_bytes
                    self._rekeyed(at)
            at = at.parent
        for piece in pieces:
            if self.piece(piece.group, piece.block) is piece:
                piece.num_leases -= 1
                if not piece.num_leases:
                    self.leased_bytes -= self._piece_bytes(piece)
                    self._rekeyed(piece)

    def _rekeyed(self, one: Node | Piece) -> None:
        if one.num_refs:
            return
        if isinstance(one, Piece):
            self._victims.renewed(one)
        elif self._whole:
            self._victims.rekeyed(one)

    def _piece_bytes(self, piece: Piece) -> int:
        return self._pools[piece.group].layout.block_bytes

    def insert(self, parent: Node, tokens: Tokens, blocks: tuple[BlockId, ...], at_s: float) -> Node:
        """Publish private blocks behind `parent`, whom their holder references; the new node starts with the holder's
        reference.
        """
        node = Node(next(self._ids), parent.root, parent, tokens, blocks, parent.length + len(tokens), at_s, num_refs=1)
        for g, pool in self._whole:
            pool.publish(blocks[g])
            self._owners[g, blocks[g]] = node
        self._nodes[node.id] = node
        parent.children[tokens] = node
        insort(parent.order, tokens)
        return node

    def attach(self, node: Node, group: int, block: BlockId, at_s: float, inner: Tokens = ()) -> Piece:
        """Publish a private block as the piece of a node that its holder references and that has none; the piece starts
        with the holder's reference. `inner`: tokens behind the node's prefix behind which a state was copied.
        """
        place = node.inner.setdefault(inner, {}) if inner else node.pieces
        if group in place:
            raise InvariantError(f"index: node {node.id} is given a second block of group {group}")
        number, length = next(self._ids), node.length + len(inner)
        priority = self._keeps[group].priority(length) if self._rules.aligned else any_priority(number, length)
        piece = Piece(number, node, group, block, priority, at_s, inner, num_refs=1)
        self._pools[group].publish(block)
        place[group] = self._pieces[group, block] = piece
        return piece

    def closest(self, node: Node, tokens: Tokens) -> tuple[Node, int] | None:
        """The child that shares the most leading tokens with `tokens`, and how many; None if none shares any."""
        place = bisect_left(node.order, tokens)
        best: tuple[Node, int] | None = None
        for near in node.order[max(place - 1, 0) : place + 1]:
            shared = _num_shared(near, tokens)
            if shared > (best[1] if best else 0):
                best = node.children[near], shared
        return best

    def evict(self, short: Sequence[int] | None = None) -> list[Victim]:
        """Free what goes first of all that helps the groups that are `short` of blocks, or of all there is, and say
        what it was; nothing if there is nothing.
        """
        return self._victims.evict(range(len(self._pools)) if short is None else short)

    def oldest_piece(self, group: int) -> Piece | None:
        """What would go first of a group that does not keep everything; None if all of it is used."""
        return self._victims.oldest_piece(group)

    def remove(self, node: Node) -> None:
        """Evict an unused node of groups that keep all, with its pieces and everything behind it: none of it could be
        hit again.
        """
        below = [node]
        for at in below:
            below.extend(at.children.values())
        for at in reversed(below):
            if at.num_refs or at.parent is None:
                raise InvariantError(f"index: node {at.id} is evicted while it is a root or used")
            for piece in list(at.all_pieces()):
                self.drop(piece)
            self.num_evictions += 1
            self.num_evictable -= 1
            for g, pool in self._whole:
                pool.free(at.blocks[g])
                if at.is_trunk:
                    pool.disown(trunk_of(at.id))
                del self._owners[g, at.blocks[g]]
            self._unlink(at)

    def drop(self, piece: Piece) -> None:
        """Evict an unused piece; its node stays while anything needs it."""
        node = piece.node
        if piece.num_refs:
            raise InvariantError(f"index: block {piece.block} of group {piece.group} is evicted while it is used")
        self.num_evictions += 1
        self.num_evictable -= 1
        self.leased_bytes -= self._piece_bytes(piece) if piece.num_leases else 0
        self._pools[piece.group].free(piece.block)
        place = node.inner[piece.inner] if piece.inner else node.pieces
        del self._pieces[piece.group, piece.block], place[piece.group]
        if piece.inner and not place:
            del node.inner[piece.inner]
        if not self._whole or node.parent is None:
            self._settle(node)

    def is_leaf(self, node: Node) -> bool:
        """Whether nobody uses an existing node and nothing stands behind it."""
        return node.num_refs == 0 and not node.children

    def roots(self) -> list[Node]:
        return list(self._roots.values())

    def nodes(self) -> list[Node]:
        """Every node but the roots, oldest first."""
        return list(self._nodes.values())

    def check(self, num_refs: dict[Node, int], piece_refs: dict[Piece, int]) -> None:
        """Raise `InvariantError` unless references are as given and the tree, the order and the heaps agree."""
        self._check_owners()
        num_evictable = 0
        for node in [*self._roots.values(), *self._nodes.values()]:
            if node.num_refs != num_refs.get(node, 0):
                raise InvariantError(
                    f"index: node {node.id} has {node.num_refs} references, its users make {num_refs.get(node, 0)}"
                )
            if node.order != sorted(node.children):
                raise InvariantError(f"index: node {node.id} lists its children out of order")
            num_evictable += self._check_pieces(node, piece_refs)
            if node.parent is None:
                if not node.num_refs and not node.children and not node.inner:
                    raise InvariantError(f"index: root {node.root} is empty and unused but was kept")
                continue
            num_evictable += self._check_node(node, node.parent)
        if num_evictable != self.num_evictable:
            raise InvariantError(f"index: {num_evictable} nodes and pieces are evictable, not {self.num_evictable}")
        self._victims.check()

    def check_leases(self, leases: Iterable[tuple[Node, Sequence[Piece]]]) -> None:
        """Raise `InvariantError` unless exactly what these name and what was not evicted counts as leased."""
        nodes, pieces = Counter[Node](), Counter[Piece]()
        for node, of_node in leases:
            pieces.update(of_node)
            at = node
            while at.parent is not None:
                nodes[at] += 1
                at = at.parent
        size = 0
        for at in self._nodes.values():
            size += self._node_bytes if nodes[at] else 0
            size += sum(self._piece_bytes(piece) for piece in at.all_pieces() if pieces[piece])
            if at.num_leases != nodes[at] or any(one.num_leases != pieces[one] for one in at.all_pieces()):
                raise InvariantError(f"index: node {at.id} has {at.num_leases} leases; {nodes[at]} name it")
        if size != self.leased_bytes:
            raise InvariantError(f"index: {size} bytes are leased, not {self.leased_bytes}")

    def _check_owners(self) -> None:
        owners = {(g, n.blocks[g]): n for g, _ in self._whole for n in self._nodes.values()}
        if owners != self._owners or len(owners) != len(self._nodes) * len(self._whole):
            raise InvariantError("index: a published block belongs to no node, to two, or to another than noted")
        nodes = [*self._roots.values(), *self._nodes.values()]
        pieces = {(p.group, p.block): p for n in nodes for p in n.all_pieces()}
        if pieces != self._pieces or pieces.keys() & owners.keys():
            raise InvariantError("index: a published block is a piece of no node, of two, or of another than noted")

    def _check_node(self, node: Node, parent: Node) -> int:
        """Returns how many may be evicted: the node, or nothing."""
        if parent.children.get(node.tokens) is not node or node.length != parent.length + len(node.tokens):
            raise InvariantError(f"index: node {node.id} does not hang on its parent {parent.id}")
        if node.num_refs:
            if not parent.num_refs:
                raise InvariantError(f"index: node {node.id} is referenced but its parent {parent.id} is not")
            return 0
        if not self._whole:
            if not node.pieces and not node.inner and not node.children:
                raise InvariantError(f"index: node {node.id} holds nothing and leads nowhere but was kept")
            return 0
        if not parent.num_refs and parent.parent is not None and parent.last_access_s < node.last_access_s:
            raise InvariantError(f"index: node {parent.id} would be evicted before its child {node.id}")
        return 1

    def _check_pieces(self, node: Node, piece_refs: dict[Piece, int]) -> int:
        for piece in node.all_pieces():
            users = piece_refs.get(piece, 0)
            refs = users + bool(piece.keepers)
            place = node.inner[piece.inner] if piece.inner else node.pieces
            is_right = piece.node is node and place[piece.group] is piece and piece.num_refs == refs
            if not is_right or users > node.num_refs or not piece.keepers.keys() <= self._keeping.keys():
                found = f"block {piece.block} of group {piece.group} has {piece.num_refs} references"
                raise InvariantError(f"index: {found}, its users make {refs}")
        return sum(not piece.num_refs for piece in node.all_pieces())

    def _settle(self, node: Node) -> None:
        """A node that lost its last reference, child or piece becomes a candidate; what is empty disappears."""
        if not self.is_leaf(node):
            return
        if node.parent is None:
            if not node.inner:
                del self._roots[node.root]
        elif self._whole:
            self._victims.add_node(node)
        elif not node.pieces and not node.inner:
            self._unlink(node)

    def _unlink(self, node: Node) -> None:
        parent = node.parent
        if parent is None or node.children:
            raise InvariantError(f"index: node {node.id} goes while it is a root or has children")
        self.leased_bytes -= self._node_bytes if node.num_leases else 0
        del self._nodes[node.id]
        del parent.children[node.tokens]
        del parent.order[bisect_left(parent.order, node.tokens)]
        self._settle(parent)


def _num_shared(left: Tokens, right: Tokens) -> int:
    shared = 0
    for a, b in zip(left, right, strict=False):
        if a != b:
            break
        shared += 1
    return shared
