"""Beside online: an offline job in what online requests leave idle, step by step, from loads alone.

Owns a run in which both kinds share every step of one device: a step is so many seconds of computing and so many of
cache traffic (`plait.sched.blend.forecast` does the same for a job alone). Order, what is idle, and what is kept for a
burst are those that serve (`plait.sched.blend`, `plait.sched.colocation`); there is no engine and no block in it.
Invariants: online rows are in every step, and their prompts go first; what a guarded run adds to a step with online
rows keeps its worst case within their bound on gaps; tokens of the job add up to all of them.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from plait.cost.density import step_s
from plait.sched.blend.feeds import Feed
from plait.sched.blend.forecast import TILE
from plait.sched.blend.job import Lives
from plait.sched.blend.memory import MeanMemory
from plait.sched.blend.tree import PrefixTree
from plait.sched.colocation.demand import OnlineDemand
from plait.sched.colocation.idle import Idle
from plait.sim.arrivals import TraceRow
from plait.sim.samples import Distribution, Samples


@dataclass(frozen=True, slots=True)
class Device:
    """`interference`: of the shorter resource's time, as in `plait.cost.density.step_s`; at worst all of it counts.
    `alone_s`: of a step without online rows, once anybody is online.
    """

    lives: Lives
    memory_bytes: float
    weights_s: float
    step_tokens: int
    interference: float
    gap_s: float
    """Bound on gaps between tokens of online answers."""
    alone_s: float
    longest_prompt: int
    rows: int = 1 << 30


@dataclass(frozen=True, slots=True)
class Rules:
    """`guarded`: steps with online rows keep the bound on gaps; `follows`: the order is told what is idle."""

    guarded: bool = True
    follows: bool = False


@dataclass(frozen=True, slots=True)
class OfflineSide:
    feed: Feed
    tree: PrefixTree
    prompts: Sequence[int]
    outputs: Sequence[int]


@dataclass(frozen=True, slots=True)
class SharedRun:
    seconds: float
    ttft_s: Distribution | None
    gap_s: Distribution | None
    """Between tokens of online answers."""
    online_tokens: int
    found_tokens: int
    retractions: int


@dataclass(slots=True)
class _Prompt:
    arrival_s: float
    left: int
    prompt: int
    output: int


class _Online:
    """Who is online. Its rows have been in as many steps as there were since they began."""

    def __init__(self, arrivals: Iterator[TraceRow], device: Device) -> None:
        self._arrivals, self._device = arrivals, device
        self._next = next(arrivals, None)
        self.queue: deque[_Prompt] = deque()
        self.rows = 0
        self._tokens = 0.0
        """In the caches of all rows."""
        self._ends: list[tuple[int, float]] = []
        """Step, and tokens then. A heap."""
        self._step = 0
        self._read_s = device.lives.memory_s(1024, 1) / 1024
        self._token_bytes = device.lives.mean_held_bytes(1024, 1) / 1024.5
        self.ttft_s, self.gap_s = Samples(), Samples()
        self.num_tokens = 0

    @property
    def is_there(self) -> bool:
        return bool(self.rows or self.queue)

    @property
    def held_bytes(self) -> float:
        begun = self.queue[0].prompt - self.queue[0].left if self.queue else 0
        return (self._tokens + begun) * self._token_bytes

    @property
    def next_s(self) -> float | None:
        return None if self._next is None else self._next.at_s

    def arrive(self, now: float) -> None:
        while self._next is not None and self._next.at_s <= now:
            one = self._next
            self.queue.append(_Prompt(one.at_s, one.num_prompt, one.num_prompt, one.num_output))
            self._next = next(self._arrivals, None)

    def memory_s(self) -> float:
        return self._tokens * self._read_s

    def fitting(self, tokens: int) -> int:
        return min(tokens, sum(one.left for one in self.queue)) if self.queue else 0

    def stepped(self, tokens: int, end_s: float, took_s: float) -> None:
        """Every row has a token more, and so many prompt tokens were computed."""
        self._step += 1
        if self.rows:
            self.gap_s.add(took_s, self.rows)
        self._tokens += self.rows
        self.num_tokens += tokens + self.rows
        while self._ends and self._ends[0][0] <= self._step:
            self.rows -= 1
            self._tokens -= heapq.heappop(self._ends)[1]
        while tokens > 0:
            first = self.queue[0]
            taken = min(tokens, first.left)
            tokens, first.left = tokens - taken, first.left - taken
            if first.left:
                break
            self.queue.popleft()
            self.ttft_s.add(end_s - first.arrival_s)
            if first.output > 1:
                self.rows += 1
                self._tokens += first.prompt
                heapq.heappush(self._ends, (self._step + first.output - 1, first.prompt + first.output - 1.0))


@dataclass(slots=True)
class _Row:
    place: int
    held: float
    begun: float
    """On the job's own clock."""
    base: float
    growth: float


class _Offline:
    """The job. Its rows take turns where not all may be in a step: its clock goes on by the part of them that was."""

    def __init__(self, side: OfflineSide, device: Device) -> None:
        self._side, self._device = side, device
        self._cache = MeanMemory(side.tree, device.lives, device.memory_bytes)
        self.clock = 0.0
        self.used = 0.0
        self.rows = 0
        self._base = self._growth = 0.0
        self._ends: list[tuple[float, int, _Row]] = []
        self._prefill: tuple[int, int, float] | None = None
        """Which, tokens left of its prompt, and what it holds."""
        self._again: list[int] = []
        """Admitted before anybody else: retracted, so that all is computed anew, or too large for what was left."""
        self.num_found = self.num_retracted = 0

    @property
    def has_ended(self) -> bool:
        return not (self.rows or self._prefill or self._again or self._side.feed.num_left)

    @property
    def feed(self) -> Feed:
        return self._side.feed

    def memory_s(self) -> float:
        return self._base + self._growth * self.clock

    def retire(self) -> None:
        while self._ends and self._ends[0][0] <= self.clock + 1e-9:
            row = heapq.heappop(self._ends)[2]
            self._leave(row)
            self._cache.leave(row.place, row.held)
            self.feed.ended(row.place, self._side.outputs[row.place])
        if not self.rows:
            self._base = self._growth = 0.0

    def _leave(self, row: _Row) -> None:
        self.used -= row.held
        self.rows -= 1
        self._base -= row.base
        self._growth -= row.growth

    def retract(self, room: float) -> None:
        """Those that have said least, until the others fit."""
        while self.used > room and self._ends:
            place = max(range(len(self._ends)), key=lambda one: self._ends[one][2].begun)
            row = self._ends.pop(place)[2]
            heapq.heapify(self._ends)
            self._leave(row)
            self._again.append(row.place)
            self.num_retracted += 1

    def take(self, tokens: int, room: float) -> int:
        """Up to so many prompt tokens are computed; how many there are. `room`: what it may hold."""
        left = tokens
        while left > 0:
            if self._prefill is None and not self._admit(room):
                break
            assert self._prefill is not None
            place, to_do, held = self._prefill
            taken = min(left, to_do)
            left -= taken
            if taken < to_do:
                self._prefill = (place, to_do - taken, held)
                break
            self._prefill = None
            self._decode(place, held)
        return tokens - left

    def _admit(self, room: float) -> bool:
        if self.rows >= self._device.rows or self.used >= room:
            return False
        place = self._again.pop() if self._again else self.feed.next()
        if place is None:
            return False
        prompt, output = self._side.prompts[place], self._side.outputs[place]
        held = self._device.lives.mean_held_bytes(prompt, output)
        if self.used and self.used + held > room:
            self._again.append(place)
            return False
        found = self._cache.found(place, prompt, room - self.used)
        self.used += held
        self.num_found += found
        self._prefill = (place, prompt - found, held)
        return True

    def _decode(self, place: int, held: float) -> None:
        prompt, output = self._side.prompts[place], self._side.outputs[place]
        lives = self._device.lives
        whole, first = lives.memory_s(prompt, output), lives.memory_s(prompt, 1)
        growth = 2 * (whole - first * output) / (output * (output - 1)) if output > 1 else 0.0
        row = _Row(place, held, self.clock, (first if output > 1 else whole) - growth * self.clock, growth)
        self.rows += 1
        self._base += row.base
        self._growth += row.growth
        heapq.heappush(self._ends, (self.clock + output, place, row))


class Shared:
    """One run. `offline=None`: online requests alone, until `until_s`; else until the job has ended."""

    def __init__(
        self,
        device: Device,
        arrivals: Iterator[TraceRow],
        offline: OfflineSide | None,
        rules: Rules = Rules(),
        until_s: float = float("inf"),
    ) -> None:
        self._device, self._rules, self._until_s = device, rules, until_s
        self._online = _Online(arrivals, device)
        self._offline = None if offline is None else _Offline(offline, device)
        self._idle = Idle()
        one_more = device.lives.mean_held_bytes(device.longest_prompt, 1)
        self._demand = OnlineDemand(int(device.memory_bytes), int(one_more))
        self._now = 0.0
        self._was_online = False

    def run(self) -> SharedRun:
        while not self._has_ended():
            self._online.arrive(self._now)
            if not self._step():
                moment = self._online.next_s
                assert moment is not None, "a job that neither runs nor has ended"
                self._now = moment
        offline, online = self._offline, self._online
        return SharedRun(
            self._now,
            online.ttft_s.distribution(),
            online.gap_s.distribution(),
            online.num_tokens,
            0 if offline is None else offline.num_found,
            0 if offline is None else offline.num_retracted,
        )

    def _has_ended(self) -> bool:
        return self._now >= self._until_s or (self._offline is not None and self._offline.has_ended)

    def _step(self) -> bool:
        """False: there is nothing to do."""
        device, online, offline = self._device, self._online, self._offline
        lives = device.lives
        is_online = online.is_there
        self._was_online = self._was_online or is_online
        online_rows = online.rows
        own_memory = online.memory_s()
        prompt = online.fitting(self._prompt_tokens(online_rows, own_memory))
        own_compute = prompt * lives.prompt_token_s + online_rows * lives.output_token_s
        compute, memory = own_compute, own_memory
        if offline is not None:
            more = self._beside(offline, compute, memory, device.step_tokens - prompt - online_rows, is_online)
            compute, memory = compute + more[0], memory + more[1]
        if compute <= 0 and memory <= 0:
            return False
        took = step_s(max(compute, device.weights_s), memory, device.interference)
        self._now += took
        if is_online:
            self._idle.spent(self._now, own_compute, own_memory)
            online.stepped(prompt, self._now, took)
        return True

    def _prompt_tokens(self, rows: int, memory: float) -> int:
        """Of online prompts: as many as keep the bound on gaps of those who have begun to speak."""
        device = self._device
        most = device.step_tokens - rows
        if not rows:
            return most
        left_s = device.gap_s - memory - rows * device.lives.output_token_s
        return max(TILE, min(most, int(left_s / device.lives.prompt_token_s)))

    def _beside(
        self, offline: _Offline, compute: float, memory: float, most: int, is_online: bool
    ) -> tuple[float, float]:
        """Computing and traffic that the job adds to the step."""
        device, lives = self._device, self._device.lives
        self._demand.sample(int(self._online.held_bytes), self._now)
        room = device.memory_bytes - self._online.held_bytes
        if self._rules.guarded and self._was_online:
            room = device.memory_bytes - max(self._demand.kept, self._online.held_bytes)
        offline.retract(device.memory_bytes - self._online.held_bytes)
        offline.feed.beside(self._idle.ratio(self._now) if self._rules.follows else 1.0, room)
        limit = float("inf")
        if self._rules.guarded and self._was_online:
            limit = device.gap_s if is_online else device.alone_s
        part = self._part(offline, compute, memory, most, limit)
        decode_s, read_s = part * offline.rows * lives.output_token_s, part * offline.memory_s()
        left = most - round(part * offline.rows)
        slack_s = limit - memory - read_s - (compute + decode_s)
        wanted_s = offline.feed.compute_s(read_s) - decode_s
        tokens = min(left, int(min(slack_s, 1e6) / lives.prompt_token_s)) if slack_s > 0 else 0
        if part >= 1.0 and tokens > 0:
            tiles = max(1, int(min(wanted_s / lives.prompt_token_s, float(left)) // TILE))
            tokens = offline.take(min(tokens, TILE * tiles), room)
        else:
            tokens = 0
        offline.clock += part
        offline.retire()
        compute_s = tokens * lives.prompt_token_s + decode_s
        if compute_s or read_s:
            offline.feed.spent(compute_s, read_s)
        return compute_s, read_s

    def _part(self, offline: _Offline, compute: float, memory: float, most: int, limit: float) -> float:
        """Of the job's rows: as many as fit into a step whose worst case is so long."""
        if not offline.rows:
            return 1.0
        device = self._device
        whole = offline.memory_s() + offline.rows * device.lives.output_token_s
        left_s = limit - memory - max(compute, device.weights_s)
        return max(0.0, min(1.0, left_s / whole if whole else 1.0, most / offline.rows))
