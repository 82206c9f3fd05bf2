"""Prefix tree: who shares which beginning, for all requests of a job at once.

Owns the compact tree over prompts (BlendServe, ASPLOS 2026, section 5.1) and the form of prompts while it is
built. Knows no densities. One tree is for one cache salt: nothing is shared across salts.
Invariants: every request ends at exactly one node; a node's requests are neighbours in `order`, first those that end at
it; children have smaller numbers than their parent, and the root, whose path is empty, has the largest.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import mul

TOKEN_BYTES = 4


def packed(tokens: Iterable[int]) -> bytes:
    """A prompt so that the order of bytes is the order of tokens, in four bytes each."""
    numbers = array("I", tokens)
    if sys.byteorder == "little":
        numbers.byteswap()
    return numbers.tobytes()


@dataclass(frozen=True, slots=True)
class PrefixTree:
    """Node n spans tokens `begins[n]` to `ends[n]` of the prompts of requests `order[firsts[n] : lasts[n]]`."""

    order: list[int]
    """All requests, sorted by their prompts; equal prompts in the order given."""
    begins: array[int]
    ends: array[int]
    firsts: array[int]
    lasts: array[int]
    num_own: array[int]
    """Requests whose whole prompt is the path to the node."""
    children: list[tuple[int, ...]]

    @property
    def root(self) -> int:
        return len(self.ends) - 1

    @property
    def num_requests(self) -> int:
        return len(self.order)

    def num_below(self, node: int) -> int:
        """Requests that share the path to the node."""
        return self.lasts[node] - self.firsts[node]

    def own(self, node: int) -> Sequence[int]:
        """Requests that end at the node."""
        first = self.firsts[node]
        return self.order[first : first + self.num_own[node]]

    def common_end(self) -> int:
        """Tokens that all requests share. They are never lost by moving requests about."""
        node = self.root
        while not self.num_own[node] and len(self.children[node]) == 1:
            (node,) = self.children[node]
        return self.ends[node]

    def num_distinct(self) -> int:
        """Prompt tokens that are computed if every shared part is computed once."""
        return sum(self.ends) - sum(self.begins)

    def num_shareable(self) -> int:
        """Prompt tokens that hits save if every shared part is computed once."""
        whole: int = sum(map(mul, self.ends, self.num_own))
        return whole - self.num_distinct()


def build_tree(prompts: Sequence[bytes], go_on: Callable[[], None] = lambda: None) -> PrefixTree:
    """O(N log N) comparisons of prompts as bytes, then O(N). `prompts` as `packed` gives them. `go_on` is called for
    every prompt, and ends the work by raising.
    """
    return _Building(prompts).tree(go_on)


class _Open:
    """A node to which more requests may come."""

    __slots__ = ("children", "end", "first", "num_own")

    def __init__(self, end: int, first: int, num_own: int) -> None:
        self.end = end
        self.first = first
        self.num_own = num_own
        self.children: list[int] = []


class _Building:
    """Walks the sorted prompts; what is open is the path to the last one."""

    def __init__(self, prompts: Sequence[bytes]) -> None:
        self._prompts = prompts
        self._open = [_Open(0, 0, 0)]
        self._begins, self._ends = array("q"), array("q")
        self._firsts, self._lasts, self._num_own = array("q"), array("q"), array("q")
        self._children: list[tuple[int, ...]] = []

    def tree(self, go_on: Callable[[], None]) -> PrefixTree:
        prompts, path = self._prompts, self._open
        order = sorted(range(len(prompts)), key=prompts.__getitem__)
        before = b""
        for place, request in enumerate(order):
            go_on()
            prompt = prompts[request]
            self._close(common_tokens(before, prompt), place)
            num_tokens = len(prompt) // TOKEN_BYTES
            if num_tokens > path[-1].end:
                path.append(_Open(num_tokens, place, 1))
            else:
                path[-1].num_own += 1
            before = prompt
        self._close(0, len(order))
        self._finish(path.pop(), 0, len(order))
        return PrefixTree(order, self._begins, self._ends, self._firsts, self._lasts, self._num_own, self._children)

    def _close(self, depth: int, place: int) -> None:
        """End all nodes that reach deeper than what the next prompt shares with the last one."""
        path = self._open
        while path[-1].end > depth:
            node = path.pop()
            upper = path[-1]
            if upper.end < depth:
                # They part in the midst of the node.
                upper = _Open(depth, node.first, 0)
                path.append(upper)
            upper.children.append(self._finish(node, upper.end, place))

    def _finish(self, node: _Open, begin: int, place: int) -> int:
        self._begins.append(begin)
        self._ends.append(node.end)
        self._firsts.append(node.first)
        self._lasts.append(place)
        self._num_own.append(node.num_own)
        self._children.append(tuple(node.children))
        return len(self._ends) - 1


def common_tokens(one: bytes, other: bytes) -> int:
    """Length of the longest common beginning, in tokens."""
    least = min(len(one), len(other))
    if one[:least] == other[:least]:
        return least // TOKEN_BYTES
    low, high = 0, least
    step = 16 * TOKEN_BYTES
    # Mostly they part early: double the reach first, then halve.
    while low + step < high and one[low : low + step] == other[low : low + step]:
        low += step
        step *= 2
    high = min(high, low + step)
    while high - low > TOKEN_BYTES:
        middle = low + (high - low) // (2 * TOKEN_BYTES) * TOKEN_BYTES
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle
    return low // TOKEN_BYTES
