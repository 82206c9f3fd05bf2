"""Units: the prefix tree cut into pieces that are sorted by density, from the most computing to the most memory.

Owns densities of subtrees, the order of siblings, and the cut that gives up a little sharing for order (BlendServe,
ASPLOS 2026, sections 5.1, 5.2 and appendix A.2). What the printed algorithm leaves open is repaired here: requests that
end at an inner node, and nodes with many children of unlike densities, which are cut into a few pieces of like ones
instead of being torn into all their children or left whole.
Invariants: every request is in exactly one unit; units are sorted by density; what is computed again because of the
cut is at most `lost_share` of the tokens that can be shared.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from plait.sched.blend.tree import PrefixTree

LOST_SHARE = 0.01
"""Of the tokens that hits can save: what the cut may give up."""

BAND = 1.25
"""Densities within a piece differ by this factor at most, where the cut costs nothing."""

SMOOTH = 2.0
"""Neighbours are not merged into a unit that is more uneven than this: both sides' parts of memory come from the mean
density of a unit, and who walks an uneven one has another most of the time.
"""

Item = int
"""A node, or ~r for a request r that ends at the node in question."""


@dataclass(frozen=True, slots=True)
class Loads:
    """What each request needs: seconds of computing for a prompt token and for an output token of any request, output
    tokens of each, and seconds of memory traffic of each over its whole life.
    """

    prompt_token_s: float
    output_token_s: float
    outputs: Sequence[float]
    memory_s: Sequence[float]


@dataclass(frozen=True, slots=True)
class Unit:
    """Neighbours of one node that are run one after the other. `prefix`: tokens above them, computed once for all."""

    node: int
    items: tuple[Item, ...]
    prefix: int
    num_requests: int
    compute_s: float
    memory_s: float

    @property
    def density(self) -> float:
        return self.compute_s / self.memory_s if self.memory_s else float("inf")


class DensityTree:
    """A prefix tree with what each subtree needs, and siblings sorted by descending density."""

    def __init__(self, tree: PrefixTree, loads: Loads) -> None:
        self.tree = tree
        self.loads = loads
        num_nodes = len(tree.ends)
        self._distinct = array("d", bytes(8 * num_nodes))
        self._outputs = array("d", bytes(8 * num_nodes))
        self._memory_s = array("d", bytes(8 * num_nodes))
        self._least, self._most = array("d", bytes(8 * num_nodes)), array("d", bytes(8 * num_nodes))
        self._items: list[tuple[Item, ...]] = []
        for node in range(num_nodes):
            self._weigh(node)

    def _weigh(self, node: int) -> None:
        tree, loads = self.tree, self.loads
        items: list[Item] = [~request for request in tree.own(node)]
        distinct = float(tree.ends[node] - tree.begins[node])
        outputs = sum(loads.outputs[~item] for item in items)
        memory_s = sum(loads.memory_s[~item] for item in items)
        for child in tree.children[node]:
            distinct += self._distinct[child]
            outputs += self._outputs[child]
            memory_s += self._memory_s[child]
        self._distinct[node], self._outputs[node], self._memory_s[node] = distinct, outputs, memory_s
        items += tree.children[node]
        # Stable: equal ones stay in the order of their prompts.
        items.sort(key=self.density, reverse=True)
        self._items.append(tuple(items))
        if len(items) == 1:
            (only,) = items
            self._least[node] = self._most[node] = self.density(node)
            if only >= 0 and self._most[only] > self._least[only]:
                self._least[node], self._most[node] = self._least[only], self._most[only]
        else:
            ranges = [self._range(item) for item in items]
            self._least[node] = min((least for least, _ in ranges), default=0.0)
            self._most[node] = max((most for _, most in ranges), default=0.0)

    def _range(self, item: Item) -> tuple[float, float]:
        if item < 0:
            density = self.density(item)
            return density, density
        return self._least[item], self._most[item]

    def items(self, node: int) -> tuple[Item, ...]:
        """Children and own requests, the most computing first."""
        return self._items[node]

    def density(self, item: Item) -> float:
        """Of a subtree whose path above is computed for others: shared tokens are computed once."""
        memory_s = self.memory_s(item)
        return self.compute_s(item) / memory_s if memory_s else float("inf")

    def compute_s(self, item: Item) -> float:
        if item < 0:
            return self.loads.outputs[~item] * self.loads.output_token_s
        return self._distinct[item] * self.loads.prompt_token_s + self._outputs[item] * self.loads.output_token_s

    def memory_s(self, item: Item) -> float:
        return self.loads.memory_s[~item] if item < 0 else self._memory_s[item]

    def num_requests(self, item: Item) -> int:
        return 1 if item < 0 else self.tree.num_below(item)

    def is_even(self, node: int) -> bool:
        """Whether nothing in it is much denser than anything else."""
        return self._most[node] <= BAND * self._least[node]

    def num_shareable(self) -> int:
        """Prompt tokens that hits save if every shared part is computed once."""
        return self.tree.num_shareable()

    def requests(self, items: Sequence[Item], *, backwards: bool = False) -> Iterator[int]:
        """Depth first, in the order of the items, or from their other end."""
        stack = list(items if backwards else reversed(items))
        while stack:
            item = stack.pop()
            if item < 0:
                yield ~item
            else:
                stack.extend(self._items[item] if backwards else reversed(self._items[item]))

    def unit(self, node: int, items: Sequence[Item], prefix: int) -> Unit:
        free = self.tree.common_end()
        compute_s = sum(map(self.compute_s, items)) + max(0, prefix - free) * self.loads.prompt_token_s
        return Unit(
            node,
            tuple(items),
            prefix,
            sum(map(self.num_requests, items)),
            compute_s,
            sum(map(self.memory_s, items)),
        )


def cut(dense: DensityTree, *, lost_share: float = LOST_SHARE, merges: bool = True) -> list[Unit]:
    """All requests in units of descending density."""
    budget = lost_share * dense.num_shareable()
    units: list[Unit] = []
    waiting = [(dense.tree.root, budget)]
    while waiting:
        node, budget = waiting.pop()
        pieces = _pieces(dense, node)
        prefix = dense.tree.ends[node]
        left = budget - _price(dense, node, len(pieces))
        assert left >= 0
        apart = dict(_cuttable(dense, node, left))
        waiting += apart.items()
        for piece in pieces:
            kept = [item for item in piece if item not in apart]
            if kept:
                units.append(dense.unit(node, kept, prefix))
    units = _sorted(units)
    while merges and len(merged := _merged(dense, units)) < len(units):
        # Computing a beginning once makes a unit less dense.
        units = _sorted(merged)
    return units


def _sorted(units: list[Unit]) -> list[Unit]:
    return sorted(units, key=lambda unit: unit.density, reverse=True)


def _price(dense: DensityTree, node: int, num_pieces: int) -> int:
    """Tokens computed again if the node is cut into so many pieces: each needs the path through the node."""
    return num_pieces * max(0, dense.tree.ends[node] - dense.tree.common_end())


def _pieces(dense: DensityTree, node: int) -> list[list[Item]]:
    """Neighbours of like density."""
    pieces: list[list[Item]] = []
    bound = 0.0
    for item in dense.items(node):
        density = dense.density(item)
        if not pieces or density < bound:
            pieces.append([])
            bound = density / BAND
        pieces[-1].append(item)
    return pieces


def _cuttable(dense: DensityTree, node: int, budget: float) -> Iterator[tuple[int, float]]:
    """Children that are worth cutting and whose part of the budget pays for it; that part, less leaving their place."""
    total = dense.tree.num_below(node)
    for item in dense.items(node):
        if item < 0 or dense.is_even(item):
            continue
        share = budget * dense.tree.num_below(item) / total
        if _price(dense, item, len(_pieces(dense, item))) <= share:
            yield item, share


def _merged(dense: DensityTree, units: Sequence[Unit]) -> list[Unit]:
    """Neighbours of one node become one unit again: nothing stands between them, so nothing need be computed twice."""
    merged: list[Unit] = []
    for unit in units:
        last = merged[-1] if merged else None
        is_free = unit.prefix <= dense.tree.common_end()
        if last is not None and last.node == unit.node and not is_free and _is_smooth(dense, last, unit):
            unit = dense.unit(unit.node, (*merged.pop().items, *unit.items), unit.prefix)
        merged.append(unit)
    return merged


def _is_smooth(dense: DensityTree, one: Unit, other: Unit) -> bool:
    """Whether both are of like density from end to end."""
    densities = [dense.density(item) for unit in (one, other) for item in (unit.items[0], unit.items[-1])]
    return max(densities) <= SMOOTH * min(densities)
