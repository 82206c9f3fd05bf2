"""Sampling parameters by vLLM's names, defaults and order.

Owns the translation into `plait.core.sampling` and the refusal of what the engine does not have. The ranges of values
are core's.
Invariant: a parameter is honoured or refused by name, never ignored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, fields, replace
from enum import Enum

from plait.api.bodies import json_bytes, read_object
from plait.api.structured import grammar_of
from plait.core.errors import RequestError
from plait.core.request import MAX_CHOICES
from plait.core.sampling import MAX_LOGPROBS
from plait.core.sampling import SamplingParams as CoreSampling
from plait.llm.errors import InputError, input_error
from plait.text.grammar import Grammar

DEFAULT_MAX_TOKENS = 16
"""As in vLLM, which is why so many first answers look cut off."""

_ANY_VOCABULARY = 1 << 31
"""For checks before a model is known: token ids are looked at again when they are used."""


class RequestOutputKind(Enum):
    """What each item of a stream holds."""

    CUMULATIVE = 0
    """All of the answer so far."""
    DELTA = 1
    """What is new."""
    FINAL_ONLY = 2
    """One item, when everything is there."""


_REFUSALS: Mapping[str, str] = {
    "best_of": "choosing the best of more answers is not supported; ask for n answers and choose yourself",
    "flat_logprobs": "log-probabilities come as a list of dicts; leave it out",
    "logprob_token_ids": "log-probabilities of chosen tokens are not reported; use logprobs",
    "spaces_between_special_tokens": "text is never padded with spaces; leave it out",
    "guided_decoding": "it is the older form; use structured_outputs",
    "bad_words": "use logit_bias with -100 for the tokens that must not appear",
    "logits_processors": "they are not supported; leave them out",
    "extra_args": "there is nobody to read it; leave it out",
    "truncate_prompt_tokens": "a prompt is never cut silently; shorten it yourself and leave this out",
    "thinking_token_budget": "thinking has no budget of its own; use max_tokens",
    "repetition_detection": "it is not supported; use a penalty",
}


@dataclass(frozen=True, slots=True)
class StructuredOutputsParams:
    """The form that answers must have; one of these."""

    json: str | Mapping[str, object] | None = None
    """A JSON schema."""
    regex: str | None = None
    choice: Sequence[str] | None = None
    grammar: str | None = None
    """In Lark's notation, or GBNF."""
    json_object: bool | None = None

    def form(self) -> Grammar:
        """`InputError` for more than one, or none."""
        given = {field.name: value for field in fields(self) if (value := getattr(self, field.name)) is not None}
        try:
            # Through JSON and back, so that whatever Python calls a list or a table is one.
            body = read_object(json_bytes({"structured_outputs": given}))
            found = grammar_of(body)
        except RequestError as error:
            raise input_error(error) from None
        if found is None:
            raise InputError("structured_outputs asks for nothing; give one of json, regex, choice and grammar")
        return found


@dataclass(slots=True)
class SamplingParams:
    """What may follow a prompt, how it is drawn, and when it ends. Mutable, because programs written for vLLM change
    the parameters that they were given.
    """

    n: int = 1
    """Answers per prompt. They share what is computed of the prompt."""
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    temperature: float = 1.0
    """0 to 2; 0: always the most likely token."""
    top_p: float = 1.0
    top_k: int = 0
    """0 or -1: every token may be drawn."""
    min_p: float = 0.0
    seed: int | None = None
    """None: drawn from the seed of the `LLM`, another one for each request."""
    stop: str | Sequence[str] | None = None
    stop_token_ids: Sequence[int] | None = None
    ignore_eos: bool = False
    max_tokens: int | None = DEFAULT_MAX_TOKENS
    """None: as many as the model holds. An answer ends there in any case."""
    min_tokens: int = 0
    logprobs: int | None = None
    """Alternatives reported beside each output token; 0: the token alone."""
    prompt_logprobs: int | None = None
    """The same for every prompt token but the first, which nothing comes before."""
    _: KW_ONLY
    detokenize: bool = True
    skip_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE
    logit_bias: Mapping[int, float] | None = None
    allowed_token_ids: Sequence[int] | None = None
    """The only tokens that may be drawn; for an answer to end by itself, the end of sequence is one of them."""
    skip_reading_prefix_cache: bool | None = None
    structured_outputs: StructuredOutputsParams | None = None
    # From here on only the defaults work; see _REFUSALS.
    best_of: int | None = None
    flat_logprobs: bool = False
    logprob_token_ids: Sequence[int] | None = None
    spaces_between_special_tokens: bool = True
    guided_decoding: object = None
    bad_words: Sequence[str] | None = None
    logits_processors: object = None
    extra_args: object = None
    truncate_prompt_tokens: int | None = None
    thinking_token_budget: int | None = None
    repetition_detection: object = None

    def __post_init__(self) -> None:
        self.verify()

    def __repr__(self) -> str:
        said = {field.name: getattr(self, field.name) for field in fields(self)}
        given = [f"{name}={value!r}" for name, value in said.items() if value != _DEFAULTS[name]]
        return f"SamplingParams({', '.join(given)})"

    def clone(self) -> SamplingParams:
        return replace(self)

    def verify(self) -> None:
        """`InputError` for the first value that no engine could serve."""
        for name, reason in _REFUSALS.items():
            value = getattr(self, name)
            if value != _DEFAULTS[name] and value is not None and value != []:
                raise InputError(f"{name} is {value!r}; {reason}", param=name, code="unsupported_parameter")
        _check_types(self)
        if self.structured_outputs is not None:
            if not isinstance(self.structured_outputs, StructuredOutputsParams):
                raise InputError(
                    f"structured_outputs is of type {type(self.structured_outputs).__name__}; "
                    "give StructuredOutputsParams",
                    param="structured_outputs",
                )
            self.structured_outputs.form()
        if not 1 <= self.n <= MAX_CHOICES:
            raise InputError(f"n is {self.n}; it must lie in [1, {MAX_CHOICES}]", param="n")
        if self.top_k < -1:
            raise InputError(
                f"top_k is {self.top_k}; it must be at least 1, or 0 or -1 to keep every token", param="top_k"
            )
        for name, wanted in (("logprobs", self.logprobs), ("prompt_logprobs", self.prompt_logprobs)):
            if wanted is not None and not 0 <= wanted <= MAX_LOGPROBS:
                raise InputError(f"{name} is {wanted}; it must lie in [0, {MAX_LOGPROBS}]", param=name)
        if not self.detokenize and _stops(self.stop):
            raise InputError("stop strings are found in text, but detokenize is False; leave one of them out")
        try:
            self.core(self.max_tokens).validate(_ANY_VOCABULARY)
        except RequestError as error:
            raise input_error(error) from None

    def core(self, max_tokens: int | None) -> CoreSampling:
        """The same for the engine, with this limit of output tokens."""
        return CoreSampling(
            temperature=float(self.temperature),
            top_k=max(0, self.top_k),
            top_p=float(self.top_p),
            min_p=float(self.min_p),
            seed=None if self.seed == -1 else self.seed,
            max_tokens=max_tokens,
            min_tokens=self.min_tokens,
            stop=_stops(self.stop),
            stop_token_ids=tuple(self.stop_token_ids or ()),
            ignore_eos=self.ignore_eos,
            include_stop=self.include_stop_str_in_output,
            logprobs=self.logprobs,
            prompt_logprobs=self.prompt_logprobs,
            repetition_penalty=float(self.repetition_penalty),
            frequency_penalty=float(self.frequency_penalty),
            presence_penalty=float(self.presence_penalty),
            logit_bias=tuple(sorted((int(token), float(bias)) for token, bias in (self.logit_bias or {}).items())),
            allowed_token_ids=tuple(self.allowed_token_ids or ()),
            skip_special_tokens=self.skip_special_tokens,
        )


_DEFAULTS: Mapping[str, object] = {field.name: field.default for field in fields(SamplingParams)}

_NUMBERS = ("presence_penalty", "frequency_penalty", "repetition_penalty", "temperature", "top_p", "min_p")
_INTEGERS = ("n", "top_k", "seed", "max_tokens", "min_tokens", "logprobs", "prompt_logprobs")
_FLAGS = ("ignore_eos", "detokenize", "skip_special_tokens", "include_stop_str_in_output")


def _check_types(params: SamplingParams) -> None:
    """A value of another type would be taken for something else further down, or end in a traceback."""
    for names, wanted, said in ((_NUMBERS, (int, float), "a number"), (_INTEGERS, (int,), "an integer")):
        for name in names:
            value = getattr(params, name)
            may_be_none = _DEFAULTS[name] is None or name == "max_tokens"
            if isinstance(value, bool) or not (isinstance(value, wanted) or (value is None and may_be_none)):
                raise InputError(f"{name} is {value!r}; it must be {said}", param=name)
    for name in _FLAGS:
        if not isinstance(getattr(params, name), bool):
            raise InputError(f"{name} is {getattr(params, name)!r}; it must be True or False", param=name)
    for name in ("stop_token_ids", "allowed_token_ids"):
        for token in getattr(params, name) or ():
            if isinstance(token, bool) or not isinstance(token, int):
                raise InputError(f"{name} holds {token!r}; it must hold token ids", param=name)
    if params.allowed_token_ids is not None and not params.allowed_token_ids:
        raise InputError("allowed_token_ids is empty; name a token, or leave it out", param="allowed_token_ids")
    for token, bias in (params.logit_bias or {}).items():
        for one, wanted in ((token, (int,)), (bias, (int, float))):
            if isinstance(one, bool) or not isinstance(one, wanted):
                raise InputError(
                    f"logit_bias holds {token!r}: {bias!r}; it maps token ids to numbers", param="logit_bias"
                )


def _stops(stop: str | Sequence[str] | None) -> tuple[str, ...]:
    if stop is None:
        return ()
    stops = (stop,) if isinstance(stop, str) else tuple(stop)
    for one in stops:
        if not isinstance(one, str):
            raise InputError(f"stop holds {one!r}; it must be a string or a list of strings", param="stop")
    return stops
