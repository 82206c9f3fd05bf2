"""Workloads W1 to W5: what is asked of an engine, and when.

Owns the definitions. Knows no engine and no clock: arrivals are seconds from the start of the workload.
Invariant: lengths and arrivals depend on the sizes and the seed alone; words are new for every generator.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from .prompts import Word

Draw: TypeAlias = Callable[[int], tuple[Word, ...]]
"""So many new words."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Tokens and requests of the workloads. The defaults are the definition; smaller ones are for trying things out."""

    prompt_tokens: int = 128
    output_tokens: int = 128
    long_prompt_tokens: int = 1024
    num_requests: int = 64
    shared_tokens: int = 768
    own_tokens: int = 32
    shared_output_tokens: int = 64
    median_prompt_tokens: int = 256
    median_output_tokens: int = 64
    """Of W5, whose lengths are at most four times as long."""
    arrivals_per_s: float = 0.474
    arrival_s: float = 60.0
    """How long requests of W5 arrive."""


QUICK_SIZES = Sizes(16, 8, 64, 4, 48, 8, 4, 16, 4, arrivals_per_s=2.0, arrival_s=2.0)


@dataclass(frozen=True, slots=True)
class Ask:
    prompt: tuple[Word, ...]
    output_tokens: int
    arrival_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Workload:
    """`headline` is the figure that engines are compared by; `streams`: its tokens are timed one by one."""

    name: str
    title: str
    headline: str
    unit: str
    larger_is_better: bool
    streams: bool
    asks: Callable[[Sizes, random.Random, Draw], list[Ask]]
    """The generator decides on lengths and arrivals, which are to be equal for all engines; words need not be."""


def one_stream(sizes: Sizes, shapes: random.Random, draw: Draw) -> list[Ask]:
    return [Ask(draw(sizes.prompt_tokens), sizes.output_tokens)]


def long_prompt(sizes: Sizes, shapes: random.Random, draw: Draw) -> list[Ask]:
    return [Ask(draw(sizes.long_prompt_tokens), 1)]


def crowd(sizes: Sizes, shapes: random.Random, draw: Draw) -> list[Ask]:
    return [Ask(draw(sizes.prompt_tokens), sizes.output_tokens) for _ in range(sizes.num_requests)]


def shared_beginning(sizes: Sizes, shapes: random.Random, draw: Draw) -> list[Ask]:
    beginning = draw(sizes.shared_tokens)
    return [Ask(beginning + draw(sizes.own_tokens), sizes.shared_output_tokens) for _ in range(sizes.num_requests)]


def arrivals(sizes: Sizes, shapes: random.Random, draw: Draw) -> list[Ask]:
    """Poisson arrivals, lognormal lengths."""
    asks: list[Ask] = []
    now = shapes.expovariate(sizes.arrivals_per_s)
    while now <= sizes.arrival_s:
        tokens = _lognormal(shapes, sizes.median_prompt_tokens, least=8)
        output = _lognormal(shapes, sizes.median_output_tokens, least=4)
        asks.append(Ask(draw(tokens), output, now))
        now += shapes.expovariate(sizes.arrivals_per_s)
    return asks


def _lognormal(shapes: random.Random, median: int, *, least: int) -> int:
    return max(least, min(4 * median, round(median * math.exp(0.8 * shapes.gauss(0, 1)))))


WORKLOADS = (
    Workload("W1", "one stream", "decode_tokens_per_s", "tokens/s", True, True, one_stream),
    Workload("W2", "one long prompt", "prompt_tokens_per_s", "tokens/s", True, False, long_prompt),
    Workload("W3", "many at once", "output_tokens_per_s", "tokens/s", True, False, crowd),
    Workload("W4", "many with one beginning", "seconds", "s", False, False, shared_beginning),
    Workload("W5", "Poisson arrivals", "ttft_p50_s", "s", False, True, arrivals),
)


def workloads_named(names: str) -> list[Workload]:
    """ "w1,w3" -> W1 and W3; `ValueError` for a name that is none."""
    known = {workload.name: workload for workload in WORKLOADS}
    wanted = [name.strip().upper() for name in names.split(",")]
    unknown = [name for name in wanted if name not in known]
    if unknown:
        raise ValueError(f"{unknown[0]!r} is no workload; choose from {', '.join(known)}")
    return [known[name] for name in wanted]
