"""Lengths: how long answers will be, from the few that were run first.

Owns the sample and what follows from it for everybody else (BlendServe, ASPLOS 2026, section 5.1): the mean of the
nearest part of the prefix tree that has a sampled request. What is known is not guessed.
Invariants: a request's guess is at least one token and at most what it may say; what is drawn depends on the seed and
the number of requests alone.
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Mapping, Sequence

from plait.sched.blend.tree import PrefixTree

SAMPLED = 0.01
"""Share of the requests that are run first; the paper's q."""


def drawn(num_requests: int, seed: int, share: float = SAMPLED) -> list[int]:
    """Requests to be run first, ascending; at least one if there are any."""
    count = min(num_requests, max(1, round(share * num_requests))) if num_requests else 0
    return sorted(random.Random(seed).sample(range(num_requests), count))


def guessed(tree: PrefixTree, known: Mapping[int, int], most: Sequence[int]) -> list[float]:
    """Output tokens of each request. `known`: of those that ran, or that say so; `most`: what each may say at most.

    Nobody known: everybody says as much as it may.
    """
    if not known:
        return [float(max(1, limit)) for limit in most]
    counts, sums = _totals(tree, known)
    num_nodes = len(counts)
    means = array("d", bytes(8 * num_nodes))
    means[tree.root] = sums[tree.root] / counts[tree.root]
    lengths = [0.0] * tree.num_requests
    for node in range(num_nodes - 1, -1, -1):
        mean = means[node]
        for request in tree.own(node):
            given = known.get(request)
            lengths[request] = max(1.0, min(mean, most[request])) if given is None else float(max(1, given))
        for child in tree.children[node]:
            means[child] = sums[child] / counts[child] if counts[child] else mean
    return lengths


def guessed_squares(tree: PrefixTree, known: Mapping[int, int], most: Sequence[int]) -> list[float]:
    """Mean square of the output tokens of each request's nearest known ones, as `guessed` finds their mean."""
    return guessed(tree, {request: length**2 for request, length in known.items()}, [limit**2 for limit in most])


def two_lengths(mean: float, square: float) -> tuple[float, float]:
    """(h, q): answers of h tokens for a part q of requests and of 1 for the others have this mean and mean square.

    What grows with the square of an answer's length, as the reading of its cache does, is exact for them; at the mean
    length it would be too little. Answers that all have one length: that one, and 1.
    """
    beyond = square - 2 * mean + 1  # the mean of (length - 1)^2
    if mean <= 1 or square <= mean * mean * (1 + 1e-9):
        return mean, 1.0
    return 1 + beyond / (mean - 1), (mean - 1) ** 2 / beyond


def _totals(tree: PrefixTree, known: Mapping[int, int]) -> tuple[array[int], array[int]]:
    """Of each node: known requests below it and the sum of their lengths."""
    num_nodes = len(tree.ends)
    counts, sums = array("q", bytes(8 * num_nodes)), array("q", bytes(8 * num_nodes))
    for node in range(num_nodes):
        # Children come before their parents.
        count = total = 0
        for request in tree.own(node):
            given = known.get(request)
            if given is not None:
                count, total = count + 1, total + given
        for child in tree.children[node]:
            count, total = count + counts[child], total + sums[child]
        counts[node], sums[node] = count, total
    return counts, sums
