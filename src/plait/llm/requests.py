"""Requests: from prompts and parameters to what the engine takes.

Owns the pairing of prompts with their parameters and the checks that come before anything runs.
Invariant: what is returned fits the served model; a faulty prompt is named by its place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from plait.api.model_text import ModelText
from plait.core.client import ModelInfo
from plait.core.errors import RequestError
from plait.core.ids import RequestId
from plait.core.request import Pooling, Request, ServiceClass, Task
from plait.llm.errors import InputError, input_error
from plait.llm.prompts import Prompt
from plait.llm.sampling_params import SamplingParams


def params_of(params: SamplingParams | Sequence[SamplingParams] | None, count: int) -> list[SamplingParams]:
    """The parameters of each of `count` prompts."""
    if params is None or isinstance(params, SamplingParams):
        return [SamplingParams() if params is None else params] * count
    if not isinstance(params, Sequence):
        raise InputError(f"sampling_params is of type {type(params).__name__}; give SamplingParams, or a list of them")
    if len(params) != count:
        raise InputError(f"{len(params)} sampling_params for {count} prompts; give one for each, or one for all")
    for place, one in enumerate(params):
        if not isinstance(one, SamplingParams):
            raise InputError(f"sampling_params {place} is of type {type(one).__name__}; give SamplingParams")
    return list(params)


def priorities_of(priority: Sequence[int] | None, count: int) -> list[int]:
    if priority is None:
        return [0] * count
    if len(priority) != count:
        raise InputError(f"{len(priority)} priorities for {count} prompts; give one for each, or none")
    return list(priority)


def generation(
    request_id: str,
    prompt: Prompt,
    params: SamplingParams,
    priority: int,
    model: ModelInfo,
    service_class: ServiceClass,
    where: str,
) -> Request:
    """`InputError` if the model cannot serve it. An answer ends where the model's context does, whatever max_tokens
    says, as in vLLM.
    """
    params.verify()
    room = _room(prompt, model, where, least=1)
    limit = room if params.max_tokens is None else min(params.max_tokens, room)
    if limit < params.min_tokens:
        raise InputError(
            f"{where} has {len(prompt.tokens)} tokens, which leaves {room} of the model's {model.max_model_tokens}, "
            f"but min_tokens is {params.min_tokens}; lower it or shorten the prompt"
        )
    request = Request(
        id=RequestId(request_id),
        prompt=prompt.tokens,
        sampling=params.core(limit),
        n=params.n,
        service_class=service_class,
        tenant=prompt.salt,
        priority=priority,
        cache_prefix=not params.skip_reading_prefix_cache,
    )
    return _checked(request, model, where)


def with_form(request: Request, params: SamplingParams, text: ModelText, where: str) -> Request:
    """The same with the form that its answers must have, which may take a moment to compile."""
    if params.structured_outputs is None:
        return request
    try:
        return replace(request, constraint=text.constraint(params.structured_outputs.form()))
    except RequestError as error:
        raise input_error(error, where) from None


def embedding_request(
    request_id: str, prompt: Prompt, pooling: str, model: ModelInfo, service_class: ServiceClass, where: str
) -> Request:
    if pooling not in tuple(Pooling):
        raise InputError(f"pooling is {pooling!r}; choose one of {', '.join(Pooling)}")
    _room(prompt, model, where, least=0)
    request = Request(
        id=RequestId(request_id),
        prompt=prompt.tokens,
        task=Task.EMBED,
        pooling=Pooling(pooling),
        service_class=service_class,
        tenant=prompt.salt,
    )
    return _checked(request, model, where)


def _room(prompt: Prompt, model: ModelInfo, where: str, *, least: int) -> int:
    """Tokens that the context leaves for an answer."""
    room = model.max_model_tokens - len(prompt.tokens)
    if room < least:
        raise InputError(
            f"{where} has {len(prompt.tokens)} tokens but the model holds {model.max_model_tokens}"
            f"{', output included' if least else ''}; shorten it to {model.max_model_tokens - least} tokens or less, "
            "or raise max_model_len",
            code="context_length_exceeded",
        )
    return room


def _checked(request: Request, model: ModelInfo, where: str) -> Request:
    try:
        request.validate(model.vocab_size)
    except RequestError as error:
        raise input_error(error, where) from None
    return request
