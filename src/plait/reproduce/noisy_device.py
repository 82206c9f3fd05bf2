"""Noisy: a device whose steps take what a roofline says, and then some, as real ones do.

Owns what is added to the prices of `plait.cost.roofline`: noise of every step, and a slowdown of decode beside prompts
that differs from state to state by no rule (MuxWise, ASPLOS 2026, section 3.3: up to 20 % on an A100, erratic). What a
policy believes about such a device it has to learn from samples (`plait.reproduce.profiles`).
Invariant: equal seeds and arguments give equal times; decode beside prompts is at most so much slower as was published,
noise apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import NormalDist

from plait.core.step import StepShape
from plait.cost.calibrated import CalibratedModel
from plait.cost.model import StepPrice
from plait.cost.solo import Sample
from plait.cost.synthetic import NOISE_95

SIGMA = NOISE_95 / NormalDist().inv_cdf(0.975)
_MOST_SIGMAS = 3.0
_NORMAL = NormalDist()
_MASK = (1 << 32) - 1
_SMALL = 2048
"""Smaller sizes are alike: where MuxWise's grid begins."""


class NoisyDevice:
    """Implements `plait.cost.model.CostModel`. `launch_s`: further for each step with prompts; `noise` 0: every step
    takes its mean.
    """

    def __init__(
        self, law: CalibratedModel, worst_slowdown: float, seed: int, launch_s: float = 0.0, noise: float = SIGMA
    ) -> None:
        self._law = law
        self._launch_s = launch_s
        self._seed = seed
        self._noise = noise
        self._cap = worst_slowdown

    def price(self, shape: StepShape, share: int, beside: Sequence[StepShape] = ()) -> StepPrice:
        price = self._law.price(shape, share, beside)
        seconds = price.expected_s
        if not all(chunk.is_decode for chunk in shape.chunks):
            seconds += self._launch_s
        elif beside:
            slowdown = 1.0 + (self._cap - 1.0) * self._erratic(shape, share, beside)
            seconds = max(seconds, slowdown * self._law.price(shape, share).expected_s)
        if self._noise:
            seconds *= 1.0 + self._noise * self._normal(shape, share, beside)
        return replace(price, expected_s=seconds, worst_s=max(price.worst_s, seconds))

    def sample(self, shape: StepShape, share: int, beside: Sequence[StepShape] = ()) -> Sample:
        """One measurement, without what an engine adds to a step."""
        seconds = self.price(shape, share, beside).expected_s - self._law.overhead_s(shape)
        return Sample(shape, share, seconds, tuple(beside))

    def _erratic(self, shape: StepShape, share: int, beside: Sequence[StepShape]) -> float:
        """Between 0 and 1: of the split and of sizes, each to a factor of two."""
        rows = shape.num_tokens
        other = sum(step.num_tokens for step in beside)
        behind = sum(chunk.start for step in beside for chunk in step.chunks)
        context = sum(chunk.start for chunk in shape.chunks) // len(shape.chunks)
        lengths = [(max(_SMALL, size) - 1).bit_length() for size in (other, behind, context)]
        return _uniform(self._seed, share // 4, (rows - 1).bit_length(), *lengths)

    def _normal(self, shape: StepShape, share: int, beside: Sequence[StepShape]) -> float:
        context = sum(chunk.start for chunk in shape.chunks)
        others = [number for step in beside for number in (len(step.chunks), step.num_tokens)]
        part = _uniform(self._seed + 1, share, len(shape.chunks), shape.num_tokens, context, *others)
        return min(_MOST_SIGMAS, max(-_MOST_SIGMAS, _NORMAL.inv_cdf(part)))


def _uniform(*numbers: int) -> float:
    """Strictly between 0 and 1, the same in every process: integers are mixed, not hashed by Python."""
    state = 0x9E3779B9
    for number in numbers:
        state = ((state ^ (number & _MASK)) * 0x85EBCA6B) & _MASK
        state ^= state >> 13
        state = (state * 0xC2B2AE35) & _MASK
        state ^= state >> 16
    return (state + 0.5) / (_MASK + 1)
