"""Pace: what the work of a run costs in time: so much for a step, whatever is in it, and so much for a token.

Owns the stretch that is measured, from the end of the first tokens' coming on: what lies before (a model that warms up,
a queue of others) says nothing about what is to come. How much a step costs beside its tokens depends on model and
machine, so it is fitted to the run itself. A prompt's token and an output token are taken to cost the same: most of
their arithmetic is.
Invariant: the estimate for the measured stretch is the time that it took.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from plait.sched.blend.job import StepCosts

BURST_S = 0.005
"""Tokens of one step are told one after the other; what comes closer together than this came together."""

FIRST_S = 0.1
"""The first tokens' coming lasts no longer than this."""

DOUBT = 0.01
"""How strongly the fit holds on to steps that cost nothing. While all steps hold the same the two costs cannot be told
apart, and need not be.
"""

MOST_STEP_TOKENS = 100.0
"""A step costs no more than so many times the tokens that it held on average."""

FULL_STEPS = 8
"""So many steps in a row say how many tokens a step can hold."""


@dataclass(frozen=True, slots=True)
class Work:
    """Steps, and tokens computed in them."""

    steps: float = 0.0
    tokens: float = 0.0
    prompt_tokens: float = 0.0
    """Of the tokens."""

    def minus(self, other: Work) -> Work:
        return Work(self.steps - other.steps, self.tokens - other.tokens, self.prompt_tokens - other.prompt_tokens)

    def at(self, costs: StepCosts) -> float:
        """Seconds, if it were alone on a machine of these costs."""
        outputs = self.tokens - self.prompt_tokens
        return self.steps * costs.step_s + self.prompt_tokens * costs.prompt_token_s + outputs * costs.output_token_s


class Pace:
    """Told of the tokens of a run as they come."""

    def __init__(self) -> None:
        self._first_s: float | None = None
        self._last_s = self._base_s = 0.0
        self._base = self._done = Work()
        self._fit = _Fit()
        self._most_tokens = 0.0
        """Of a step, as far as a few in a row say."""
        self._recent: list[float] = []

    @property
    def step(self) -> int:
        """The number of the step whose tokens are coming."""
        return int(self._done.steps)

    @property
    def measured(self) -> tuple[Work, float]:
        """What was done since the first tokens came, and the seconds until the last."""
        return self._done.minus(self._base), self._last_s - self._base_s

    @property
    def since_s(self) -> float:
        """When what is measured began."""
        return self._base_s

    def done(self, tokens: int, now: float, prompt_tokens: int = 0) -> None:
        """So many more tokens were computed, of them so many of prompts."""
        is_next = self._first_s is None or now - self._last_s >= BURST_S
        if self._first_s is None:
            self._first_s = now
        elif is_next:
            self._step_ended()
        work = self._done = Work(
            self._done.steps + is_next, self._done.tokens + tokens, self._done.prompt_tokens + prompt_tokens
        )
        self._last_s = now
        if work.steps == 1 and now - self._first_s < FIRST_S:
            self._base, self._base_s = work, now

    def seconds(self, work: Work) -> float | None:
        """How long so much more takes; None: nothing was measured yet."""
        done, took_s = self.measured
        weight = self._fit.step_weight()
        units = weight * done.steps + done.tokens
        if took_s <= 0 or units <= 0:
            return None
        return (weight * self._steps(work) + work.tokens) * took_s / units

    def tokens_s(self, tokens: float) -> float | None:
        """The same of so many tokens at the rate so far, whatever steps they come in."""
        done, took_s = self.measured
        return tokens * took_s / done.tokens if took_s > 0 and done.tokens > 0 else None

    def priced(self, work: Work, costs: StepCosts) -> float | None:
        """The same by the costs of a machine, as much slower or faster than these as it was so far."""
        done, took_s = self.measured
        priced_s = done.at(costs)
        work = Work(self._steps(work), work.tokens, work.prompt_tokens)
        return work.at(costs) * took_s / priced_s if took_s > 0 and priced_s > 0 else None

    def _steps(self, work: Work) -> float:
        """At least so many that its tokens fit into them."""
        return max(work.steps, work.tokens / self._most_tokens if self._most_tokens else 0.0)

    def _step_ended(self) -> None:
        self._recent.append(self._done.tokens)
        if len(self._recent) > FULL_STEPS:
            first = self._recent.pop(0)
            self._most_tokens = max(self._most_tokens, (self._done.tokens - first) / FULL_STEPS)
        if self._done.steps > 1:
            self._fit.add(self._done.minus(self._base), self._last_s - self._base_s)


class _Fit:
    """A least-squares fit of time to steps and tokens, over sums since the beginning: a prompt is counted when its last
    token is computed, which would drown the differences between two samples in noise.
    """

    def __init__(self) -> None:
        self._steps_steps = self._steps_tokens = self._tokens_tokens = self._steps_s = self._tokens_s = 0.0

    def add(self, work: Work, took_s: float) -> None:
        self._steps_steps += work.steps * work.steps
        self._steps_tokens += work.steps * work.tokens
        self._tokens_tokens += work.tokens * work.tokens
        self._steps_s += work.steps * took_s
        self._tokens_s += work.tokens * took_s

    def step_weight(self) -> float:
        """The cost of a step in tokens; 0 as long as nothing else is clear."""
        steps_steps = self._steps_steps * (1 + DOUBT)
        determinant = self._tokens_tokens * steps_steps - self._steps_tokens * self._steps_tokens
        if determinant <= 0:
            return 0.0
        of_token = (self._tokens_s * steps_steps - self._steps_s * self._steps_tokens) / determinant
        of_step = (self._steps_s * self._tokens_tokens - self._tokens_s * self._steps_tokens) / determinant
        if of_step <= 0:
            return 0.0
        most = MOST_STEP_TOKENS * self._tokens_tokens / self._steps_tokens
        return most if of_token <= 0 else min(of_step / of_token, most)


def steps_until_all_ended(rows: int, going_on: Sequence[float], waiting: float, last: Sequence[float]) -> float:
    """Steps until every answer has ended: those that go on, with so many tokens to come, and those that wait for a row:
    `waiting` tokens of many of them, which keep all rows full, and then the `last` ones, one by one. When few are left
    their rows are not taken by others.
    """
    rows = max(rows, len(going_on), 1)
    ends = [*going_on, *[0.0] * (rows - len(going_on))]
    heapq.heapify(ends)
    for tokens in last:
        heapq.heapreplace(ends, ends[0] + tokens)
    return waiting / rows + max(ends)
