"""Feeds: which line of a surveyed job goes to the engine next, and when.

Owns the orders of a job and the state of the one that looks at what runs (`blend`, after BlendServe, ASPLOS 2026,
section 5). Reads no input and talks to no engine: places in a survey come out, places that ended go in.
Invariant: every place comes out once, whatever ends when.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from plait.batch.survey import Survey
from plait.sched.blend.lengths import drawn, guessed
from plait.sched.blend.orders import Order, fixed_order
from plait.sched.blend.scanner import DualScanner, End, Held, end_to_feed
from plait.sched.blend.tree import PrefixTree, build_tree
from plait.sched.blend.units import DensityTree, Loads, cut


class LineOrder(StrEnum):
    """In which the lines of a job are run."""

    INPUT = "input"
    RANDOM = "random"
    DFS = "dfs"
    BFS = "bfs"
    DENSITY = "density"
    BLEND = "blend"


class Lives(Protocol):
    """What a request asks of the device over its life; `plait.cost.lifetime.LifetimeCost` is one."""

    prompt_token_s: float
    output_token_s: float

    def memory_s(self, prompt: int, output: int) -> float: ...

    def mean_held_bytes(self, prompt: int, output: int) -> float: ...


class Feed(Protocol):
    def next(self) -> int | None:
        """A place to be run now; None: something must end first, or nothing is left."""

    @property
    def num_left(self) -> int:
        """Places that did not come out yet."""

    def ended(self, place: int, output_tokens: int) -> None:
        """What came out has its answer."""


@dataclass(frozen=True, slots=True)
class Ordering:
    """How a job's lines are ordered, and what that is judged by: the device, and bytes of its KV memory."""

    order: LineOrder
    lives: Lives
    memory_bytes: float
    seed: int = 0


def feed_of(found: Survey, ordering: Ordering) -> Feed:
    """The feed of a job. Takes the prompts out of the survey, which are large."""
    tree = build_tree(found.prompts)
    found.prompts.clear()
    if ordering.order is LineOrder.BLEND:
        return BlendFeed(found, tree, ordering)
    if ordering.order is LineOrder.INPUT:
        return FixedFeed(range(len(found)))
    dense = dense_tree(found, tree, ordering.lives, found.known)
    return FixedFeed(fixed_order(Order(ordering.order.value), dense, ordering.seed))


def dense_tree(found: Survey, tree: PrefixTree, lives: Lives, known: Mapping[int, int]) -> DensityTree:
    outputs = guessed(tree, known, found.most)
    memory_s = [
        lives.memory_s(prompt, round(output)) for prompt, output in zip(found.prompt_tokens, outputs, strict=True)
    ]
    return DensityTree(tree, Loads(lives.prompt_token_s, lives.output_token_s, outputs, memory_s))


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


class BlendFeed:
    """From both ends of the units, so much of each that what runs has the density of the job.

    A sample runs first. Until it has ended, the others are judged by what is known without it: what they may say.
    """

    def __init__(self, found: Survey, tree: PrefixTree, ordering: Ordering) -> None:
        self._found, self._tree, self._lives = found, tree, ordering.lives
        self._memory_bytes = ordering.memory_bytes
        self._taken = bytearray(len(found))
        self._num_left = len(found)
        self._running: dict[int, tuple[End, float]] = {}
        self._used = [0.0, 0.0]
        self._lengths: dict[int, int] = dict(found.known)
        sample = [place for place in drawn(len(found), ordering.seed) if place not in found.known]
        self._sample = self._in_tree_order(sample)
        self._unknown = set(sample)
        """Of the sample: those that have not ended."""
        self._scanner = self._planned()

    def _in_tree_order(self, places: Sequence[int]) -> Iterator[int]:
        chosen = set(places)
        return iter([place for place in self._tree.order if place in chosen])

    def _planned(self) -> DualScanner:
        dense = dense_tree(self._found, self._tree, self._lives, self._lengths)
        outputs, prompts = dense.loads.outputs, self._found.prompt_tokens
        held = self._lives.mean_held_bytes

        def of(place: int) -> Held:
            prompt, output = prompts[place], outputs[place]
            return Held(held(prompt, round(output)), prompt, output)

        self._held = of
        return DualScanner(dense, cut(dense), of)

    @property
    def num_left(self) -> int:
        return self._num_left

    @property
    def scanner(self) -> DualScanner:
        """Where both ends stand."""
        return self._scanner

    def next(self) -> int | None:
        place = next(self._sample, None)
        if place is not None:
            # It runs beside both ends and is charged to the one that has more room: the right is the one of the long.
            return self._began(place, End.RIGHT)
        allowed = self._scanner.allowances(self._memory_bytes)
        end = end_to_feed((self._used[End.LEFT], self._used[End.RIGHT]), allowed)
        if end is None and not self._running:
            end = End.LEFT
        if end is None:
            return None
        for one in (end, End(1 - end)):
            found = self._next_of(one)
            if found is not None:
                return self._began(found, one)
        return None

    def _next_of(self, end: End) -> int | None:
        """The next place of a side that did not come out already, as one of the sample or before a new plan."""
        while (place := self._scanner.peek(end)) is not None:
            self._scanner.take(end)
            if not self._taken[place]:
                return place
        return None

    def _began(self, place: int, end: End) -> int:
        mean_bytes = self._held(place).mean_bytes
        self._taken[place] = 1
        self._num_left -= 1
        self._running[place] = (end, mean_bytes)
        self._used[end] += mean_bytes
        return place

    def ended(self, place: int, output_tokens: int) -> None:
        end, mean_bytes = self._running.pop(place)
        self._used[end] -= mean_bytes
        if place in self._unknown:
            self._unknown.remove(place)
            self._lengths[place] = output_tokens
            if not self._unknown:
                self._scanner = self._planned()
