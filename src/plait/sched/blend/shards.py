"""Shards: a job cut into parts for machines that know nothing of each other, each like the whole in small.

Owns the cut by the dual scanner itself (BlendServe, ASPLOS 2026, on data parallelism): a part takes requests from both
ends of the units, more from the left while it lacks computing and more from the right while it lacks traffic, until it
has its share of both. What begins alike stays together but for one path of the tree on each side of a cut.
Invariants: every request is in exactly one part and none is empty; a cut follows from the job, the ratio of the rates
and the number of parts alone.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from plait.core.errors import UsageError
from plait.sched.blend.feeds import outlook
from plait.sched.blend.job import Lives, OfflineJob
from plait.sched.blend.tree import PrefixTree, build_tree
from plait.sched.blend.units import DensityTree, cut


def shards_of(job: OfflineJob, lives: Lives, count: int) -> list[list[int]]:
    """The places of each part, ascending. `job` keeps its prompts."""
    if not 1 <= count <= len(job):
        raise UsageError(f"{len(job)} requests cannot be cut into {count} parts; give at most one part for each")
    look = outlook(job, build_tree(job.prompts), lives, job.known)
    row = [place for unit in cut(look.dense) for place in look.dense.requests(unit.items)]
    return [sorted(part) for part in _Cutting(look.dense, row).parts(count)]


class _Cutting:
    """The row of all requests, from the most computing to the most traffic, and what is left of it."""

    def __init__(self, dense: DensityTree, row: Sequence[int]) -> None:
        self._tree, self._loads, self._row = dense.tree, dense.loads, row
        self._first, self._last = 0, len(row)
        self._node_of, self._upper = _paths(dense.tree)
        num_nodes = len(dense.tree.ends)
        self._below = array("q", (dense.tree.num_below(node) for node in range(num_nodes)))
        self._seen_by = array("q", [-1]) * num_nodes
        """The last part that computes a node."""
        self._compute_s = dense.compute_s(dense.tree.root)
        self._memory_s = dense.memory_s(dense.tree.root)

    def parts(self, count: int) -> list[list[int]]:
        return [self._part(number, count - number) for number in range(count)]

    def _part(self, number: int, left: int) -> list[int]:
        """`left`: parts that are still to be made, this one included."""
        share_compute, share_memory = self._compute_s / left, self._memory_s / left
        most = self._last - self._first - (left - 1)
        taken: list[int] = []
        compute = memory = 0.0
        while len(taken) < most:
            # Parts of its share that it has; where there is no traffic at all, computing alone decides.
            has_compute = compute / share_compute if share_compute else 1.0
            has_memory = memory / share_memory if share_memory else has_compute
            from_left = has_compute <= has_memory
            if left > 1 and taken:
                if not from_left and self._loads.memory_s[self._row[self._last - 1]] / 2 > share_memory - memory:
                    # A long answer that takes it further past its share than it is short of it.
                    from_left = True
                if has_compute + has_memory >= 2 or (from_left and has_compute >= 1):
                    break
            place = self._take(from_left=from_left)
            taken.append(place)
            compute += self._computes(place, number)
            memory += self._loads.memory_s[place]
        return taken

    def _take(self, *, from_left: bool) -> int:
        if from_left:
            place = self._row[self._first]
            self._first += 1
        else:
            self._last -= 1
            place = self._row[self._last]
        return place

    def _computes(self, place: int, number: int) -> float:
        """What the request adds to a part: what is new to it of its prompt, and its answer. Also takes off what nobody
        needs any more from what is left.
        """
        tree, loads = self._tree, self._loads
        output_s = loads.outputs[place] * loads.output_token_s
        new = gone = 0
        node = self._node_of[place]
        while node <= tree.root:
            tokens = tree.ends[node] - tree.begins[node]
            if self._seen_by[node] != number:
                self._seen_by[node] = number
                new += tokens
            self._below[node] -= 1
            gone += tokens if not self._below[node] else 0
            node = self._upper[node]
        self._compute_s = max(0.0, self._compute_s - gone * loads.prompt_token_s - output_s)
        self._memory_s = max(0.0, self._memory_s - loads.memory_s[place])
        return new * loads.prompt_token_s + output_s


def _paths(tree: PrefixTree) -> tuple[array[int], array[int]]:
    """The node of each request, and the node above each; above the root is one more."""
    num_nodes = len(tree.ends)
    node_of, upper = array("q", bytes(8 * tree.num_requests)), array("q", [num_nodes]) * num_nodes
    for node in range(num_nodes):
        for child in tree.children[node]:
            upper[child] = node
        for place in tree.own(node):
            node_of[place] = node
    return node_of, upper
