"""Prefix index: what is found, who is referenced, and who goes first.

A tree is drawn as its prefixes in eviction order; blocks hold two letters each.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.unit.kv.kit import FULL, ROOT, full_groups, make_layout, words

from plait.core.errors import InvariantError
from plait.core.ids import SeqId
from plait.kv.blocks import BlockPool, BlockState
from plait.kv.hit import Root
from plait.kv.images import Images
from plait.kv.index import PrefixIndex
from plait.kv.keeps import KeepsTokens
from plait.kv.nodes import Node
from plait.kv.owners import tail_of
from plait.kv.pages import PagePool

SIZE = 2
A = tail_of(SeqId(0))


class Tree:
    """An index over one group's blocks, built by spelling prefixes."""

    def __init__(self, num_blocks: int = 40) -> None:
        layout = make_layout(num_blocks, full_groups(1), 1, SIZE)
        self.pool = BlockPool(layout.groups[0], layout.page_bytes, PagePool(num_blocks))
        keeps = [KeepsTokens(SIZE)]
        self.index = PrefixIndex([self.pool], keeps, Images([self.pool], keeps, SIZE))

    def grow(self, text: str, at_s: float = 0.0, root: Root = ROOT) -> Node:
        """Publish every block of `text` that is missing, by a user who keeps its reference."""
        node = self.index.ensure_root(root)
        self.index.acquire(node)
        tokens = words(text)
        for first in range(0, len(tokens), SIZE):
            key = tuple(tokens[first : first + SIZE])
            child = node.children.get(key)
            if child is None:
                child = self.index.insert(node, key, tuple(self.pool.grant(A, 1, frugal=False)), at_s)
            else:
                self.index.extend(child)
            node = child
        return node

    def cache(self, text: str, at_s: float, root: Root = ROOT) -> Node:
        """Publish `text`; its user leaves at `at_s`."""
        node = self.grow(text, at_s, root)
        self.index.release(node, at_s)
        return node

    def evicted(self, count: int = 100) -> list[str]:
        """The next prefixes that go."""
        gone: list[str] = []
        while len(gone) < count and (victims := self.index.evict()):
            gone += [spelled(node) for node in victims if isinstance(node, Node)]
        return gone

    def state(self, node: Node) -> BlockState:
        return self.pool.state(node.blocks[0])


def spelled(node: Node | None) -> str:
    text = ""
    while node is not None:
        text = "".join(map(chr, node.tokens)) + text
        node = node.parent
    return text


def test_older_prefixes_go_first_and_of_equal_age_the_longest() -> None:
    tree = Tree()
    tree.cache("aabbcc", at_s=1.0)
    tree.cache("ddee", at_s=2.0)
    assert tree.evicted() == ["aabbcc", "aabb", "aa", "ddee", "dd"]


def test_a_shared_head_is_as_young_as_its_last_user() -> None:
    tree = Tree()
    tree.cache("aabb", at_s=1.0)
    tree.cache("ffff", at_s=2.0)
    tree.cache("aacc", at_s=3.0)
    assert tree.evicted() == ["aabb", "ffff", "ff", "aacc", "aa"]


def test_equal_age_and_length_go_in_order_of_publication() -> None:
    tree = Tree()
    for text in ("bb", "aa", "cc"):
        tree.cache(text, at_s=1.0)
    assert tree.evicted() == ["bb", "aa", "cc"]


def test_the_longer_of_two_branches_of_one_age_goes_first() -> None:
    tree = Tree()
    tree.cache("aabb", at_s=1.0)
    tree.cache("ccddee", at_s=1.0)
    assert tree.evicted(3) == ["ccddee", "aabb", "ccdd"]


def test_a_prefix_in_use_keeps_all_above_it_and_nothing_below() -> None:
    tree = Tree()
    tree.cache("aabbcc", at_s=1.0)
    middle = tree.grow("aabb")
    assert tree.evicted() == ["aabbcc"]
    assert tree.state(middle) is BlockState.SHARED
    tree.index.release(middle, 2.0)
    assert tree.evicted() == ["aabb", "aa"]


def test_a_late_release_of_an_early_user_does_not_make_a_prefix_older() -> None:
    tree = Tree()
    early, late = tree.grow("aa"), tree.grow("aa")
    tree.cache("cc", at_s=2.0)
    tree.index.release(late, 3.0)
    tree.index.release(early, 1.0)
    assert tree.evicted() == ["cc", "aa"]


def test_blocks_are_shared_while_referenced_and_evictable_after() -> None:
    tree = Tree()
    first, second = tree.grow("aa"), tree.grow("aa")
    assert first is second
    tree.index.release(first, 1.0)
    assert tree.state(first) is BlockState.SHARED
    assert tree.index.num_evictable == 0
    tree.index.release(first, 1.0)
    assert tree.state(first) is BlockState.EVICTABLE
    assert tree.index.num_evictable == 1
    tree.index.evict()
    assert tree.state(first) is BlockState.FREE


def test_a_node_used_again_and_left_at_the_same_time_is_evicted_once() -> None:
    tree = Tree()
    tree.cache("aa", at_s=1.0)
    tree.cache("aa", at_s=1.0)
    assert tree.evicted() == ["aa"]
    assert tree.index.num_evictions == 1


def test_a_leaf_that_got_a_child_comes_back_into_the_order_when_the_child_goes() -> None:
    tree = Tree()
    tree.cache("aa", at_s=1.0)
    tree.cache("aabb", at_s=1.0)
    assert tree.evicted() == ["aabb", "aa"]


def test_ids_of_evicted_nodes_are_never_used_again() -> None:
    tree = Tree()
    gone = tree.cache("aa", at_s=1.0)
    tree.evicted()
    again = tree.cache("aa", at_s=2.0)
    assert tree.index.node(gone.id) is None
    assert tree.index.node(again.id) is again
    assert again.id > gone.id


def test_roots_share_nothing_and_vanish_when_nobody_needs_them() -> None:
    tree = Tree()
    other = Root("fingerprint", tenant="other")
    mine, theirs = tree.cache("aa", at_s=1.0), tree.cache("aa", at_s=1.0, root=other)
    assert mine is not theirs
    assert tree.index.num_roots == 2
    tree.evicted()
    assert tree.index.num_roots == 0
    assert tree.index.root(other) is None


def test_a_root_stays_while_a_user_without_any_block_holds_it() -> None:
    tree = Tree()
    root = tree.grow("")
    tree.cache("aa", at_s=1.0)
    tree.evicted()
    assert tree.index.root(ROOT) is root
    tree.index.release(root, 2.0)
    assert tree.index.root(ROOT) is None


@pytest.mark.parametrize(
    ("query", "found", "num_shared"),
    [
        ("ab", "ab", 2),
        ("ax", "ab", 1),
        ("az", "ay", 1),
        ("b", "ba", 1),
        ("a", "ab", 1),
        ("ca", None, 0),
        ("Aa", None, 0),
    ],
)
def test_the_closest_child_shares_the_most_leading_tokens(query: str, found: str | None, num_shared: int) -> None:
    tree = Tree()
    for text in ("ay", "ba", "ab"):
        tree.cache(text, at_s=1.0)
    root = tree.index.root(ROOT)
    assert root is not None
    near = tree.index.closest(root, tuple(words(query)))
    assert (spelled(near[0]) if near else None, near[1] if near else 0) == (found, num_shared)


def test_a_block_is_found_by_its_node_until_it_is_evicted() -> None:
    tree = Tree()
    node = tree.cache("aa", at_s=1.0)
    assert tree.index.owner(FULL, node.blocks[0]) is node
    tree.evicted()
    assert tree.index.owner(FULL, node.blocks[0]) is None


def test_the_heap_does_not_grow_with_every_use() -> None:
    tree = Tree()
    for turn in range(1000):
        tree.cache("aabb", at_s=float(turn))
    assert len(tree.index._victims._nodes) <= 64 + 2 * tree.index.num_nodes
    assert tree.evicted() == ["aabb", "aa"]


def test_an_order_of_thousands_is_the_order_of_a_plain_sort() -> None:
    tree = Tree(num_blocks=4000)
    nodes = [tree.cache(chr(1000 + i * 7 % 3000) * 2, at_s=float(i * 13 % 50)) for i in range(3000)]
    expected = sorted(nodes, key=lambda node: (node.last_access_s, node.id))
    assert tree.evicted(4000) == [spelled(node) for node in expected]


def damage_references(index: PrefixIndex, leaf: Node) -> None:
    leaf.num_refs += 1


def damage_length(index: PrefixIndex, leaf: Node) -> None:
    leaf.length += 1


def damage_child_order(index: PrefixIndex, leaf: Node) -> None:
    assert leaf.parent is not None
    leaf.parent.order.reverse()


def damage_heap(index: PrefixIndex, leaf: Node) -> None:
    index._victims._nodes.clear()


def damage_count(index: PrefixIndex, leaf: Node) -> None:
    index.num_evictable += 1


def damage_stamp(index: PrefixIndex, leaf: Node) -> None:
    leaf.last_access_s = 9.0


def damage_owners(index: PrefixIndex, leaf: Node) -> None:
    index._owners.clear()


def damage_block(index: PrefixIndex, leaf: Node) -> None:
    assert leaf.parent is not None
    leaf.blocks = leaf.parent.blocks


def damage_roots(index: PrefixIndex, leaf: Node) -> None:
    index.ensure_root(Root("another"))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (damage_references, "has 1 references, its users make 0"),
        (damage_length, "does not hang on its parent"),
        (damage_child_order, "lists its children out of order"),
        (damage_heap, "is evictable but not in the heap"),
        (damage_count, "3 nodes and pieces are evictable, not 4"),
        (damage_stamp, "would be evicted before its child"),
        (damage_owners, "belongs to no node"),
        (damage_block, "belongs to no node, to two"),
        (damage_roots, "is empty and unused but was kept"),
    ],
)
def test_check_finds_the_damage(damage: Callable[[PrefixIndex, Node], None], message: str) -> None:
    tree = Tree()
    leaf = tree.cache("aabb", at_s=1.0)
    tree.cache("aacc", at_s=1.0)
    tree.index.check({}, {})
    damage(tree.index, leaf)
    with pytest.raises(InvariantError, match=message):
        tree.index.check({}, {})


def test_check_finds_a_used_child_of_an_unused_parent() -> None:
    tree = Tree()
    leaf = tree.cache("aabb", at_s=1.0)
    tree.index.extend(leaf)
    with pytest.raises(InvariantError, match="is referenced but its parent"):
        tree.index.check({leaf: 1}, {})
