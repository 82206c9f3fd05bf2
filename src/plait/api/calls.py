"""Calls: what one body asks of the engine, complete.

Owns `Call` and the step from a parsed body and prompts in tokens to core requests: the context limit, token ids,
ranges. Parses no JSON and encodes no text.
Invariant: choice j of prompt i has index i * n + j, and every request of a call fits the model's context.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from plait.api.bodies import JsonObject, shown
from plait.api.fields import Generation
from plait.api.scoring import Echo, PromptPart
from plait.api.vectors import VectorForm
from plait.core.client import ModelInfo
from plait.core.constraint import ConstraintSource
from plait.core.errors import RequestError
from plait.core.ids import RequestId
from plait.core.request import Request
from plait.core.sampling import check_token_ids
from plait.text.tool_calls import ToolCallReader, ToolFormat


class Endpoint(StrEnum):
    """The routes that the engine answers, by their path."""

    CHAT = "/v1/chat/completions"
    COMPLETIONS = "/v1/completions"
    EMBEDDINGS = "/v1/embeddings"
    RESPONSES = "/v1/responses"


@dataclass(frozen=True, slots=True)
class Call:
    """One body, ready to be submitted: one request per prompt. `id` and `model` are what the answer shows."""

    endpoint: Endpoint
    id: str
    model: str
    fingerprint: str
    generation: Generation
    requests: tuple[Request, ...]
    tool_format: ToolFormat | None = None
    """How calls of functions are written, where there are functions to call."""
    only_first_call: bool = False
    vectors: VectorForm | None = None
    """How vectors are told, where they are what was asked for."""
    told: JsonObject | None = None
    """What a response object repeats of its body; None: the answer is no such object."""
    echoes: tuple[Echo, ...] = ()
    """The texts of the prompts, where answers begin with them."""

    @property
    def num_choices(self) -> int:
        return len(self.requests) * self.generation.n

    def tool_reader(self) -> ToolCallReader | None:
        """What finds the calls in one choice's text; None: there are none in it."""
        if self.tool_format is None:
            return None
        return ToolCallReader(self.tool_format, only_first=self.only_first_call)

    def prompt_parts(self) -> list[PromptPart]:
        """What is to be said of each prompt, still empty."""
        asked = self.generation
        return [
            PromptPart(
                request.prompt,
                asked.scoring,
                asked.sampling.logprobs,
                self.echoes[place] if self.echoes else None,
            )
            for place, request in enumerate(self.requests)
        ]


def make_call(
    endpoint: Endpoint,
    call_id: str,
    generation: Generation,
    prompts: Sequence[tuple[str, Sequence[int]]],
    model: ModelInfo,
    constraint: ConstraintSource | None = None,
) -> Call:
    """`prompts` are (path in the body, tokens); `RequestError` if one of them, or a parameter, cannot be served.
    `constraint` is the body's grammar, compiled.
    """
    generation.sampling.validate(model.vocab_size)
    requests = []
    for place, (path, tokens) in enumerate(prompts):
        check_token_ids(path, tokens, model.vocab_size)  # the engine checks again, but knows no path
        requests.append(
            Request(
                id=RequestId(f"{call_id}-{place}"),
                prompt=tuple(tokens),
                sampling=replace(generation.sampling, max_tokens=_max_tokens(len(tokens), path, generation, model)),
                n=generation.n,
                service_class=generation.service_class,
                tenant=generation.tenant,
                priority=generation.priority,
                slo=generation.slo,
                constraint=constraint,
            )
        )
    return Call(endpoint, call_id, generation.model or model.name, model.fingerprint, generation, tuple(requests))


def truncated(tokens: Sequence[int], asked: Generation, model: ModelInfo) -> Sequence[int]:
    """The part of a prompt that the body wants read: all of it, unless it says otherwise."""
    if asked.truncation is None:
        return tokens
    return asked.truncation.cut(tokens, model.max_model_tokens - (asked.sampling.max_tokens or 1))


def check_model(name: str | None, served: Sequence[str]) -> None:
    """`RequestError` 404 for a model that is not served. A body without a model means the only one there is."""
    if name is not None and name not in served:
        raise RequestError(
            f"model {shown(name)} is not served here; ask for {' or '.join(repr(known) for known in served)}",
            param="model",
            code="model_not_found",
            status=404,
        )


def for_tenant(call: Call, tenant: str) -> Call:
    """Nobody finds out what others asked by how fast a prompt is answered: keys share no prefixes. Empty: no keys."""
    if not tenant:
        return call
    return replace(call, requests=tuple(replace(one, tenant=f"{tenant}/{one.tenant}") for one in call.requests))


def _max_tokens(num_prompt: int, path: str, generation: Generation, model: ModelInfo) -> int | None:
    """The output limit of one prompt: an explicit one must fit the context, a default one is cut to what is left."""
    room = model.max_model_tokens - num_prompt
    if room < 1:
        raise RequestError(
            # In the words that clients look for, to take another model or to shorten a conversation.
            f"{path} has {num_prompt} tokens but this model's maximum context length is {model.max_model_tokens} "
            f"tokens, output included; shorten it to {model.max_model_tokens - 1} tokens or less",
            param=path,
            code="context_length_exceeded",
        )
    wanted = generation.sampling.max_tokens
    if wanted is None or wanted <= room:
        return wanted
    field = generation.explicit_max
    if field is None:
        return room
    raise RequestError(
        f"{path} has {num_prompt} tokens and {field} asks for {wanted}, together {num_prompt + wanted}, but this "
        f"model's maximum context length is {model.max_model_tokens} tokens; lower {field} to {room} or shorten the "
        "prompt",
        param=field,
        code="context_length_exceeded",
    )
