"""Fields: what chat and text completions have in common.

Owns `SharedFields` (types of the fields that both endpoints read) and their translation into `SamplingParams`. Ranges
are checked by `SamplingParams.validate`; fields that only one endpoint has live with that endpoint; fields that we
refuse live in `refusals`.
Invariant: null and absent mean the same for every field.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, Field

from plait.api.bodies import shown
from plait.api.checking import LENIENT_ABOUT_NAMES_STRICT_ABOUT_TYPES, Integer
from plait.api.logprobs import Spelling
from plait.api.scoring import NO_SCORING, Scoring
from plait.core.errors import RequestError
from plait.core.request import MAX_CHOICES, NO_SLO, ServiceClass, Slo
from plait.core.sampling import MAX_LOGPROBS, SamplingParams
from plait.text.grammar import Grammar

PRIORITY_LIMIT = 2**31

TargetSeconds = Annotated[float, Field(ge=0.0001, le=86_400)]

Value = TypeVar("Value")

ServiceTier = Literal["auto", "default", "flex", "scale", "priority", "fast", "ultrafast"]


def told_tier(asked: ServiceTier | None) -> str | None:
    """What an answer says of it: OpenAI tells the fast tiers as "priority", whichever name was sent."""
    return "priority" if asked in ("fast", "ultrafast") else asked


class StreamOptions(BaseModel):
    """Read when `stream` is true. Given without it they are ignored, because SDKs send them always."""

    model_config = LENIENT_ABOUT_NAMES_STRICT_ABOUT_TYPES

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class SloFields(BaseModel):
    """Latency targets of one request, seconds; null: those of the server."""

    model_config = LENIENT_ABOUT_NAMES_STRICT_ABOUT_TYPES

    ttft_s: TargetSeconds | None = None
    itl_s: TargetSeconds | None = None
    tpot_s: TargetSeconds | None = None

    def slo(self) -> Slo:
        return Slo(ttft_s=self.ttft_s, itl_s=self.itl_s, tpot_s=self.tpot_s)


class SharedFields(BaseModel):
    """Fields with the same meaning on both endpoints, as typed in the body. None: absent, the default holds."""

    model_config = LENIENT_ABOUT_NAMES_STRICT_ABOUT_TYPES

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Integer | None = None
    best_of: Integer | None = None
    stop: object = None
    seed: Integer | None = None
    temperature: float | None = None
    top_p: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    service_tier: ServiceTier | None = None
    top_k: Integer | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    stop_token_ids: list[Integer] | None = None
    allowed_token_ids: list[Integer] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    min_tokens: Integer | None = None
    skip_special_tokens: bool | None = None
    cache_salt: str | None = None
    priority: Integer | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    prompt_logprobs: Integer | None = None
    truncate_prompt_tokens: Integer | None = None
    truncation_side: Literal["left", "right"] | None = None
    slo: SloFields | None = None


@dataclass(frozen=True, slots=True)
class Truncation:
    """How a prompt is cut that is too long. `count` None: to what the model holds besides the answer."""

    count: int | None
    keeps_end: bool

    def cut(self, tokens: Sequence[int], most: int) -> Sequence[int]:
        """`most`: what the model could hold of it."""
        count = max(1, most) if self.count is None else self.count
        return tokens[-count:] if self.keeps_end else tokens[:count]


@dataclass(frozen=True, slots=True)
class Generation:
    """What a body asks, apart from its prompt.

    `explicit_max` names the field that set `sampling.max_tokens`; None: a default did.
    """

    model: str | None
    stream: bool
    include_usage: bool
    continuous_usage: bool
    n: int
    sampling: SamplingParams
    explicit_max: str | None
    service_class: ServiceClass
    service_tier: str | None
    tenant: str
    priority: int
    return_token_ids: bool
    grammar: Grammar | None = None
    """The form that every answer must have."""
    scoring: Scoring = NO_SCORING
    spelling: Spelling = Spelling.TEXT
    truncation: Truncation | None = None
    slo: Slo = NO_SLO


@dataclass(frozen=True, slots=True)
class OutputLimit:
    """Output tokens at most, and the field that said so (None: nobody did)."""

    max_tokens: int | None
    field: str | None


def generation(
    fields: SharedFields,
    limit: OutputLimit,
    logprobs: int | None,
    defaults: SamplingParams,
    scoring: Scoring = NO_SCORING,
) -> Generation:
    """Translate what the body asked; `defaults` hold where it is silent. Token ids are checked later, against the
    vocabulary. `scoring` is what the body asks of its prompt besides `prompt_logprobs`.
    """
    told = fields.prompt_logprobs
    scoring = replace(scoring, told=None if told is None else num_alternatives(told, "prompt_logprobs"))
    n = _num_choices(fields)
    tier = fields.service_tier
    options = fields.stream_options or StreamOptions()
    priority = fields.priority or 0
    if not -PRIORITY_LIMIT <= priority < PRIORITY_LIMIT:
        raise RequestError(f"priority is {shown(priority)}; it must lie between -2^31 and 2^31-1", param="priority")
    return Generation(
        model=fields.model,
        stream=bool(fields.stream),
        include_usage=bool(options.include_usage),
        continuous_usage=bool(options.continuous_usage_stats),
        n=n,
        sampling=replace(_sampling(fields, limit, logprobs, defaults), prompt_logprobs=scoring.alternatives(logprobs)),
        explicit_max=limit.field,
        service_class=ServiceClass.BATCH if tier == "flex" else ServiceClass.ONLINE,
        service_tier=told_tier(tier),
        tenant=fields.cache_salt or "",
        priority=priority,
        return_token_ids=bool(fields.return_token_ids),
        scoring=scoring,
        spelling=Spelling.ID if fields.return_tokens_as_token_ids else Spelling.TEXT,
        truncation=truncation(fields.truncate_prompt_tokens, fields.truncation_side),
        slo=NO_SLO if fields.slo is None else fields.slo.slo(),
    )


def output_limit(max_tokens: int | None, field: str) -> OutputLimit | None:
    """The limit that `field` sets, or None where the body leaves it out."""
    if max_tokens is None:
        return None
    if max_tokens < 1:
        raise RequestError(
            f"{field} is {shown(max_tokens)}; it must be at least 1, or leave it out for the default", param=field
        )
    return OutputLimit(max_tokens, field)


def num_alternatives(wanted: int, field: str) -> int:
    """How many alternatives to report beside each token, checked under the name that the body used."""
    if not 0 <= wanted <= MAX_LOGPROBS:
        raise RequestError(f"{field} is {shown(wanted)}; it must lie in [0, {MAX_LOGPROBS}]", param=field)
    return wanted


def truncation(count: int | None, side: str | None) -> Truncation | None:
    if count is None:
        return None
    if count < -1 or count == 0:
        raise RequestError(
            f"truncate_prompt_tokens is {shown(count)}; it must be at least 1, or -1 for as many as the model holds",
            param="truncate_prompt_tokens",
        )
    return Truncation(None if count == -1 else count, side != "right")


def _num_choices(fields: SharedFields) -> int:
    n = 1 if fields.n is None else fields.n
    if not 1 <= n <= MAX_CHOICES:
        raise RequestError(f"n is {shown(n)}; it must lie in [1, {MAX_CHOICES}]", param="n")
    if fields.best_of is not None and fields.best_of != n:
        raise RequestError(
            f"best_of is {shown(fields.best_of)} but n is {n}; choosing the best of more answers is not supported: "
            f"ask for n answers and choose yourself",
            param="best_of",
        )
    return n


def _sampling(
    fields: SharedFields, limit: OutputLimit, logprobs: int | None, defaults: SamplingParams
) -> SamplingParams:
    return SamplingParams(
        temperature=_or(fields.temperature, defaults.temperature),
        top_k=_or(_top_k(fields.top_k), defaults.top_k),
        top_p=_or(fields.top_p, defaults.top_p),
        min_p=_or(fields.min_p, defaults.min_p),
        seed=_or(fields.seed, defaults.seed),
        max_tokens=_or(limit.max_tokens, defaults.max_tokens),
        min_tokens=_or(fields.min_tokens, defaults.min_tokens),
        stop=_or(_stops(fields.stop), defaults.stop),
        stop_token_ids=_or(_tuple(fields.stop_token_ids), defaults.stop_token_ids),
        ignore_eos=_or(fields.ignore_eos, defaults.ignore_eos),
        include_stop=_or(fields.include_stop_str_in_output, defaults.include_stop),
        logprobs=logprobs,
        repetition_penalty=_or(fields.repetition_penalty, defaults.repetition_penalty),
        frequency_penalty=_or(fields.frequency_penalty, defaults.frequency_penalty),
        presence_penalty=_or(fields.presence_penalty, defaults.presence_penalty),
        allowed_token_ids=_or(_tuple(fields.allowed_token_ids), defaults.allowed_token_ids),
        logit_bias=_or(_logit_bias(fields.logit_bias), defaults.logit_bias),
        skip_special_tokens=_or(fields.skip_special_tokens, defaults.skip_special_tokens),
    )


def _or(given: Value | None, default: Value) -> Value:
    return default if given is None else given


def _tuple(values: list[int] | None) -> tuple[int, ...] | None:
    return None if values is None else tuple(values)


def _stops(stop: object) -> tuple[str, ...] | None:
    if stop is None:
        return None
    if isinstance(stop, str):
        return (stop,)
    if not isinstance(stop, list):
        raise RequestError(f"stop is {shown(stop)}; it must be a string or a list of strings", param="stop")
    for place, text in enumerate(stop):
        if not isinstance(text, str):
            raise RequestError(f"stop.{place} is {shown(text)}; it must be a string", param=f"stop.{place}")
    return tuple(stop)


def _top_k(top_k: int | None) -> int | None:
    if top_k is not None and top_k < -1:
        raise RequestError(
            f"top_k is {shown(top_k)}; it must be at least 1, or 0 or -1 to keep every token", param="top_k"
        )
    return 0 if top_k == -1 else top_k


def _logit_bias(bias: dict[str, float] | None) -> tuple[tuple[int, float], ...] | None:
    if bias is None:
        return None
    by_token: dict[int, float] = {}
    for key, value in bias.items():
        # Not int(): it also takes "1_000", " 7" and digits of other scripts. Ids of 19 digits fit no vocabulary.
        if not (key.isascii() and key.isdigit() and len(key) < 19):
            raise RequestError(
                f'logit_bias has the key {shown(key)}; keys must be token ids such as "42"', param="logit_bias"
            )
        by_token[int(key)] = value
    return tuple(sorted(by_token.items()))
