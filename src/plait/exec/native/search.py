"""Search: which of several settings is faster than what there is, told from noise.

Owns the order of samples and the rule of acceptance. Knows neither settings nor clocks: it is given a function that
takes one sample. Invariant: a setting is accepted by samples that were not used to pick it, taken in turns with the
present one so that a machine that becomes slower harms both alike.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")

LEAST_GAIN = 1.02
"""Less is not worth an entry, and is within what two builds of one program differ by."""
LEAST_BEST = 1.01


@dataclass(frozen=True, slots=True)
class Effort:
    num_rough: int
    """Samples of every setting; the fastest ones go on."""
    num_finalists: int
    num_pairs: int
    """Turns present, setting, setting, present, each of which gives one ratio."""

    def num_samples(self, num_others: int) -> int:
        """That `best_of` takes for so many settings."""
        return 1 + num_others * (1 + self.num_rough) + min(self.num_finalists, num_others) * 4 * self.num_pairs


QUICK = Effort(num_rough=2, num_finalists=1, num_pairs=5)
FULL = Effort(num_rough=4, num_finalists=2, num_pairs=11)


@dataclass(frozen=True, slots=True)
class Gain:
    """How many times as fast: the median of turns, and a quarter of them below the first, above the last. `noise`: by
    how many times two samples of one and the same setting usually differ.
    """

    low: float
    median: float
    high: float
    noise: float
    best: float
    """Of the shortest samples of both, which other programs disturbed least."""

    @property
    def is_real(self) -> bool:
        return self.median >= max(LEAST_GAIN, self.noise) and self.low > 1.0 and self.best >= LEAST_BEST

    @property
    def is_loss(self) -> bool:
        return self.median <= 1.0 / max(LEAST_GAIN, self.noise) and self.high < 1.0

    def __str__(self) -> str:
        return f"{self.median:.3f} ({self.low:.3f} to {self.high:.3f})"


@dataclass(frozen=True, slots=True)
class Choice(Generic[T]):
    setting: T
    gain: Gain
    present_s: float
    setting_s: float
    """The shortest samples."""


def best_of(present: T, others: Sequence[T], seconds: Callable[[T], float], effort: Effort) -> Choice[T] | None:
    """The one of `others` that does best against `present`, however little that is; None if there are none."""
    if not others:
        return None
    for setting in (present, *others):
        seconds(setting)  # Memory is taken from the system, and caches fill.
    rounds = [[seconds(one) for one in others] for _ in range(effort.num_rough)]
    rough = [min(samples) for samples in zip(*rounds, strict=True)]
    ranked = sorted(range(len(others)), key=lambda place: rough[place])
    finals = [compare(present, others[place], seconds, effort.num_pairs) for place in ranked[: effort.num_finalists]]
    return max(finals, key=lambda choice: choice.gain.median)


def compare(present: T, setting: T, seconds: Callable[[T], float], num_pairs: int) -> Choice[T]:
    """How many times as fast `setting` is, in turns with `present`."""
    ratios: list[float] = []
    noises: list[float] = []
    presents: list[float] = []
    settings: list[float] = []
    for _ in range(num_pairs):
        turn = [seconds(one) for one in (present, setting, setting, present)]
        presents += (turn[0], turn[3])
        settings += (turn[1], turn[2])
        # The shorter of two: what others take of the machine only lengthens a sample.
        ratios.append(min(turn[0], turn[3]) / min(turn[1], turn[2]))
        noises += [abs(math.log(turn[0] / turn[3])), abs(math.log(turn[1] / turn[2]))]
    low, median, high = statistics.quantiles(ratios, n=4, method="inclusive")
    noise = math.exp(statistics.median(noises))
    present_s, setting_s = min(presents), min(settings)
    return Choice(setting, Gain(low, median, high, noise, present_s / setting_s), present_s, setting_s)
