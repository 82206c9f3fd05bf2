"""Sampler: from a row of logits to a token, as docs/concepts/numerics.md "Sampling" defines it.

Owns the arithmetic of penalties, filters, draws and log-probabilities. Knows nothing about steps or chunks.
Invariant: a result is a function of the row's logits, parameters, history and (seed, choice, position) alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from plait.core.random import uniform
from plait.core.sampling import SamplingParams
from plait.core.step import Join, TokenLogprob

Logits = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]

COLUMN_BLOCK = 4096
"""Vocabulary columns summed together before the next block is added; part of the numerics contract."""


@dataclass(frozen=True, slots=True)
class Row:
    """Who samples, and the absolute position of the token to come. `history`: the tokens before it, if there are
    penalties.
    """

    join: Join
    history: Sequence[int]
    position: int
    allowed: bytes | None = None
    """Bit mask over the vocabulary, little-endian; None allows everything."""

    @property
    def num_output(self) -> int:
        return self.position - self.join.num_prompt


def sample(logits: Logits, row: Row) -> int | None:
    """The token that follows; None if nothing is left to choose from. `logits`: [vocab_size], finite."""
    params, join = row.join.params, row.join
    scaled = _adjusted(logits, row) / (1.0 if params.is_greedy else params.temperature)
    if not np.isfinite(scaled.max()):
        return None  # every token is forbidden, or an extreme penalty went beyond every number
    if params.is_greedy:
        return int(np.argmax(scaled))
    kept = _kept(scaled, params)
    return _drawn(scaled, kept, uniform(join.seed, join.choice, row.position, 0))


def log_probability(logits: Logits, token: int, num_top: int) -> TokenLogprob:
    """Natural log-probability of `token` and of the `num_top` most likely tokens."""
    values = logits.astype(np.float64)
    log_total = float(values.max()) + float(np.log(_running_sum(np.exp(values - values.max()))[-1]))
    top = tuple((int(one), float(values[one]) - log_total) for one in _largest(values, num_top))
    return TokenLogprob(token, float(values[token]) - log_total, top)


def _adjusted(logits: Logits, row: Row) -> Doubles:
    params = row.join.params
    values = logits.astype(np.float64)
    for token, bias in params.logit_bias:
        values[token] += bias
    if params.has_penalties:
        _penalize(values, row)
    if row.allowed is not None:
        bits = np.unpackbits(np.frombuffer(row.allowed, np.uint8), bitorder="little")[: len(values)]
        values[bits == 0] = -np.inf
    if row.num_output < params.min_tokens:
        values[[*row.join.eos_token_ids, *params.stop_token_ids]] = -np.inf
    return values


def _penalize(values: Doubles, row: Row) -> None:
    params = row.join.params
    seen, _ = _counts(row.history)
    factor = params.repetition_penalty
    values[seen] = np.where(values[seen] > 0, values[seen] / factor, values[seen] * factor)
    produced, times = _counts(row.history[row.join.num_prompt :])
    values[produced] -= params.frequency_penalty * times + params.presence_penalty


def _counts(tokens: Iterable[int]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    return np.unique(np.fromiter(tokens, np.int64), return_counts=True)


def _kept(scaled: Doubles, params: SamplingParams) -> npt.NDArray[np.bool_]:
    """Which tokens may be drawn: min_p, then top_k, then top_p."""
    kept = np.isfinite(scaled)
    if params.min_p > 0.0:
        kept &= scaled >= scaled.max() + np.log(params.min_p)
    if 0 < params.top_k < len(scaled):
        kept &= _marked(_largest(np.where(kept, scaled, -np.inf), params.top_k), len(scaled))
    if params.top_p < 1.0:
        kept = _nucleus(scaled, kept, params.top_p)
    return kept


def _nucleus(scaled: Doubles, kept: npt.NDArray[np.bool_], top_p: float) -> npt.NDArray[np.bool_]:
    tokens = np.flatnonzero(kept)
    order = tokens[np.argsort(-scaled[tokens], kind="stable")]
    running = np.cumsum(np.exp(scaled[order] - scaled[order[0]]))
    reached = running >= top_p * running[-1]
    return _marked(order[: int(np.argmax(reached)) + 1], len(scaled))


def _drawn(scaled: Doubles, kept: npt.NDArray[np.bool_], u: float) -> int:
    """The first token at which the running sum of weights exceeds u times their total."""
    running = _running_sum(np.where(kept, np.exp(scaled - scaled[kept].max()), 0.0))
    above = np.flatnonzero(running > u * running[-1])
    return int(above[0]) if len(above) else int(np.flatnonzero(kept)[-1])  # u * total was rounded up to the total


def _running_sum(values: Doubles) -> Doubles:
    """Sums up to each column: a chain within a block of columns, on top of what the blocks before it gave."""
    running = np.empty_like(values)
    before = 0.0
    for start in range(0, len(values), COLUMN_BLOCK):
        block = before + np.cumsum(values[start : start + COLUMN_BLOCK])
        running[start : start + len(block)] = block
        before = float(block[-1])
    return running


def _largest(values: Doubles, count: int) -> npt.NDArray[np.int64]:
    """The `count` largest, descending, ties by lowest id."""
    if count <= 0:
        return np.empty(0, np.int64)
    count = min(count, len(values))
    threshold = np.partition(values, len(values) - count)[len(values) - count]
    candidates = np.flatnonzero(values >= threshold)
    order = np.argsort(-values[candidates], kind="stable")
    return candidates[order[:count]]


def _marked(tokens: npt.NDArray[np.int64], size: int) -> npt.NDArray[np.bool_]:
    marks = np.zeros(size, np.bool_)
    marks[tokens] = True
    return marks
