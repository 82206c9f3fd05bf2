"""Lengths: lognormal token counts cut at both ends, fitted to a published least, mean and most.

Owns the fit in closed form. Invariant: the mean of the cut distribution is the published one, within 1e-6 of it.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from plait.core.errors import InvariantError

LONGEST = 131_072
"""Where nothing is published."""
Z_MOST = 3.0902
"""Standard deviations below which 999 of 1,000 draws lie: about one request in 1,000 reaches the published most."""


@dataclass(frozen=True, slots=True)
class CutLognormal:
    """exp(mu + sigma z), cut to [least, most]."""

    mu: float
    sigma: float
    least: int
    most: int

    def draw(self, rng: random.Random) -> int:
        return max(self.least, min(self.most, round(rng.lognormvariate(self.mu, self.sigma))))

    @property
    def mean(self) -> float:
        """Of the cut distribution, before rounding."""
        if self.sigma == 0:
            return max(self.least, min(self.most, math.exp(self.mu)))
        low, high = ((math.log(edge) - self.mu) / self.sigma for edge in (self.least, self.most))
        inside = math.exp(self.mu + self.sigma**2 / 2) * (_below(high - self.sigma) - _below(low - self.sigma))
        return self.least * _below(low) + inside + self.most * (1 - _below(high))


def fitted(least: int, mean: float, most: int, sigma: float | None = None) -> CutLognormal:
    """The cut lognormal with this mean. `sigma` None: the one with which the most lies `Z_MOST` deviations out."""
    if not 1 <= least <= mean <= most:
        raise InvariantError(f"a mean of {mean} does not lie between {least} and {most}")
    if sigma is None:
        # ln(most) = mu + z sigma and ln(mean) = mu + sigma^2 / 2; of the two roots the smaller is the narrower curve.
        apart = math.log(most / mean)
        sigma = Z_MOST - math.sqrt(max(0.0, Z_MOST**2 - 2 * apart))
    low, high = math.log(least) - 20, math.log(most) + 20
    # The mean grows with mu; 100 halvings are far below the smallest step of a float here.
    for _ in range(100):
        middle = (low + high) / 2
        if CutLognormal(middle, sigma, least, most).mean < mean:
            low = middle
        else:
            high = middle
    return CutLognormal((low + high) / 2, sigma, least, most)


def _below(z: float) -> float:
    return 0.5 * (1 + math.erf(z / math.sqrt(2)))
