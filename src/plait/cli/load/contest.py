"""Contest: the workloads by which two engines are compared, and what may be concluded from their figures.

Owns the four workloads, the order first, other, other, first, and the verdict. Sends nothing and prints nothing.
Invariant: a difference is called one only if it is larger than what an engine differs from itself in this run, and lies
on the same side in every cycle.
"""

from __future__ import annotations

import asyncio
import math
import random
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from plait.cli.load.asks import Answer, Ask, Target
from plait.cli.load.drive import at_times
from plait.cli.load.figures import percentile
from plait.cli.load.words import prompt


@dataclass(frozen=True, slots=True)
class Sizes:
    """Tokens and requests of the workloads."""

    prompt_tokens: int = 128
    output_tokens: int = 128
    medium_prompt: int = 1024
    at_once: int = 16
    crowd_output: int = 64
    streams: int = 4
    stream_output: int = 256
    long_prompt: int = 4096
    begun_pieces: int = 8
    """Of every stream before the long prompt comes."""

    def fitted(self, max_tokens: int | None) -> Sizes:
        """With prompts that an engine of so many tokens holds; None: it did not tell."""
        if max_tokens is None:
            return self
        half = max(1, max_tokens // 2)
        return Sizes(
            prompt_tokens=min(self.prompt_tokens, half // 2),
            output_tokens=max(2, min(self.output_tokens, half // 2)),
            medium_prompt=min(self.medium_prompt, max_tokens - 8),
            at_once=self.at_once,
            crowd_output=max(2, min(self.crowd_output, half // 2)),
            streams=self.streams,
            stream_output=max(2, min(self.stream_output, half)),
            long_prompt=min(self.long_prompt, max_tokens - 8),
            begun_pieces=min(self.begun_pieces, max(1, half // 4)),
        )


QUICK = Sizes(
    prompt_tokens=16,
    output_tokens=8,
    medium_prompt=64,
    at_once=4,
    crowd_output=8,
    streams=2,
    stream_output=16,
    long_prompt=128,
    begun_pieces=2,
)


@dataclass(frozen=True, slots=True)
class Sample:
    """One run of a workload on one engine. `value` None: it gave no figure."""

    value: float | None
    answers: tuple[Answer, ...]

    @property
    def errors(self) -> list[str]:
        return [one.error for one in self.answers if one.error]


Run = Callable[[Target, Sizes, list[str], random.Random], Awaitable[Sample]]


@dataclass(frozen=True, slots=True)
class Workload:
    name: str
    title: Callable[[Sizes], str]
    unit: str
    larger_is_better: bool
    run: Run


async def _one_answer(target: Target, sizes: Sizes, words: list[str], rng: random.Random) -> Sample:
    ask = Ask(prompt(rng, words, sizes.prompt_tokens), sizes.output_tokens)
    (answer,) = await at_times(target, [ask])
    return Sample(None if answer.error or not answer.tpot_s else 1 / answer.tpot_s, (answer,))


async def _one_prompt(target: Target, sizes: Sizes, words: list[str], rng: random.Random) -> Sample:
    (answer,) = await at_times(target, [Ask(prompt(rng, words, sizes.medium_prompt), 1)])
    return Sample(None if answer.error else answer.ttft_s, (answer,))


async def _crowd(target: Target, sizes: Sizes, words: list[str], rng: random.Random) -> Sample:
    asks = [Ask(prompt(rng, words, sizes.prompt_tokens), sizes.crowd_output) for _ in range(sizes.at_once)]
    answers = await at_times(target, asks)
    seconds = max(one.end_s for one in answers) - min(one.due_s for one in answers)
    value = None if any(one.error for one in answers) else sum(one.num_output for one in answers) / seconds
    return Sample(value, tuple(answers))


async def _arrival(target: Target, sizes: Sizes, words: list[str], rng: random.Random) -> Sample:
    """The gaps of streams while a long prompt is read, from its coming to its first token."""
    begun = asyncio.Event()
    left = dict.fromkeys(range(sizes.streams), sizes.begun_pieces)

    def heard(place: int) -> Callable[[], None]:
        def count() -> None:
            left[place] -= 1
            if all(value <= 0 for value in left.values()):
                begun.set()

        return count

    now = time.perf_counter()
    asks = [Ask(prompt(rng, words, sizes.prompt_tokens), sizes.stream_output) for _ in range(sizes.streams)]
    async with asyncio.TaskGroup() as group:
        streams = [group.create_task(target.answer(ask, now, heard(place))) for place, ask in enumerate(asks)]
        # Streams that fail, or are shorter than they should be, must not make the long prompt wait for ever.
        ended = group.create_task(_set_after(begun, streams))
        await begun.wait()
        all_had_begun = all(value <= 0 for value in left.values())
        late = await target.answer(Ask(prompt(rng, words, sizes.long_prompt), 1), time.perf_counter())
        await ended
    answers = [task.result() for task in streams]
    is_whole = all_had_begun and not late.error and not any(one.error for one in answers)
    gaps = gaps_within(answers, late.due_s, late.piece_s[0]) if is_whole and late.piece_s else []
    return Sample(percentile(gaps, 0.99) if gaps else None, (*answers, late))


async def _set_after(event: asyncio.Event, tasks: Sequence[asyncio.Task[Answer]]) -> None:
    await asyncio.wait(tasks)
    event.set()


def gaps_within(answers: Sequence[Answer], start_s: float, end_s: float) -> list[float]:
    """Gaps of answers that any part of the time belongs to."""
    return [
        late - early for one in answers for early, late in pairwise(one.piece_s) if late > start_s and early < end_s
    ]


WORKLOADS = (
    Workload(
        "one answer",
        lambda sizes: f"one answer, {sizes.prompt_tokens} in, {sizes.output_tokens} out: decoded tokens/s",
        "tokens/s",
        True,
        _one_answer,
    ),
    Workload("one prompt", lambda sizes: f"a prompt of {sizes.medium_prompt:,}: TTFT, ms", "ms", False, _one_prompt),
    Workload(
        "many at once",
        lambda sizes: f"{sizes.at_once} at once, {sizes.prompt_tokens} in, {sizes.crowd_output} out: tokens/s",
        "tokens/s",
        True,
        _crowd,
    ),
    Workload(
        "a long prompt arrives",
        lambda sizes: f"{sizes.streams} streams, a prompt of {sizes.long_prompt:,} comes: p99 gap, ms",
        "ms",
        False,
        _arrival,
    ),
)

ORDER = (0, 1, 1, 0)
"""First, other, other, first: a machine that becomes steadily slower or faster does the same to both."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """`ratio` above 1: the first of the two is better; over cycles. None: one of the two gave no figure."""

    first: float | None
    """Median of its samples."""
    other: float | None
    ratio: float | None
    least: float | None
    most: float | None
    spread: float | None
    """An engine by itself, two samples of a cycle: at most so many times as good, or as bad."""
    num_cycles: int

    @property
    def is_difference(self) -> bool:
        """Larger than the spread, and on one side in every cycle."""
        if self.ratio is None or self.least is None or self.most is None or self.spread is None:
            return False
        return (self.ratio > self.spread and self.least > 1) or (self.ratio < 1 / self.spread and self.most < 1)

    def sentence(self) -> str:
        if self.ratio is None or self.spread is None:
            return "not measured"
        if not self.is_difference:
            return "no difference beyond the spread"
        times = self.ratio if self.ratio > 1 else 1 / self.ratio
        return f"the {'first' if self.ratio > 1 else 'other'} is {times:.2f} times as good"


def judge(
    first: Sequence[Sequence[float | None]], other: Sequence[Sequence[float | None]], *, larger_is_better: bool
) -> Verdict:
    """`first` and `other`: two samples of each cycle. A cycle in which a sample is missing counts for nothing."""
    ratios: list[float] = []
    spreads: list[float] = []
    for ours, theirs in zip(first, other, strict=True):
        a, b = [one for one in ours if one], [one for one in theirs if one]
        for pair in (a, b):
            spreads += [abs(math.log(pair[0] / pair[1]))] if len(pair) == 2 else []
        if len(a) == len(b) == 2:
            quotient = statistics.geometric_mean(a) / statistics.geometric_mean(b)
            ratios.append(quotient if larger_is_better else 1 / quotient)
    return Verdict(
        first=_median(first),
        other=_median(other),
        ratio=statistics.median(ratios) if ratios else None,
        least=min(ratios, default=None),
        most=max(ratios, default=None),
        spread=math.exp(max(spreads)) if spreads else None,
        num_cycles=len(ratios),
    )


def _median(cycles: Sequence[Sequence[float | None]]) -> float | None:
    values = [one for cycle in cycles for one in cycle if one]
    return statistics.median(values) if values else None
