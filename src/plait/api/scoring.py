"""Scoring: what an answer says of its prompt.

Owns `echo`, `prompt_logprobs` and `max_tokens: 0`: what a body may ask with them, and what of the prompt stands in the
answer. Tokens are scored by the engine, in the steps of everybody else.
Invariant: the first token of a prompt has no log-probability, because nothing comes before it; every other has one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from plait.api.bodies import JsonObject, JsonValue
from plait.api.logprobs import CompletionOffsets, Spelling, completion_logprobs, floored
from plait.core.client import Delta
from plait.core.request import FinishReason
from plait.core.step import TokenLogprob
from plait.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Scoring:
    """`told`: alternatives in the field `prompt_logprobs`, None: no such field. `prompt_only`: nothing is generated."""

    echo: bool = False
    told: int | None = None
    prompt_only: bool = False

    def alternatives(self, logprobs: int | None) -> int | None:
        """What the engine is to report of the prompt, where the answer's own log-probabilities are `logprobs`."""
        wanted = [count for count in (self.told, logprobs if self.echo else None) if count is not None]
        return max(wanted, default=None)


NO_SCORING = Scoring()


@dataclass(frozen=True, slots=True)
class Echo:
    """The text of a prompt, as an answer begins with it. `skips_special`: its control tokens have no text in it."""

    text: str
    skips_special: bool


def echo_of(prompt: str | Sequence[int], tokens: Sequence[int], tokenizer: Tokenizer, skip_special: bool) -> Echo:
    """A text stays what it was; tokens are spelled as those of the answer are."""
    if not isinstance(prompt, str):
        return Echo(tokenizer.decode(tokens, skip_special), skip_special)
    # What the tokenizer put around the text is none of it.
    return Echo(prompt, tokenizer.decode(tokens, skip_special=False) != prompt)


class PromptPart:
    """What is said of one prompt: grows with the deltas of its first choice."""

    def __init__(self, tokens: Sequence[int], scoring: Scoring, logprobs: int | None, echo: Echo | None) -> None:
        self.echo = echo
        self._tokens = tokens
        self._told = scoring.told
        self._logprobs = logprobs if scoring.echo else None
        self._is_scored = scoring.alternatives(logprobs) is not None
        self._entries: list[TokenLogprob] = []

    def add(self, delta: Delta) -> None:
        self._entries += delta.prompt_logprobs

    @property
    def is_complete(self) -> bool:
        """Whether all is there that the answer says of it."""
        return not self._is_scored or len(self._entries) >= len(self._tokens) - 1

    @property
    def num_chars(self) -> int:
        """Where the answer's own text begins."""
        return 0 if self.echo is None else len(self.echo.text)

    def logprobs(self, tokenizer: Tokenizer, spelling: Spelling) -> JsonObject | None:
        """The lists of a text completion, as far as they are the prompt's; None: not asked for."""
        if self.echo is None or self._logprobs is None:
            return None
        # The first token has no score; it stands in the lists all the same.
        first = TokenLogprob(self._tokens[0], 0.0)
        entries = [first, *(replace(one, top=one.top[: self._logprobs]) for one in self._entries)]
        offsets = CompletionOffsets(tokenizer, self.echo.skips_special, continues=False)
        lists = completion_logprobs(entries, tokenizer, offsets.place(entries, self.echo.text), spelling)
        for name in ("token_logprobs", "top_logprobs"):
            values = lists[name]
            assert isinstance(values, list)
            values[0] = None
        return lists

    def told(self, tokenizer: Tokenizer) -> list[JsonValue] | None:
        """The field `prompt_logprobs`, in vLLM's shape: token id -> what is known of it, the prompt's own first."""
        if self._told is None:
            return None
        return [None, *(_by_token(one, self._told, tokenizer) for one in self._entries)]


def joined(first: JsonObject | None, second: JsonObject | None) -> JsonObject | None:
    """The lists of a prompt and of what follows it as one."""
    if first is None or second is None:
        return first if second is None else second
    lists: JsonObject = {}
    for name, values in first.items():
        more = second[name]
        assert isinstance(values, list)
        assert isinstance(more, list)
        lists[name] = [*values, *more]
    return lists


def without_output(delta: Delta) -> Delta:
    """The delta of a request that wanted its prompt scored and nothing more. The engine always makes one token."""
    reason = FinishReason.LENGTH if delta.finish_reason is FinishReason.STOP else delta.finish_reason
    return delta._replace(text="", tokens=(), logprobs=(), finish_reason=reason, stop_reason=None)


def _by_token(one: TokenLogprob, count: int, tokenizer: Tokenizer) -> JsonObject:
    ranks = {token: place for place, (token, _) in enumerate(one.top, 1)}
    known: JsonObject = {}
    for token, logprob in ((one.token, one.logprob), *one.top[:count]):
        known.setdefault(
            str(token),
            {
                "logprob": floored(logprob),
                "rank": ranks.get(token),
                "decoded_token": tokenizer.decode([token], skip_special=False),
            },
        )
    return known
