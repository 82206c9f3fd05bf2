"""Forecast: how long a job takes in some order, from loads alone.

Owns a run of a job step by step in which a request is no more than its lengths: a step is so many seconds of computing
and so many of cache traffic (BlendServe, ASPLOS 2026, its simulator). There is no engine and no block in it: memory is
what requests hold on average over their lives, prefixes are found again while what came since fits beside what runs.
Invariant: computing adds up to all tokens less those found again, and traffic to `Lives.memory_s` of every request.

It takes seconds where the engine in simulated time takes an hour, and knows less: nobody is preempted, no block is
partly filled, and a request is admitted by what it will really hold.
"""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from plait.cost.density import step_s
from plait.sched.blend.feeds import Feed
from plait.sched.blend.job import Lives
from plait.sched.blend.tree import PrefixTree

TILE = 128
"""Tokens in whose multiples products are computed."""

Watch = Callable[[float, float, int], None]
"""Told of steps: seconds of computing and of traffic in each, and how many alike."""


@dataclass(frozen=True, slots=True)
class Machine:
    """Where a job runs. `interference`: of a step, how much of the shorter resource's time is added to that of the
    longer one; 1: one after the other, as in an engine whose steps are fused; 0: nothing (`plait.cost.density.step_s`).
    """

    memory_bytes: float
    """For the cache of what runs."""
    step_tokens: int
    interference: float = 1.0
    rows: int = 1 << 30
    tells: bool = True
    """Whether the feed is told what every step spent."""
    weights_s: float = 0.0
    """Reading all weights once; no step computes for a shorter time."""
    step_overhead_s: float = 0.0
    row_overhead_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Forecast:
    seconds: float
    steps: int
    compute_s: float
    """All computing that was done."""
    memory_s: float
    found_tokens: int
    """Of prompts, not computed because they were in the cache."""
    waited_steps: int
    """In which nothing more could be admitted for want of memory."""

    def optimum_s(self, interference: float = 0.0) -> float:
        """If all that was computed and read had overlapped from beginning to end."""
        return step_s(self.compute_s, self.memory_s, interference)


class PrefixCache:
    """Which beginnings are still there: those since whose last use less was left behind than memory has room for."""

    def __init__(self, tree: PrefixTree) -> None:
        num_nodes = len(tree.ends)
        self._ends = tree.ends
        self._upper = array("q", [num_nodes]) * num_nodes
        self._node_of = array("q", bytes(8 * tree.num_requests))
        for node in range(num_nodes):
            for child in tree.children[node]:
                self._upper[child] = node
            for request in tree.own(node):
                self._node_of[request] = node
        self._root = tree.root
        # A node that one request alone goes through is nobody's beginning.
        self._is_shared = bytearray(tree.num_below(node) > 1 for node in range(num_nodes))
        self._left_behind = 0.0
        self._used_at = array("d", [float("-inf")]) * num_nodes

    def found(self, request: int, prompt: int, room_bytes: float) -> int:
        """Tokens of a prompt that begins now and need not be computed; all its beginnings are in use from now on."""
        node, found = self._node_of[request], 0
        since = self._left_behind - room_bytes
        while node != self._root:
            if self._is_shared[node]:
                if not found and self._used_at[node] >= since:
                    found = self._ends[node]
                self._used_at[node] = self._left_behind
            node = self._upper[node]
        # The last token is always computed: it says the first of the answer.
        return min(found or self._ends[self._root], prompt - 1)

    def leave(self, request: int, held_bytes: float) -> None:
        """It has ended, and what it held may be thrown away."""
        node = self._node_of[request]
        self._left_behind += held_bytes
        while node != self._root:
            if self._is_shared[node]:
                self._used_at[node] = self._left_behind
            node = self._upper[node]


def forecast(
    feed: Feed,
    tree: PrefixTree,
    prompts: Sequence[int],
    outputs: Sequence[int],
    lives: Lives,
    machine: Machine,
    watch: Watch | None = None,
) -> Forecast:
    """Run a job whose answers have `outputs` tokens, which the feed is told of as they end."""
    return _Running(feed, PrefixCache(tree), prompts, outputs, lives, machine).run(watch)


class _Running:
    def __init__(
        self,
        feed: Feed,
        cache: PrefixCache,
        prompts: Sequence[int],
        outputs: Sequence[int],
        lives: Lives,
        machine: Machine,
    ) -> None:
        self._feed, self._cache, self._prompts, self._outputs = feed, cache, prompts, outputs
        self._lives, self._machine = lives, machine
        self._step = 0
        self._used = 0.0
        self._rows = 0
        """Sequences in decode."""
        self._base_s = self._growth_s = 0.0
        """Traffic of all of them in step t is base + growth * t."""
        self._ends: list[tuple[int, int, float, float, float]] = []
        """When, which, what it holds, and its part of base and growth. A heap."""
        self._prefill: int | None = None
        self._left = 0
        """Tokens of the prompt that is being computed."""
        self._held = 0.0
        """By it."""
        self._num_found = self._waited = 0

    def run(self, watch: Watch | None) -> Forecast:
        machine, lives = self._machine, self._lives
        seconds = compute_sum = memory_sum = 0.0
        while True:
            self._retire()
            tokens = self._computed()
            if not tokens and not self._rows:
                break
            # While something is left to feed, it is asked at every step: what it waits for may be traffic.
            count = 1 if tokens or self._feed.num_left else self._ends[0][0] - self._step
            compute = tokens * lives.prompt_token_s + self._rows * lives.output_token_s
            # Traffic grows evenly, so that the middle of steps alike stands for all.
            memory = self._base_s + self._growth_s * (self._step + (count - 1) / 2)
            compute_sum += count * compute
            memory_sum += count * memory
            if watch is not None:
                watch(compute, memory, count)
            if machine.tells:
                self._feed.spent(count * compute, count * memory)
            compute = max(compute, machine.weights_s)
            step = step_s(compute, memory, machine.interference)
            seconds += count * (step + machine.step_overhead_s + self._rows * machine.row_overhead_s)
            self._step += count
        return Forecast(seconds, self._step, compute_sum, memory_sum, self._num_found, self._waited)

    def _retire(self) -> None:
        while self._ends and self._ends[0][0] <= self._step:
            _, place, held, base, growth = heapq.heappop(self._ends)
            self._used -= held
            self._rows -= 1
            self._base_s -= base
            self._growth_s -= growth
            self._cache.leave(place, held)
            self._feed.ended(place, self._outputs[place])
        if not self._rows:
            # What rounding left.
            self._base_s = self._growth_s = 0.0

    def _computed(self) -> int:
        """Prompt tokens of this step. A prompt that ends in it says the first token of its answer there."""
        room = min(self._machine.step_tokens - self._rows, self._budget())
        tokens = 0
        while room > 0:
            if self._prefill is None and not self._admit():
                break
            assert self._prefill is not None
            now = min(room, self._left)
            room, tokens, self._left = room - now, tokens + now, self._left - now
            if self._left:
                break
            self._decode(self._prefill)
            self._prefill = None
        return tokens

    def _budget(self) -> int:
        """Prompt tokens that the feed wants to have in this step, in whole tiles and at least one of them."""
        memory_s = self._base_s + self._growth_s * self._step
        left_s = self._feed.compute_s(memory_s) - self._rows * self._lives.output_token_s
        tiles = min(left_s / self._lives.prompt_token_s, self._machine.step_tokens) // TILE
        return TILE * max(1, int(tiles)) if self._machine.tells else self._machine.step_tokens

    def _admit(self) -> bool:
        machine = self._machine
        if self._used >= machine.memory_bytes or self._rows >= machine.rows:
            self._waited += bool(self._feed.num_left)
            return False
        place = self._feed.next()
        if place is None:
            return False
        prompt, output = self._prompts[place], self._outputs[place]
        found = self._cache.found(place, prompt, machine.memory_bytes - self._used)
        self._held = self._lives.mean_held_bytes(prompt, output)
        self._used += self._held
        self._num_found += found
        self._prefill, self._left = place, prompt - found
        return True

    def _decode(self, place: int) -> None:
        """Its steps begin now. Their traffic rises evenly from that of the first to what adds up to the whole."""
        prompt, output = self._prompts[place], self._outputs[place]
        whole, first = self._lives.memory_s(prompt, output), self._lives.memory_s(prompt, 1)
        start = self._step
        growth = 2 * (whole - first * output) / (output * (output - 1)) if output > 1 else 0.0
        base = (first if output > 1 else whole) - growth * start
        self._rows += 1
        self._base_s += base
        self._growth_s += growth
        heapq.heappush(self._ends, (start + output, place, self._held, base, growth))
