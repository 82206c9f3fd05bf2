"""Prefix index: which published blocks hold which tokens, and in which order the unused ones are evicted.

Owns the nodes, their references and the eviction order, and turns the nodes' blocks in the pools: SHARED while
referenced, else EVICTABLE. A hit compares token ids, never hashes alone, so neither a collision nor another tenant can
leak in.
Invariant: a user of a node references every node on the way to the root; so an unreferenced node has only unreferenced
descendants.

Eviction order: smallest (last access, -prefix length) first, ties by age of the node. Releasing stamps the whole way to
the root, so a node's stamp is never older than an unreferenced child's, and at equal stamps the child's prefix is
longer: children always go first. That is why only leaves need to be in the heap; a parent enters it when its last child
has gone.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count

from plait.core.errors import InvariantError
from plait.core.ids import BlockId, GroupId
from plait.kv.blocks import BlockPool
from plait.kv.hit import Root

Tokens = tuple[int, ...]


@dataclass(slots=True, eq=False)
class Node:
    """One published block of every group: `tokens` behind the parent's prefix. A root has no parent, no tokens and no
    blocks.
    """

    id: int
    root: Root
    parent: Node | None
    tokens: Tokens
    blocks: tuple[BlockId, ...]
    length: int
    """Tokens of the whole prefix, this node's included."""
    last_access_s: float
    num_refs: int = 0
    children: dict[Tokens, Node] = field(default_factory=dict)
    order: list[Tokens] = field(default_factory=list)
    """Keys of `children`, ascending: the child that shares most with any tokens stands next to where these would be
    inserted.
    """


class PrefixIndex:
    """A tree of nodes per root. O(log n) per node referenced, inserted or evicted."""

    def __init__(self, pools: Sequence[BlockPool]) -> None:
        self.num_evictions = 0
        self.num_evictable = 0
        self._pools = tuple(pools)
        self._owners: dict[tuple[GroupId, BlockId], Node] = {}
        self._roots: dict[Root, Node] = {}
        self._nodes: dict[int, Node] = {}
        self._ids = count(1)
        self._heap: list[tuple[float, int, int]] = []
        """(last access, -prefix length, node id) of unreferenced leaves; entries that no longer fit their node are
        skipped.
        """

    @property
    def num_nodes(self) -> int:
        return len(self._nodes)

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

    def owner(self, group: GroupId, block: BlockId) -> Node | None:
        """The node that a published block belongs to."""
        return self._owners.get((group, block))

    def acquire(self, node: Node) -> None:
        """Reference `node` and every node above it."""
        at: Node | None = node
        while at is not None:
            self.extend(at)
            at = at.parent

    def extend(self, node: Node) -> None:
        """Reference `node` for a user who references its parent already."""
        if node.num_refs == 0 and node.parent is not None:
            self.num_evictable -= 1
            for pool, block in zip(self._pools, node.blocks, strict=True):
                pool.reference(block)
        node.num_refs += 1

    def release(self, node: Node, at_s: float) -> None:
        """Take one reference back from `node` and every node above it, and stamp them."""
        at: Node | None = node
        while at is not None:
            parent = at.parent
            at.num_refs -= 1
            at.last_access_s = max(at.last_access_s, at_s)
            if at.num_refs == 0:
                if parent is not None:
                    self.num_evictable += 1
                    for pool, block in zip(self._pools, at.blocks, strict=True):
                        pool.unreference(block)
                self._settle(at)
            at = parent

    def insert(self, parent: Node, tokens: Tokens, blocks: tuple[BlockId, ...], at_s: float) -> Node:
        """Publish private blocks behind `parent`, whom their holder references; the new node starts with the holder's
        reference.
        """
        node = Node(next(self._ids), parent.root, parent, tokens, blocks, parent.length + len(tokens), at_s, num_refs=1)
        for pool, block in zip(self._pools, blocks, strict=True):
            pool.publish(block)
            self._owners[pool.group, block] = node
        self._nodes[node.id] = node
        parent.children[tokens] = node
        insort(parent.order, tokens)
        return node

    def closest(self, node: Node, tokens: Tokens) -> tuple[Node, int] | None:
        """The child that shares the most leading tokens with `tokens`, and how many; None if none shares any."""
        place = bisect_left(node.order, tokens)
        best: tuple[Node, int] | None = None
        for near in node.order[max(place - 1, 0) : place + 1]:
            shared = _num_shared(near, tokens)
            if shared > (best[1] if best else 0):
                best = node.children[near], shared
        return best

    def evict(self) -> Node | None:
        """Free the blocks of the first node in eviction order and forget it; None if every node is referenced."""
        while self._heap:
            last_access_s, _, node_id = heapq.heappop(self._heap)
            node = self._nodes.get(node_id)
            if node is not None and self._is_victim(node) and node.last_access_s == last_access_s:
                self._remove(node)
                return node
        return None

    def roots(self) -> list[Node]:
        return list(self._roots.values())

    def nodes(self) -> list[Node]:
        """Every node but the roots, oldest first."""
        return list(self._nodes.values())

    def check(self, num_refs: dict[Node, int]) -> None:
        """Raise `InvariantError` unless references are `num_refs` and the tree, the order and the heap agree."""
        entries = dict.fromkeys(self._heap)
        owners = {(pool.group, n.blocks[g]): n for g, pool in enumerate(self._pools) for n in self._nodes.values()}
        if owners != self._owners or len(owners) != len(self._nodes) * len(self._pools):
            raise InvariantError("index: a published block belongs to no node, to two, or to another than noted")
        num_evictable = 0
        for node in [*self._roots.values(), *self._nodes.values()]:
            if node.num_refs != num_refs.get(node, 0):
                raise InvariantError(
                    f"index: node {node.id} has {node.num_refs} references, its users make {num_refs.get(node, 0)}"
                )
            if node.order != sorted(node.children):
                raise InvariantError(f"index: node {node.id} lists its children out of order")
            parent = node.parent
            if parent is None:
                if not node.num_refs and not node.children:
                    raise InvariantError(f"index: root {node.root} is empty and unused but was kept")
                continue
            if parent.children.get(node.tokens) is not node or node.length != parent.length + len(node.tokens):
                raise InvariantError(f"index: node {node.id} does not hang on its parent {parent.id}")
            if node.num_refs:
                if not parent.num_refs:
                    raise InvariantError(f"index: node {node.id} is referenced but its parent {parent.id} is not")
                continue
            num_evictable += 1
            if not parent.num_refs and parent.parent is not None and _key(parent) <= _key(node):
                raise InvariantError(f"index: node {parent.id} would be evicted before its child {node.id}")
            if not node.children and _key(node) not in entries:
                raise InvariantError(f"index: node {node.id} is evictable but not in the heap")
        if num_evictable != self.num_evictable:
            raise InvariantError(f"index: {num_evictable} nodes are evictable, not {self.num_evictable}")

    def _is_victim(self, node: Node) -> bool:
        return node.num_refs == 0 and not node.children

    def _settle(self, node: Node) -> None:
        """A node that has just lost its last reference or child becomes a candidate; an unused root disappears."""
        if not self._is_victim(node):
            return
        if node.parent is None:
            del self._roots[node.root]
            return
        heapq.heappush(self._heap, _key(node))
        if len(self._heap) > 64 + 2 * len(self._nodes):
            self._compact()

    def _compact(self) -> None:
        """Drop outdated entries: they come from nodes that were used again, and would else pile up."""
        live = {_key(node): None for node in self._nodes.values() if self._is_victim(node)}
        self._heap = [entry for entry in dict.fromkeys(self._heap) if entry in live]
        heapq.heapify(self._heap)

    def _remove(self, node: Node) -> None:
        parent = node.parent
        if parent is None or node.children or node.num_refs:
            raise InvariantError(f"index: node {node.id} is evicted while it is a root, used or has children")
        self.num_evictions += 1
        self.num_evictable -= 1
        for pool, block in zip(self._pools, node.blocks, strict=True):
            pool.free(block)
            del self._owners[pool.group, block]
        del self._nodes[node.id]
        del parent.children[node.tokens]
        del parent.order[bisect_left(parent.order, node.tokens)]
        self._settle(parent)


def _key(node: Node) -> tuple[float, int, int]:
    return node.last_access_s, -node.length, node.id


def _num_shared(left: Tokens, right: Tokens) -> int:
    shared = 0
    for a, b in zip(left, right, strict=False):
        if a != b:
            break
        shared += 1
    return shared
