"""Sampling parameters: how one request wants its tokens chosen.

Owns the values and their limits, not the arithmetic (docs/concepts/numerics.md defines it; every executor has one
sampler).
Invariant: a `SamplingParams` that passed `validate` can be executed by every executor without a further check.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from plait.core.errors import RequestError

MAX_LOGPROBS = 20
"""Largest number of alternatives reported beside a token, as in the OpenAI API."""

MAX_STOPS = 16
MAX_STOP_CHARS = 4096
"""All stop strings of a request together; every sequence keeps a state for each of their characters."""

MAX_STOP_TOKEN_IDS = 1024
"""Every token is looked up among them."""

GREEDY_BELOW = 1e-5
"""Temperatures up to this are greedy: dividing by them would overflow and could change nothing but ties."""

SEED_LIMIT = 2**63


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """What may follow, how it is drawn, and when it ends. Defaults are the OpenAI API's."""

    temperature: float = 1.0
    """0 to 2; at most 1e-5 means greedy: the largest logit, ties by lowest token id."""
    top_k: int = 0
    """Keep the k most likely tokens; 0 keeps all."""
    top_p: float = 1.0
    """Keep the smallest set of most likely tokens with at least this probability."""
    min_p: float = 0.0
    """Keep tokens at least this likely relative to the most likely one."""
    seed: int | None = None
    """-2^63 to 2^63-1. None: one is drawn at admission and reported."""
    max_tokens: int | None = None
    """Output tokens at most, 1 or more; None: as many as the model holds."""
    min_tokens: int = 0
    """No end-of-sequence or stop token before this many output tokens."""
    stop: tuple[str, ...] = ()
    """Strings that end the output and are not part of it."""
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    include_stop: bool = False
    """Keep the matched stop string at the end of the output."""
    logprobs: int | None = None
    """Report log-probabilities of the output tokens with this many alternatives (0: the token alone); None: nothing."""
    prompt_logprobs: int | None = None
    """The same for every prompt token but the first. Each must be computed for it, so nothing is read from the prefix
    index; of several choices the first reports them.
    """
    repetition_penalty: float = 1.0
    """> 0; divides positive and multiplies negative logits of tokens in prompt or output."""
    frequency_penalty: float = 0.0
    """-2 to 2; subtracted once per occurrence in the output."""
    presence_penalty: float = 0.0
    """-2 to 2; subtracted once from tokens that occur in the output."""
    logit_bias: tuple[tuple[int, float], ...] = ()
    """(token id, -100 to 100) pairs added to the logits, ascending by id."""
    allowed_token_ids: tuple[int, ...] = ()
    """The only tokens that may be drawn, end of sequence included; empty: every one."""
    skip_special_tokens: bool = True

    @property
    def is_greedy(self) -> bool:
        return self.temperature <= GREEDY_BELOW

    @property
    def has_penalties(self) -> bool:
        return self.repetition_penalty != 1.0 or self.frequency_penalty != 0.0 or self.presence_penalty != 0.0

    def validate(self, vocab_size: int) -> None:
        """Raise `RequestError` for the first value out of its range."""
        _check_range("temperature", self.temperature, 0.0, 2.0)
        _check_range("top_p", self.top_p, 0.0, 1.0, open_low=True)
        _check_range("min_p", self.min_p, 0.0, 1.0)
        _check_range("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        _check_range("presence_penalty", self.presence_penalty, -2.0, 2.0)
        # Logits are divided by it: a smaller one would make them infinite, and no token could be chosen.
        _check_range("repetition_penalty", self.repetition_penalty, 1e-6, 1e6)
        _check_at_least("top_k", self.top_k, 0)
        _check_at_least("min_tokens", self.min_tokens, 0)
        if self.max_tokens is not None:
            _check_at_least("max_tokens", self.max_tokens, 1)
            if self.min_tokens > self.max_tokens:
                raise RequestError(
                    f"min_tokens is {self.min_tokens} but max_tokens is {self.max_tokens}; lower min_tokens",
                    param="min_tokens",
                )
        if self.logprobs is not None:
            _check_range("top_logprobs", self.logprobs, 0, MAX_LOGPROBS)
        if self.prompt_logprobs is not None:
            _check_range("prompt_logprobs", self.prompt_logprobs, 0, MAX_LOGPROBS)
        if self.seed is not None and not -SEED_LIMIT <= self.seed < SEED_LIMIT:
            raise RequestError(f"seed is {self.seed}; it must lie between -2^63 and 2^63-1", param="seed")
        self._validate_stops()
        if len(self.stop_token_ids) > MAX_STOP_TOKEN_IDS:
            raise RequestError(
                f"stop_token_ids has {len(self.stop_token_ids)} ids; at most {MAX_STOP_TOKEN_IDS} are allowed",
                param="stop_token_ids",
            )
        check_token_ids("stop_token_ids", self.stop_token_ids, vocab_size)
        check_token_ids("allowed_token_ids", self.allowed_token_ids, vocab_size)
        check_token_ids("logit_bias", [token for token, _ in self.logit_bias], vocab_size)
        for _, bias in self.logit_bias:
            _check_range("logit_bias", bias, -100.0, 100.0)
        for (token, _), (following, _) in pairwise(self.logit_bias):
            if following <= token:
                raise RequestError(
                    f"logit_bias names token {following} behind token {token}; name each token once, ascending",
                    param="logit_bias",
                )

    def mask(self, vocab_size: int) -> bytes | None:
        """Bit t, little-endian, is set where token t may be drawn; None: everywhere. The parameters are valid."""
        if not self.allowed_token_ids:
            return None
        bits = bytearray(-(-vocab_size // 8))
        for token in self.allowed_token_ids:
            bits[token // 8] |= 1 << token % 8
        return bytes(bits)

    def _validate_stops(self) -> None:
        if len(self.stop) > MAX_STOPS:
            raise RequestError(f"stop has {len(self.stop)} strings; at most {MAX_STOPS} are allowed", param="stop")
        if "" in self.stop:
            raise RequestError("stop holds an empty string, which every output contains; leave it out", param="stop")
        num_chars = sum(map(len, self.stop))
        if num_chars > MAX_STOP_CHARS:
            raise RequestError(
                f"the stop strings have {num_chars} characters together; at most {MAX_STOP_CHARS} are allowed",
                param="stop",
            )


def _check_range(name: str, value: float, low: float, high: float, *, open_low: bool = False) -> None:
    # Every limit is finite, and nothing compares with NaN, so what lies inside is finite.
    inside = low < value <= high if open_low else low <= value <= high
    if not inside:
        bracket = "(" if open_low else "["
        raise RequestError(f"{name} is {value}; it must lie in {bracket}{low:g}, {high:g}]", param=name)


def _check_at_least(name: str, value: int, low: int) -> None:
    if value < low:
        raise RequestError(f"{name} is {value}; it must be at least {low}", param=name)


def check_token_ids(name: str, tokens: Sequence[int], vocab_size: int) -> None:
    """`RequestError` for the first id that is no token; `name` is the field that holds them."""
    if tokens and not 0 <= min(tokens) <= max(tokens) < vocab_size:
        token = next(token for token in tokens if not 0 <= token < vocab_size)
        raise RequestError(f"{name} holds token {token}; this model's ids go from 0 to {vocab_size - 1}", param=name)
