"""Figures: what a workload's answers say about an engine.

Owns the arithmetic from timestamps to rates and percentiles. Times are seconds on one clock, the client's.
Invariant: an engine that answered less than it was asked, or with errors, cannot look good: both are figures too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .workloads import Workload


@dataclass(frozen=True, slots=True)
class Answer:
    """`token_s`: when pieces of output came, for workloads that stream. `due_s`: when the request was to be sent."""

    due_s: float
    token_s: tuple[float, ...]
    end_s: float
    num_prompt: int
    num_output: int
    wanted_output: int
    error: str = ""


@dataclass(frozen=True, slots=True)
class Figures:
    values: dict[str, float]
    num_errors: int
    num_short: int
    """Requests that were answered with fewer tokens than they asked for."""
    first_error: str


def percentile(values: Sequence[float], fraction: float) -> float:
    """Between the two nearest values in proportion; 0 for no values."""
    if not values:
        return 0.0
    ordered = sorted(values)
    place = (len(ordered) - 1) * fraction
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def figures_of(workload: Workload, answers: Sequence[Answer]) -> Figures:
    good = [one for one in answers if not one.error]
    errors = [one.error for one in answers if one.error]
    short = sum(one.num_output < one.wanted_output for one in answers)
    values = _rates(good) if good else {}
    if workload.streams:
        values |= _latencies([one for one in good if one.token_s])
    return Figures(values, len(errors), short, errors[0] if errors else "")


def _rates(answers: Sequence[Answer]) -> dict[str, float]:
    seconds = max(one.end_s for one in answers) - min(one.due_s for one in answers)
    num_prompt, num_output = sum(one.num_prompt for one in answers), sum(one.num_output for one in answers)
    return {
        "seconds": seconds,
        "prompt_tokens_per_s": num_prompt / seconds,
        "output_tokens_per_s": num_output / seconds,
        "total_tokens_per_s": (num_prompt + num_output) / seconds,
    }


def _latencies(answers: Sequence[Answer]) -> dict[str, float]:
    ttft = [one.token_s[0] - one.due_s for one in answers]
    several = [one for one in answers if one.num_output > 1 and one.token_s[-1] > one.token_s[0]]
    tpot = [(one.token_s[-1] - one.token_s[0]) / (one.num_output - 1) for one in several]
    gaps = [late - early for one in answers for early, late in zip(one.token_s, one.token_s[1:], strict=False)]
    values = {
        "ttft_p50_s": percentile(ttft, 0.5),
        "ttft_p99_s": percentile(ttft, 0.99),
        "tpot_p50_s": percentile(tpot, 0.5),
        "tpot_p99_s": percentile(tpot, 0.99),
        "itl_p99_s": percentile(gaps, 0.99),
    }
    if values["tpot_p50_s"]:
        values["decode_tokens_per_s"] = 1 / values["tpot_p50_s"]
    return values
