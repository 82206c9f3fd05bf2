"""The oracle: what a sequence's logits and tokens must be, from its whole text at once, in double precision.

Owns a dense forward pass of the llama family and a sampler, both written from the definitions and sharing no code with
any executor: no cache, no tiles, no chunks, no batch.
Invariant: nothing here depends on how a sequence was cut into steps.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from tests.conformance.models import TinyModel

from plait.core.random import uniform
from plait.core.step import Join
from plait.model.visibility import Reach, Visibility

Doubles = npt.NDArray[np.float64]
F32_ROUNDING = 2.0**-24
NUM_PERTURBATIONS = 32


@dataclass(frozen=True, slots=True, eq=False)
class Expectation:
    """Logits behind every token of a sequence, and how far a float32 executor may be from them, row by row."""

    logits: Doubles
    tolerance: Doubles

    def log_probabilities(self, row: int) -> Doubles:
        z = self.logits[row]
        return np.asarray(z - z.max() - np.log(np.exp(z - z.max()).sum()))


def expect(model: TinyModel, tokens: Sequence[int]) -> Expectation:
    """The dense forward pass of a whole sequence."""
    config = model.config
    w = {name: array.astype(np.float64) for name, array in model.arrays.items()}
    heads, kv_heads, dim, count = config.num_heads, config.num_kv_heads, config.head_dim, len(tokens)
    x = w["embed"][list(tokens)]
    for index, visibility in enumerate(config.layer_visibility):
        at = f"layers.{index}."
        y = rms(x, w[at + "attn_norm"], config.norm_eps)
        q = rotate((y @ w[at + "q"].T + w[at + "q_bias"]).reshape(count, heads, dim), config.rope.theta)
        k = rotate((y @ w[at + "k"].T + w[at + "k_bias"]).reshape(count, kv_heads, dim), config.rope.theta)
        v = (y @ w[at + "v"].T + w[at + "v_bias"]).reshape(count, kv_heads, dim)
        k, v = (np.repeat(one, heads // kv_heads, axis=1) for one in (k, v))
        scores = np.einsum("nhd,mhd->hnm", q, k) / np.sqrt(dim)
        scores = np.where(sees(visibility, count), scores, -np.inf)
        p = np.exp(scores - scores.max(axis=-1, keepdims=True))
        p /= p.sum(axis=-1, keepdims=True)
        x = x + np.einsum("hnm,mhd->nhd", p, v).reshape(count, -1) @ w[at + "o"].T
        y = rms(x, w[at + "ffn_norm"], config.norm_eps)
        gate, up = y @ w[at + "gate"].T, y @ w[at + "up"].T
        x = x + (gate / (1 + np.exp(-gate)) * up) @ w[at + "down"].T
    x = rms(x, w["final_norm"], config.norm_eps)
    # |x . w| <= |x| |w|, and every op in front of the product may add a rounding of the size of the row.
    norms = np.linalg.norm(x, axis=1) * np.linalg.norm(w["head"], axis=1).max()
    return Expectation(x @ w["head"].T, F32_ROUNDING * len(model.program.ops) * norms)


def rms(x: Doubles, weight: Doubles, eps: float) -> Doubles:
    return np.asarray(x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + eps) * weight)


def rotate(x: Doubles, theta: float) -> Doubles:
    """x: [n, heads, dim]; columns i and i + dim / 2 turn together."""
    half = x.shape[2] // 2
    angles = np.outer(np.arange(len(x)), theta ** (-np.arange(half) / half))[:, None, :]
    turned = (x[..., :half] + 1j * x[..., half:]) * np.exp(1j * angles)
    return np.concatenate([turned.real, turned.imag], axis=2)


def sees(visibility: Visibility, count: int) -> npt.NDArray[np.bool_]:
    """[n, n]: whether row i looks at slot j."""
    i, j = np.indices((count, count))
    match visibility.reach:
        case Reach.CAUSAL:
            return np.asarray(j <= i)
        case Reach.WINDOW:
            return np.asarray((j <= i) & (j > i - visibility.size))
        case Reach.CHUNK:
            return np.asarray((j <= i) & (j // visibility.size == i // visibility.size))
        case Reach.ALL:
            return np.ones((count, count), np.bool_)


@dataclass(frozen=True, slots=True)
class Question:
    """A row that samples: who asks, the tokens up to and with the row's, and the mask if there is one."""

    join: Join
    tokens: tuple[int, ...]
    allowed: bytes | None = None

    def answers(self, logits: Doubles, tolerance: float) -> set[int]:
        """The tokens that a right sampler may give when every logit may be off by `tolerance`."""
        random = np.random.default_rng(0)
        found = {self.answer(logits)}
        for _ in range(NUM_PERTURBATIONS):
            found.add(self.answer(logits + tolerance * random.choice([-1.0, 1.0], len(logits))))
        return found

    def answer(self, logits: Doubles) -> int:
        """The sampling rules of docs/concepts/numerics.md, one after another, on plain lists."""
        params, position = self.join.params, len(self.tokens)
        z = self._adjusted(logits)
        allowed = [token for token in range(len(z)) if z[token] > float("-inf")]
        if params.temperature <= 1e-5:
            return min(allowed, key=lambda token: (-z[token], token))
        y = [value / params.temperature for value in z]
        ranked = sorted(allowed, key=lambda token: (-y[token], token))
        best = y[ranked[0]]
        if params.min_p > 0:
            ranked = [token for token in ranked if y[token] >= best + np.log(params.min_p)]
        if params.top_k:
            ranked = ranked[: params.top_k]
        if params.top_p < 1:
            ranked = self._nucleus(ranked, y, params.top_p)
        u = uniform(self.join.seed, self.join.choice, position, 0)
        total = sum(np.exp(y[token] - best) for token in ranked)
        running = 0.0
        for token in sorted(ranked):
            running += np.exp(y[token] - best)
            if running > u * total:
                return token
        return max(ranked)

    @staticmethod
    def _nucleus(ranked: list[int], y: list[float], top_p: float) -> list[int]:
        total = sum(np.exp(y[token] - y[ranked[0]]) for token in ranked)
        running = 0.0
        for count, token in enumerate(ranked, start=1):
            running += np.exp(y[token] - y[ranked[0]])
            if running >= top_p * total:
                return ranked[:count]
        return ranked

    def _adjusted(self, logits: Doubles) -> list[float]:
        params, join = self.join.params, self.join
        z = [float(value) for value in logits]
        for token, bias in params.logit_bias:
            z[token] += bias
        for token in set(self.tokens):
            z[token] = z[token] / params.repetition_penalty if z[token] > 0 else z[token] * params.repetition_penalty
        for token, times in Counter(self.tokens[join.num_prompt :]).items():
            z[token] -= params.frequency_penalty * times + params.presence_penalty
        forbidden = [t for t in range(len(z)) if self.allowed is not None and not self.allowed[t // 8] >> t % 8 & 1]
        if len(self.tokens) - join.num_prompt < params.min_tokens:
            forbidden += [*join.eos_token_ids, *params.stop_token_ids]
        for token in forbidden:
            z[token] = float("-inf")
        return z
