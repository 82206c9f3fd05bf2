"""Memory of a forecast: what runs holds of it, and which beginnings are still there to be found.

Owns two views of one memory. `MeanMemory` is that of BlendServe's cost model (ASPLOS 2026, section 4): no blocks, every
request holds what it holds on average over its life. `BlockMemory` is that of the engine in small: whole blocks, a
beginning that several share is there once, answers grow, and what nobody uses goes oldest first, the ends of prompts
before their beginnings.
Invariant: what is in use and what is kept for later never exceed the memory together, but for the request in it alone.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import Protocol

from plait.sched.blend.job import Lives
from plait.sched.blend.tree import PrefixTree


class Memory(Protocol):
    @property
    def is_full(self) -> bool:
        """Nobody else is asked for."""

    def admits(self, place: int, prompt: int, step: int) -> bool:
        """Whether a request whose known text has so many tokens may begin at this step."""

    def is_held(self, place: int) -> bool:
        """Whether somebody is computing what it begins with, so that it waits and others go first."""

    def computed(self, place: int) -> None:
        """The prompt of a request that began is computed, and can be found."""

    def begin(self, place: int, prompt: int, output: int, step: int) -> int:
        """Tokens of it that need not be computed."""

    def end(self, place: int, step: int) -> None:
        """What it held may be thrown away."""

    def is_short(self, step: int) -> bool:
        """Whether somebody must leave: answers have grown beyond what there is."""


class Beginnings:
    """The nodes of a prefix tree that each request passes, and which of them several do."""

    def __init__(self, tree: PrefixTree) -> None:
        num_nodes = len(tree.ends)
        self.begins, self.ends, self.root = tree.begins, tree.ends, tree.root
        self._upper = array("q", [num_nodes]) * num_nodes
        self._node_of = array("q", bytes(8 * tree.num_requests))
        for node in range(num_nodes):
            for child in tree.children[node]:
                self._upper[child] = node
            for request in tree.own(node):
                self._node_of[request] = node
        # A node that one request alone goes through is nobody's beginning.
        self._is_shared = bytearray(tree.num_below(node) > 1 for node in range(num_nodes))
        self._paths: dict[int, tuple[int, ...]] = {}
        """By the node where it ends, the shared ones of a path that was asked for, with the root."""

    def shared_by(self, place: int, *, root: bool) -> tuple[int, ...]:
        """From the deepest on, the root only if asked for."""
        end = self._node_of[place]
        if (path := self._paths.get(end)) is None:
            path = self._paths[end] = tuple(self._up_from(end))
        return path if root or not path or path[-1] != self.root else path[:-1]

    def _up_from(self, node: int) -> Iterator[int]:
        while node < self.root:
            if self._is_shared[node]:
                yield node
            node = self._upper[node]
        if self._is_shared[self.root]:
            yield self.root


class MeanMemory:
    """Which beginnings are still there: those since whose last use less was left behind than memory has room for."""

    def __init__(self, tree: PrefixTree, lives: Lives, memory_bytes: float) -> None:
        self._beginnings = Beginnings(tree)
        self._lives, self._memory_bytes = lives, memory_bytes
        self._used = self._left_behind = 0.0
        self._held: dict[int, float] = {}
        self._used_at = array("d", [float("-inf")]) * len(tree.ends)

    @property
    def is_full(self) -> bool:
        return self._used >= self._memory_bytes

    def admits(self, place: int, prompt: int, step: int) -> bool:
        return True

    def is_short(self, step: int) -> bool:
        return False

    def is_held(self, place: int) -> bool:
        return False

    def computed(self, place: int) -> None:
        """Whatever began is there at once."""

    def begin(self, place: int, prompt: int, output: int, step: int) -> int:
        found = self.found(place, prompt, self._memory_bytes - self._used)
        self._held[place] = self._lives.mean_held_bytes(prompt, output)
        self._used += self._held[place]
        return found

    def end(self, place: int, step: int) -> None:
        held = self._held.pop(place)
        self._used -= held
        self.leave(place, held)

    def found(self, place: int, prompt: int, room_bytes: float) -> int:
        """Tokens of a prompt that begins now and need not be computed; all its beginnings are in use from now on."""
        beginnings, found = self._beginnings, 0
        since = self._left_behind - room_bytes
        for node in beginnings.shared_by(place, root=False):
            if not found and self._used_at[node] >= since:
                found = beginnings.ends[node]
            self._used_at[node] = self._left_behind
        # The last token is always computed: it says the first of the answer.
        return min(found or beginnings.ends[beginnings.root], prompt - 1)

    def leave(self, place: int, held_bytes: float) -> None:
        self._left_behind += held_bytes
        for node in self._beginnings.shared_by(place, root=False):
            self._used_at[node] = self._left_behind


class BlockMemory:
    """`block_tokens` in a block. An answer is taken to grow evenly, and to waste half a block."""

    def __init__(self, tree: PrefixTree, lives: Lives, memory_bytes: float, block_tokens: int) -> None:
        self._beginnings = Beginnings(tree)
        self._lives, self._memory_bytes, self._size = lives, memory_bytes, block_tokens
        num_nodes = len(tree.ends)
        self._begins = array("q", (begin // block_tokens * block_tokens for begin in tree.begins))
        self._ends = array("q", (end // block_tokens * block_tokens for end in tree.ends))
        """Tokens of whole blocks before and up to the end of each node."""
        self._blocks = array("q", (end - begin for begin, end in zip(self._begins, self._ends, strict=True)))
        for node in range(num_nodes):
            self._blocks[node] //= block_tokens
        self._block_bytes = lives.mean_held_bytes(block_tokens, 0)
        self._sizes: dict[int, float] = {}
        """Bytes of nodes that were asked for."""
        self._users = array("q", bytes(8 * num_nodes))
        self._kept = array("q", bytes(8 * num_nodes))
        """Blocks of a node that are there although nobody uses it."""
        self._unused: tuple[dict[int, float], dict[int, float]] = ({}, {})
        """Bytes of what nobody uses, the oldest first: what one request alone has had, nodes and ~places, and nodes
        that were found again, which go when nothing else is left.
        """
        self._num_uses = array("q", bytes(8 * num_nodes))
        self._has_tail = bytearray(num_nodes)
        """Whether somebody filled the block in which the node ends, so that its beginning can be copied."""
        self._unused_bytes = self._shared_bytes = self._own_bytes = 0.0
        self._growth = self._offset = 0.0
        """What answers have grown in step t: growth * t - offset."""
        self._computing: dict[int, int] = {}
        """Nodes that a request began to compute, and which."""
        self._running: dict[int, tuple[Sequence[int], float, float, int]] = {}
        """Beginnings in use, own bytes at the start, growth in a step, and the step when it began."""

    def _held(self, tokens: int) -> float:
        return self._lives.mean_held_bytes(tokens, 0) if tokens else 0.0

    def _node_bytes(self, node: int) -> float:
        if (size := self._sizes.get(node)) is None:
            size = self._sizes[node] = self._held(self._ends[node]) - self._held(self._begins[node])
        return size

    def _used(self, step: int) -> float:
        return self._shared_bytes + self._own_bytes + self._growth * step - self._offset

    @property
    def is_full(self) -> bool:
        return False

    def is_short(self, step: int) -> bool:
        return len(self._running) > 1 and self._used(step) > self._memory_bytes

    def admits(self, place: int, prompt: int, step: int) -> bool:
        """All of its text, and a block more for everybody."""
        if not self._running:
            return True
        nodes = self._beginnings.shared_by(place, root=True)
        whole = self._held(-(-prompt // self._size) * self._size)
        in_use = sum(self._node_bytes(node) for node in nodes if self._users[node])
        growing = (len(self._running) + 1) * self._block_bytes
        return self._used(step) + whole - in_use + growing <= self._memory_bytes

    def is_held(self, place: int) -> bool:
        nodes = self._beginnings.shared_by(place, root=True)
        return any(self._blocks[node] and node in self._computing for node in nodes)

    def computed(self, place: int) -> None:
        for node in self._running[place][0] if place in self._running else ():
            if self._computing.get(node) == place:
                del self._computing[node]

    def begin(self, place: int, prompt: int, output: int, step: int) -> int:
        nodes = self._beginnings.shared_by(place, root=True)
        found = self._found(nodes, prompt)
        for node in nodes:
            if found < self._ends[node]:
                self._computing.setdefault(node, place)
            if not self._users[node]:
                self._unused_bytes -= self._unused[self._class(node)].pop(node, 0.0)
                self._shared_bytes += self._node_bytes(node)
                self._kept[node] = self._blocks[node]
            self._users[node] += 1
            self._num_uses[node] += 1
            if prompt + output > self._ends[node] + self._size:
                self._has_tail[node] = 1
        shared = self._ends[nodes[0]] if nodes else 0
        own = self._held(prompt) - self._held(min(shared, prompt)) + self._block_bytes / 2
        grows = (self._held(prompt + output) - self._held(prompt)) / output
        self._running[place] = (nodes, own, grows, step)
        self._own_bytes += own
        self._growth += grows
        self._offset += grows * step
        self._make_room(step)
        return found

    def end(self, place: int, step: int) -> None:
        self.computed(place)
        nodes, own, grows, began = self._running.pop(place)
        self._own_bytes -= own
        self._growth -= grows
        self._offset -= grows * began
        self._leave(~place, own + grows * (step - began))
        for node in nodes:
            self._users[node] -= 1
            if not self._users[node]:
                size = self._node_bytes(node)
                self._shared_bytes -= size
                self._leave(node, size)
        if not self._running:
            # What rounding left.
            self._own_bytes = self._growth = self._offset = 0.0
        self._make_room(step)

    def _found(self, nodes: Sequence[int], prompt: int) -> int:
        tokens = 0
        for node in reversed(nodes):
            blocks = self._blocks[node] if self._users[node] else self._kept[node]
            tokens = self._begins[node] + blocks * self._size
            if blocks < self._blocks[node]:
                break
            if self._has_tail[node]:
                tokens = self._beginnings.ends[node]
        # The last token is always computed: it says the first of the answer.
        return min(tokens, prompt - 1)

    def _class(self, what: int) -> int:
        return int(what >= 0 and self._num_uses[what] > 1)

    def _leave(self, what: int, size: float) -> None:
        if size > 0:
            self._unused[self._class(what)][what] = size
            self._unused_bytes += size

    def _make_room(self, step: int) -> None:
        room = max(0.0, self._memory_bytes - self._used(step))
        for unused in self._unused:
            while self._unused_bytes > room and unused:
                what, size = next(iter(unused.items()))
                blocks = -(-(self._unused_bytes - room) // self._block_bytes)
                if what >= 0 and blocks < self._kept[what]:
                    # From its end on, so that what is left can be found.
                    gone = size * blocks / self._kept[what]
                    self._kept[what] -= int(blocks)
                    unused[what] -= gone
                    self._unused_bytes -= gone
                    return
                self._unused_bytes -= unused.pop(what)
                if what >= 0:
                    self._kept[what] = 0
