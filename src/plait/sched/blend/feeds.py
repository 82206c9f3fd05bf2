"""Feeds: which request of an offline job goes to the engine next, and when.

Owns the orders of a job and the state of the one that looks at what runs (`blend`, after BlendServe, ASPLOS 2026,
section 5). Reads no input and talks to no engine: places in a job come out, places that ended go in.
Invariant: every place comes out once, whatever ends when.
"""

from __future__ import annotations

import math
from array import array
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from plait.sched.blend.job import Lives, OfflineJob, StepCosts
from plait.sched.blend.lengths import SAMPLED, drawn, guessed, guessed_squares, two_lengths
from plait.sched.blend.memory import Beginnings
from plait.sched.blend.orders import Order, fixed_order
from plait.sched.blend.scanner import DualScanner, End, Held
from plait.sched.blend.tree import PrefixTree, build_tree
from plait.sched.blend.units import LOST_SHARE, DensityTree, Loads, cut

FEW = 10
"""When no more than one in so many of the sample goes on, the job is planned by the others: the longest answer of the
sample may take as long as a good part of the job. It is planned again when that has ended, too.
"""


class JobOrder(StrEnum):
    """In which the requests of a job are run."""

    INPUT = "input"
    RANDOM = "random"
    DFS = "dfs"
    BFS = "bfs"
    DENSITY = "density"
    BLEND = "blend"


class Feed(Protocol):
    def next(self) -> int | None:
        """A place to be run now; None: something must go on first, or nothing is left."""

    @property
    def num_left(self) -> int:
        """Places that did not come out yet."""

    def ended(self, place: int, output_tokens: int) -> None:
        """What came out has its answer."""

    def spent(self, compute_s: float, memory_s: float) -> None:
        """A step computed and read for so long. Nobody has to say so."""

    def compute_s(self, memory_s: float) -> float:
        """For how long a step should compute at most that reads for so long."""

    def beside(self, idle_ratio: float, memory_bytes: float | None = None) -> None:
        """Others leave so many seconds of computing idle for each of memory traffic, 1 where nobody else is there; and
        so much of the memory, where that is known.
        """


@dataclass(frozen=True, slots=True)
class Ordering:
    """How a job is ordered, and what that is judged by: the device, and bytes of its KV memory.

    `sampled`: the share that runs first to tell lengths. `lost_share`, `merges`: of the cut into units. `ahead`: so
    many that came out last wait at the engine's door and hold nothing yet, so that it never waits for the next one.
    `holds_once`: what several begin with counts once while any of them runs, as the engine has it, and not for each.
    """

    order: JobOrder
    lives: Lives
    memory_bytes: float
    seed: int = 0
    sampled: float = SAMPLED
    lost_share: float = LOST_SHARE
    merges: bool = True
    ahead: int = 0
    holds_once: bool = False
    costs: Callable[[int], StepCosts] | None = None
    """Of steps, by the tokens that rows have behind them: for who tells how much is left."""


def feed_of(job: OfflineJob, ordering: Ordering, go_on: Callable[[], None] = lambda: None) -> Feed:
    """The feed of a job. Takes the prompts out of it, which are large. `go_on` as `build_tree` calls it."""
    tree = build_tree(job.prompts, go_on)
    job.prompts.clear()
    return feed_over(tree, job, ordering)


def feed_over(tree: PrefixTree, job: OfflineJob, ordering: Ordering, dense: DensityTree | None = None) -> Feed:
    """The same where the tree of its prompts is known; and perhaps what its parts ask for, as `outlook` says it."""
    if ordering.order is JobOrder.BLEND:
        return BlendFeed(job, tree, ordering)
    if ordering.order is JobOrder.INPUT:
        return FixedFeed(range(len(job)))
    dense = dense or outlook(job, tree, ordering.lives, job.known).dense
    return FixedFeed(fixed_order(Order(ordering.order.value), dense, ordering.seed))


@dataclass(frozen=True, slots=True)
class Outlook:
    """A job as it is expected to run: the tree with what it asks for, and the mean square of each answer's length."""

    dense: DensityTree
    squares: Sequence[float]
    lives: Lives
    prompts: Sequence[int]
    spared: Sequence[float] | None = None
    """Bytes of each that others hold too: of its beginnings that several have."""

    def held(self, place: int) -> Held:
        """Of what decodes at some moment: long answers are there more often than short ones."""
        prompt, output = self.prompts[place], self.dense.loads.outputs[place]
        longest, part = two_lengths(output, self.squares[place])
        held = self.lives.mean_held_bytes
        if part == 1.0:
            mean_bytes = held(prompt, round(output))
        else:
            mean_bytes = (part * longest * held(prompt, round(longest)) + (1 - part) * held(prompt, 1)) / output
        return Held(mean_bytes - (self.spared[place] if self.spared else 0.0), prompt, output)


def outlook(
    job: OfflineJob, tree: PrefixTree, lives: Lives, known: Mapping[int, int], *, holds_once: bool = False
) -> Outlook:
    """`known`: output tokens of requests that said so, or that have run. `holds_once`: as in `Ordering`."""
    outputs, squares = guessed(tree, known, job.most), guessed_squares(tree, known, job.most)
    memory_s = [_memory_s(lives, *one) for one in zip(job.prompt_tokens, outputs, squares, strict=True)]
    dense = DensityTree(tree, Loads(lives.prompt_token_s, lives.output_token_s, outputs, memory_s))
    return Outlook(dense, squares, lives, job.prompt_tokens, _spared(tree, lives) if holds_once else None)


def _spared(tree: PrefixTree, lives: Lives) -> list[float]:
    found = [0.0] * tree.num_requests
    shared = array("d", bytes(8 * len(tree.ends)))
    for node in range(tree.root, -1, -1):
        # Parents come first.
        if tree.num_below(node) > 1:
            shared[node] += node_bytes(tree, node, lives)
        for child in tree.children[node]:
            shared[child] = shared[node]
        for request in tree.own(node):
            found[request] = shared[node]
    return found


def node_bytes(tree: PrefixTree, node: int, lives: Lives) -> float:
    """Of its own tokens."""
    begin, end = tree.begins[node], tree.ends[node]
    return (lives.mean_held_bytes(end, 0) if end else 0.0) - (lives.mean_held_bytes(begin, 0) if begin else 0.0)


def _memory_s(lives: Lives, prompt: int, output: float, square: float) -> float:
    longest, part = two_lengths(output, square)
    whole = part * lives.memory_s(prompt, round(longest))
    return whole if part == 1.0 else whole + (1 - part) * lives.memory_s(prompt, 1)


class FixedFeed:
    """Whatever runs."""

    def __init__(self, places: Sequence[int]) -> None:
        self._places = iter(places)
        self._num_left = len(places)

    @property
    def num_left(self) -> int:
        return self._num_left

    def next(self) -> int | None:
        place = next(self._places, None)
        self._num_left -= place is not None
        return place

    def ended(self, place: int, output_tokens: int) -> None:
        """Nothing follows from it."""

    def spent(self, compute_s: float, memory_s: float) -> None:
        """Nothing follows from it."""

    def compute_s(self, memory_s: float) -> float:
        return math.inf

    def beside(self, idle_ratio: float, memory_bytes: float | None = None) -> None:
        """Nothing follows from it."""


class BlendFeed:
    """From both ends of the units, so much of each that what runs has the density of the job.

    A sample runs first. Until most of it has ended, the others are judged by what is known without it: what they may
    say.

    Beside other work the job's density is multiplied by what that leaves idle of computing for each second of traffic:
    M_L rho_L + M_R rho_R = M rho_free. When nobody else is there that is the job's own density again.
    """

    def __init__(self, job: OfflineJob, tree: PrefixTree, ordering: Ordering) -> None:
        self._job, self._tree, self._lives, self._ordering = job, tree, ordering.lives, ordering
        self._memory_bytes = ordering.memory_bytes
        self._taken = bytearray(len(job))
        self._num_left = len(job)
        self._running: dict[int, tuple[End, float]] = {}
        self._used = [0.0, 0.0]
        self._at_the_door: deque[int] = deque()
        """Places that came out last, the oldest first; they are not in `used`."""
        self._beginnings = Beginnings(tree) if ordering.holds_once else None
        self._users = array("q", bytes(8 * len(tree.ends)))
        """Requests in `used` that begin with a node; the side of the first of them has its bytes."""
        self._charged_to: dict[int, tuple[End, float]] = {}
        self._spent: tuple[float, float] | None = None
        self._mix = 1.0
        """Of the job's density: how many times as dense what is idle now wants it."""
        self._owed_s = 0.0
        """Computing that was allowed because of it, beyond that of the job's own density."""
        self._lengths: dict[int, int] = dict(job.known)
        drawn_first = drawn(len(job), ordering.seed, ordering.sampled)
        sample = [place for place in drawn_first if place not in job.known]
        self._sample = self._in_tree_order(sample)
        self._unknown = set(sample)
        """Of the sample: those that have not ended."""
        self._plan_at = (len(sample) // FEW, 0)
        self._scanner = self._planned()

    def _in_tree_order(self, places: Sequence[int]) -> Iterator[int]:
        chosen = set(places)
        return iter([place for place in self._tree.order if place in chosen])

    def _planned(self) -> DualScanner:
        holds_once = self._ordering.holds_once
        found = outlook(self._job, self._tree, self._lives, self._lengths, holds_once=holds_once)
        self._held = found.held
        units = cut(found.dense, lost_share=self._ordering.lost_share, merges=self._ordering.merges)
        scanner = DualScanner(found.dense, units, found.held)
        self._right_bytes = scanner.lasting_part(self._memory_bytes)
        return scanner

    @property
    def num_left(self) -> int:
        return self._num_left

    @property
    def _is_sampling(self) -> bool:
        """Lengths are hardly known yet."""
        return len(self._unknown) > self._plan_at[0]

    @property
    def scanner(self) -> DualScanner:
        """Where both ends stand."""
        return self._scanner

    def next(self) -> int | None:
        place = next(self._sample, None)
        if place is not None:
            # It runs beside both ends and is charged to the one that has more room: the right is the one of the long.
            return self._began(place, End.RIGHT)
        end = self._end_to_feed()
        if end is None and not self._running:
            end = End.LEFT if self._peek(End.LEFT) is not None else End.RIGHT
        if end is None or (place := self._peek(end)) is None:
            return None
        self._scanner.take(end)
        return self._began(place, end)

    def _end_to_feed(self) -> End | None:
        """The side that gets its next request now; None: both have their part.

        The right goes first, and stays within its part: its requests are the longest, and what one of them has too much
        is gone for as long as it lives. The left is fed while it is below its part: that of the side that turns over
        quickly is often smaller than one request. Where steps keep to `compute_s`, that bounds it instead, and whatever
        fits into memory may come.
        """
        parts = self._scanner.split(self._memory_bytes, self._scanner.root_density * self._mix)
        used = self._used
        right, left = self._peek(End.RIGHT), self._peek(End.LEFT)
        if right is not None:
            most = min(parts[End.RIGHT], self._right_bytes)
            if used[End.RIGHT] <= 0 or used[End.RIGHT] + self._held(right).mean_bytes <= most:
                return End.RIGHT
        if left is None:
            return None
        if self._spent is None or right is None or self._is_sampling:
            return End.LEFT if used[End.LEFT] < parts[End.LEFT] else None
        fits = sum(used) + self._held(left).mean_bytes <= self._memory_bytes or used[End.LEFT] <= 0
        return End.LEFT if fits else None

    def spent(self, compute_s: float, memory_s: float) -> None:
        before = self._spent or (0.0, 0.0)
        self._spent = (before[0] + compute_s, before[1] + memory_s)
        self._owed_s += (self._mix - 1.0) * self._scanner.root_density * memory_s

    def compute_s(self, memory_s: float) -> float:
        """C_X of the paper as what is missing: computing comes no further than traffic has, in the job's proportion,
        whatever lengths were guessed and however full memory is.
        """
        if self._is_sampling or self._scanner.unit(End.RIGHT) is None:
            return math.inf
        compute_s, read_s = self._spent or (0.0, 0.0)
        due_s = self._scanner.root_density * (read_s + self._mix * memory_s)
        return due_s + self._owed_s - compute_s

    def beside(self, idle_ratio: float, memory_bytes: float | None = None) -> None:
        if memory_bytes is not None and memory_bytes != self._memory_bytes:
            self._memory_bytes = memory_bytes
            self._right_bytes = self._scanner.lasting_part(memory_bytes)
        self._mix = idle_ratio

    def _peek(self, end: End) -> int | None:
        """The next place of a side that did not come out already, as one of the sample or before a new plan."""
        while (place := self._scanner.peek(end)) is not None and self._taken[place]:
            self._scanner.take(end)
        return place

    def _began(self, place: int, end: End) -> int:
        mean_bytes = self._held(place).mean_bytes
        self._taken[place] = 1
        self._num_left -= 1
        self._running[place] = (end, mean_bytes)
        self._at_the_door.append(place)
        if len(self._at_the_door) > self._ordering.ahead:
            self._enters(self._at_the_door.popleft())
        return place

    def _enters(self, place: int) -> None:
        end, held = self._running[place]
        self._used[end] += held
        for node in self._shared(place):
            if not self._users[node]:
                size = node_bytes(self._tree, node, self._lives)
                self._charged_to[node] = (end, size)
                self._used[end] += size
            self._users[node] += 1

    def _leaves(self, place: int, end: End, held: float) -> None:
        self._used[end] -= held
        for node in self._shared(place):
            self._users[node] -= 1
            if not self._users[node]:
                charged, size = self._charged_to.pop(node)
                self._used[charged] -= size

    def _shared(self, place: int) -> tuple[int, ...]:
        return () if self._beginnings is None else self._beginnings.shared_by(place, root=True)

    def ended(self, place: int, output_tokens: int) -> None:
        end, mean_bytes = self._running.pop(place)
        if place in self._at_the_door:
            self._at_the_door.remove(place)
        else:
            self._leaves(place, end, mean_bytes)
        if place in self._unknown:
            self._unknown.remove(place)
            self._lengths[place] = output_tokens
            if len(self._unknown) in self._plan_at:
                self._scanner = self._planned()
