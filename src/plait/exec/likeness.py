"""Likeness: how near the rows of one executor come to those of another, over the same tokens.

Owns the arithmetic on logits and what is kept of it: sums, so that a text's likeness is the sum of its parts'.
Invariant: equal rows differ by exactly 0 in every figure.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from plait.exec.scoring import Floats, Rows


@dataclass(frozen=True, slots=True)
class Likeness:
    """Of some scored tokens. `true` are the rows to come near to, `given` those that are judged."""

    num_tokens: int = 0
    true_loss: float = 0.0
    """Minus the sum of log-probabilities of the targets, as in `given_loss`."""
    given_loss: float = 0.0
    num_equal: int = 0
    """Rows whose likeliest token is the same."""
    distance: float = 0.0
    """Sum of how far the log-probabilities of targets are from each other; `largest_distance` is the worst of them."""
    largest_distance: float = 0.0
    divergence: float = 0.0
    """Sum of the Kullback-Leibler divergences of given from true, in nats."""
    num_logits: int = 0
    squared_error: float = 0.0
    """Sum over all logits; `largest_error` is the worst of them."""
    largest_error: float = 0.0
    largest_logit: float = 0.0
    """Of the true ones, by magnitude."""

    def __add__(self, other: Likeness) -> Likeness:
        return Likeness(
            self.num_tokens + other.num_tokens,
            self.true_loss + other.true_loss,
            self.given_loss + other.given_loss,
            self.num_equal + other.num_equal,
            self.distance + other.distance,
            max(self.largest_distance, other.largest_distance),
            self.divergence + other.divergence,
            self.num_logits + other.num_logits,
            self.squared_error + other.squared_error,
            max(self.largest_error, other.largest_error),
            max(self.largest_logit, other.largest_logit),
        )


def likeness(true: Rows, given: Rows) -> Likeness:
    pairs = zip(true.logits, given.logits, true.logprobs, given.logprobs, strict=True)
    # Row by row: what is computed of one stays in a core's cache.
    return sum((_of_row(*pair) for pair in pairs), Likeness())


def _of_row(true: Floats, given: Floats, true_logprob: float, given_logprob: float) -> Likeness:
    errors = given - true
    distance = abs(given_logprob - true_logprob)
    return Likeness(
        num_tokens=1,
        true_loss=-true_logprob,
        given_loss=-given_logprob,
        num_equal=int(true.argmax() == given.argmax()),
        distance=distance,
        largest_distance=distance,
        divergence=_divergence(true, given),
        num_logits=errors.size,
        squared_error=float(np.square(errors).sum(dtype=np.float64)),
        largest_error=float(np.abs(errors).max()),
        largest_logit=float(np.abs(true).max()),
    )


def _divergence(true: Floats, given: Floats) -> float:
    """sum p (log p - log q), with log p = z - log sum exp(z): a small difference of large numbers, so all is wide."""
    true_wide, given_wide = true.astype(np.float64), given.astype(np.float64)
    errors = given_wide - true_wide
    true_most, given_most = true_wide.max(), given_wide.max()
    true_wide -= true_most
    given_wide -= given_most
    weights = np.exp(true_wide, out=true_wide)
    true_sum, given_sum = weights.sum(), np.exp(given_wide, out=given_wide).sum()
    mean_error = np.einsum("v,v->", weights, errors) / true_sum
    return max(0.0, float(given_most - true_most + np.log(given_sum / true_sum) - mean_error))
