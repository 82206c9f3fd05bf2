"""Orders: in which a job's requests can be run, for comparison with `blend`.

Owns the fixed orders; each is a permutation of the job and knows nothing of the device but densities.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator
from enum import StrEnum

from plait.sched.blend.tree import PrefixTree
from plait.sched.blend.units import DensityTree


class Order(StrEnum):
    FCFS = "fcfs"
    """As they were given."""
    RANDOM = "random"
    DFS = "dfs"
    """The prefix tree depth first: all sharing, no thought of density."""
    BFS = "bfs"
    """The prefix tree level by level."""
    DENSITY = "density"
    """From the most computing to the most memory, whatever they share."""


def fixed_order(order: Order, dense: DensityTree, seed: int = 0) -> list[int]:
    """The requests of a job in this order."""
    return _WALKS[order](dense, seed)


def _fcfs(dense: DensityTree, seed: int) -> list[int]:
    return list(range(dense.tree.num_requests))


def _random(dense: DensityTree, seed: int) -> list[int]:
    return random.Random(seed).sample(range(dense.tree.num_requests), dense.tree.num_requests)


def _dfs(dense: DensityTree, seed: int) -> list[int]:
    """Siblings stand as their first requests were given: that of a dataset, group by group."""
    tree = dense.tree
    first = _first_given(tree)
    found: list[int] = []
    stack = [tree.root]
    while stack:
        node = stack.pop()
        found += tree.own(node)
        stack += sorted(tree.children[node], key=first.__getitem__, reverse=True)
    return found


def _bfs(dense: DensityTree, seed: int) -> list[int]:
    tree = dense.tree
    found: list[int] = []
    queue = deque([tree.root])
    while queue:
        node = queue.popleft()
        found += tree.own(node)
        queue += tree.children[node]
    return found


def _density(dense: DensityTree, seed: int) -> list[int]:
    return [request for request, _ in sorted(_leaf_densities(dense), key=lambda one: -one[1])]


def _leaf_densities(dense: DensityTree) -> Iterator[tuple[int, float]]:
    """Each request's own, its whole prompt computed."""
    tree, loads = dense.tree, dense.loads
    for node, end in enumerate(tree.ends):
        for request in tree.own(node):
            compute_s = end * loads.prompt_token_s + loads.outputs[request] * loads.output_token_s
            yield request, compute_s / loads.memory_s[request] if loads.memory_s[request] else float("inf")


def _first_given(tree: PrefixTree) -> list[int]:
    """Of each node: the request below it that was given first."""
    first: list[int] = []
    for node in range(len(tree.ends)):
        below = [*tree.own(node), *(first[child] for child in tree.children[node])]
        first.append(min(below, default=0))
    return first


_WALKS: dict[Order, Callable[[DensityTree, int], list[int]]] = {
    Order.FCFS: _fcfs,
    Order.RANDOM: _random,
    Order.DFS: _dfs,
    Order.BFS: _bfs,
    Order.DENSITY: _density,
}
