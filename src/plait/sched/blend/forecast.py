"""Forecast: how long a job takes in some order, from loads alone.

Owns a run of a job step by step in which a request is no more than its lengths: a step is so many seconds of computing
and so many of cache traffic (BlendServe, ASPLOS 2026, its simulator). There is no engine in it and no text: memory is
`plait.sched.blend.memory`, of means as in the paper or of blocks as in the engine.
Invariant: computing adds up to all tokens less those found again, and traffic to `Lives.memory_s` of every request,
where nobody had to leave and be computed again.

It takes seconds where the engine in simulated time takes an hour.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice

from plait.cost.density import step_s
from plait.sched.blend.feeds import Feed
from plait.sched.blend.job import Lives
from plait.sched.blend.memory import BlockMemory, MeanMemory, Memory
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
    compute_factor: float = 1.0
    memory_factor: float = 1.0
    """How much longer than by the rates of `Lives` computing and traffic take."""
    block_tokens: int = 0
    """Of the cache; 0: there are none, and memory is that of means."""
    in_flight: int = 1
    """Requests that are taken from the feed at once, those that run among them, as far as some wait."""


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
    preempted: int = 0
    """How often somebody had to leave and was computed again."""

    def optimum_s(self, interference: float = 0.0) -> float:
        """If all that was computed and read had overlapped from beginning to end."""
        return step_s(self.compute_s, self.memory_s, interference)


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
    memory: Memory
    if machine.block_tokens:
        memory = BlockMemory(tree, lives, machine.memory_bytes, machine.block_tokens)
    else:
        memory = MeanMemory(tree, lives, machine.memory_bytes)
    return _Running(feed, memory, prompts, outputs, lives, machine).run(watch)


@dataclass(slots=True, eq=False)
class _Row:
    """A sequence in decode. Its traffic in step t is base + growth * t."""

    place: int
    start: int
    end: int
    base_s: float
    growth_s: float
    has_left: bool = False


class _Running:
    def __init__(
        self,
        feed: Feed,
        memory: Memory,
        prompts: Sequence[int],
        outputs: Sequence[int],
        lives: Lives,
        machine: Machine,
    ) -> None:
        self._feed, self._memory, self._prompts, self._outputs = feed, memory, prompts, outputs
        self._lives, self._machine = lives, machine
        self._step = 0
        self._rows: list[_Row] = []
        """The oldest first; some of them may have ended."""
        self._num_rows = 0
        self._base_s = self._growth_s = 0.0
        """Traffic of all of them in step t is base + growth * t."""
        self._ends: list[tuple[int, int, _Row]] = []
        """A heap, by the step of their end and their number."""
        self._num_begun = 0
        self._waiting: deque[int] = deque()
        """Taken from the feed."""
        self._again: deque[int] = deque()
        """Those that had to leave."""
        self._said: dict[int, int] = {}
        """Output tokens that they had."""
        self._prefill: int | None = None
        self._left = 0
        """Tokens of the prompt that is being computed."""
        self._published: list[int] = []
        """Whose prompts this step has computed."""
        self._num_found = self._waited = self._num_preempted = 0

    def run(self, watch: Watch | None) -> Forecast:
        machine, lives = self._machine, self._lives
        seconds = compute_sum = memory_sum = 0.0
        while True:
            self._retire()
            tokens = self._computed()
            if not tokens and not self._num_rows:
                break
            count = self._count(tokens)
            compute = tokens * lives.prompt_token_s + self._num_rows * lives.output_token_s
            # Traffic grows evenly, so that the middle of steps alike stands for all.
            memory = self._base_s + self._growth_s * (self._step + (count - 1) / 2)
            compute_sum += count * compute
            memory_sum += count * memory
            if watch is not None:
                watch(compute, memory, count)
            if machine.tells:
                self._feed.spent(count * compute, count * memory)
            compute = max(compute * machine.compute_factor, machine.weights_s)
            step = step_s(compute, memory * machine.memory_factor, machine.interference)
            seconds += count * (step + machine.step_overhead_s + self._num_rows * machine.row_overhead_s)
            self._step += count
        return Forecast(
            seconds, self._step, compute_sum, memory_sum, self._num_found, self._waited, self._num_preempted
        )

    def _count(self, tokens: int) -> int:
        """Steps that are like the next one. While something is left to feed, or waits, it is asked at every step: what
        it waits for may be traffic.
        """
        if tokens or self._feed.num_left or self._waiting or self._again:
            return 1
        ahead = self._ends[0][0] - self._step
        # Until somebody must leave.
        while ahead > 1 and self._memory.is_short(self._step + ahead):
            ahead //= 2
        return ahead

    def _retire(self) -> None:
        for place in self._published:
            self._memory.computed(place)
        self._published.clear()
        while self._ends and (self._ends[0][0] <= self._step or self._ends[0][2].has_left):
            row = heapq.heappop(self._ends)[2]
            if not row.has_left:
                self._leave(row)
                self._feed.ended(row.place, self._outputs[row.place])
        while self._num_rows > 1 and self._memory.is_short(self._step):
            while self._rows[-1].has_left:
                self._rows.pop()
            youngest = self._rows.pop()
            self._leave(youngest)
            self._said[youngest.place] = self._said.get(youngest.place, 0) + self._step - youngest.start
            self._again.append(youngest.place)
            self._num_preempted += 1
        if not self._num_rows:
            # What rounding left.
            self._base_s = self._growth_s = 0.0
            self._rows.clear()

    def _leave(self, row: _Row) -> None:
        row.has_left = True
        self._num_rows -= 1
        self._base_s -= row.base_s
        self._growth_s -= row.growth_s
        self._memory.end(row.place, self._step)

    def _computed(self) -> int:
        """Prompt tokens of this step. A prompt that ends in it says the first token of its answer there."""
        room = min(self._machine.step_tokens - self._num_rows, self._budget())
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
            self._published.append(self._prefill)
            self._prefill = None
        return tokens

    def _budget(self) -> int:
        """Prompt tokens that the feed wants to have in this step, in whole tiles and at least one of them."""
        memory_s = self._base_s + self._growth_s * self._step
        left_s = self._feed.compute_s(memory_s) - self._num_rows * self._lives.output_token_s
        tiles = min(left_s / self._lives.prompt_token_s, self._machine.step_tokens) // TILE
        return TILE * max(1, int(tiles)) if self._machine.tells else self._machine.step_tokens

    def _lengths(self, place: int) -> tuple[int, int]:
        """What is known of its text, and what it has still to say."""
        said = self._said.get(place, 0)
        return self._prompts[place] + said, self._outputs[place] - said

    def _admit(self) -> bool:
        if self._num_rows >= self._machine.rows or self._memory.is_full:
            self._waited += bool(self._feed.num_left)
            return False
        self._take_from_feed()
        line = self._again or self._waiting
        place = self._first_of(line)
        if place is None:
            return False
        prompt, output = self._lengths(place)
        if not self._memory.admits(place, prompt, self._step):
            self._waited += 1
            return False
        found = self._memory.begin(place, prompt, output, self._step)
        if line is self._waiting:
            self._num_found += found
        line.remove(place)
        self._prefill, self._left = place, prompt - found
        return True

    def _first_of(self, line: deque[int]) -> int | None:
        """Whoever waits for a beginning that is being computed is passed over, as in the engine: one after the other,
        so many of them.
        """
        ahead = islice(line, 2 * self._machine.rows)
        return next((place for place in ahead if not self._memory.is_held(place)), None)

    def _take_from_feed(self) -> None:
        while not self._waiting or len(self._waiting) + self._num_rows < self._machine.in_flight:
            place = self._feed.next()
            if place is None:
                return
            self._waiting.append(place)

    def _decode(self, place: int) -> None:
        """Its steps begin now. Their traffic rises evenly from that of the first to what adds up to the whole."""
        prompt, output = self._lengths(place)
        whole, first = self._lives.memory_s(prompt, output), self._lives.memory_s(prompt, 1)
        start = self._step
        growth = 2 * (whole - first * output) / (output * (output - 1)) if output > 1 else 0.0
        base = (first if output > 1 else whole) - growth * start
        row = _Row(place, start, start + output, base, growth)
        self._num_rows += 1
        self._num_begun += 1
        self._base_s += base
        self._growth_s += growth
        self._rows.append(row)
        heapq.heappush(self._ends, (row.end, self._num_begun, row))
