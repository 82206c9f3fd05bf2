"""Figures: what answers say about an engine: rates, latencies, goodput.

Owns the arithmetic. docs/guides/benchmark.md defines each figure and the JSON's fields.
Invariant: an engine that answered with errors, or with fewer tokens than asked for, cannot look good: both are counted
beside every figure, and an answer with an error is in no other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from plait.cli.load.asks import Answer

SHOWN_ERRORS = 5


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Seconds; None of all: nothing was measured."""

    p50_s: float
    p90_s: float
    p99_s: float
    max_s: float
    num_values: int


@dataclass(frozen=True, slots=True)
class Targets:
    """What a good answer keeps; None: no target of that kind."""

    ttft_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float | None = None

    @property
    def are_none(self) -> bool:
        return self.ttft_s is None and self.tpot_s is None and self.e2e_s is None

    def kept_by(self, answer: Answer) -> bool:
        pairs = ((self.ttft_s, answer.ttft_s), (self.tpot_s, answer.tpot_s or 0.0), (self.e2e_s, answer.e2e_s))
        return not answer.error and all(
            target is None or (took is not None and took <= target) for target, took in pairs
        )


@dataclass(frozen=True, slots=True)
class Figures:
    seconds: float
    """From the first request's time to the last answer's end."""
    num_requests: int
    num_errors: int
    num_short: int
    """Ended before the tokens that were asked for."""
    num_uncounted: int
    """Answers whose tokens the engine did not tell; pieces stand for them."""
    errors: dict[str, int]
    """The most frequent ones."""
    prompt_tokens: int
    cached_tokens: int | None
    output_tokens: int
    requests_per_s: float
    prompt_tokens_per_s: float
    output_tokens_per_s: float
    ttft: Percentiles | None
    itl: Percentiles | None
    """Of all gaps between pieces."""
    tpot: Percentiles | None
    e2e: Percentiles | None
    goodput_per_s: float | None
    """Requests a second that kept every target; None: there are no targets."""
    good_fraction: float | None

    def json_object(self) -> dict[str, object]:
        return asdict(self)


def percentile(values: Sequence[float], fraction: float) -> float:
    """Between the two nearest values in proportion. Needs one value."""
    ordered = sorted(values)
    place = (len(ordered) - 1) * fraction
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def percentiles(values: Sequence[float]) -> Percentiles | None:
    if not values:
        return None
    return Percentiles(
        percentile(values, 0.5), percentile(values, 0.9), percentile(values, 0.99), max(values), len(values)
    )


def figures_of(answers: Sequence[Answer], targets: Targets | None = None) -> Figures:
    """Of one run."""
    good = [one for one in answers if not one.error]
    seconds = max((one.end_s for one in answers), default=0.0) - min((one.due_s for one in answers), default=0.0)
    per_s = 1.0 / seconds if seconds > 0 else 0.0
    prompt_tokens, output_tokens = sum(one.num_prompt or 0 for one in good), sum(one.num_output for one in good)
    cached = [one.num_cached for one in good if one.num_cached is not None]
    kept = None if targets is None or targets.are_none else sum(targets.kept_by(one) for one in answers)
    return Figures(
        seconds=seconds,
        num_requests=len(answers),
        num_errors=len(answers) - len(good),
        num_short=sum(one.is_short for one in good),
        num_uncounted=sum(not one.is_counted for one in good),
        errors=dict(Counter(one.error for one in answers if one.error).most_common(SHOWN_ERRORS)),
        prompt_tokens=prompt_tokens,
        cached_tokens=sum(cached) if cached else None,
        output_tokens=output_tokens,
        requests_per_s=len(good) * per_s,
        prompt_tokens_per_s=prompt_tokens * per_s,
        output_tokens_per_s=output_tokens * per_s,
        ttft=percentiles([one.ttft_s for one in good if one.ttft_s is not None]),
        itl=percentiles([gap for one in good for gap in one.gaps_s]),
        tpot=percentiles([one.tpot_s for one in good if one.tpot_s is not None]),
        e2e=percentiles([one.e2e_s for one in good]),
        goodput_per_s=None if kept is None else kept * per_s,
        good_fraction=None if kept is None else kept / len(answers) if answers else 0.0,
    )
