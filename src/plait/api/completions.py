"""Completions: bodies of /v1/completions.

Owns the prompt in its four forms and the fields that only text completions have. Shared fields are in `fields`.
Invariant: the prompts of a `CompletionBody` are in the order of the body, none of them is an empty list of tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from pydantic import BaseModel

from plait.api.bodies import JsonObject
from plait.api.calls import Call, Endpoint, make_call, truncated
from plait.api.checking import LENIENT_ABOUT_NAMES_STRICT_ABOUT_TYPES, Integer, checked
from plait.api.fields import (
    Generation,
    OutputLimit,
    SharedFields,
    generation,
    num_alternatives,
    output_limit,
)
from plait.api.model_text import ModelText
from plait.api.prompts import Prompt, encoded_prompt, read_prompts
from plait.api.refusals import refuse_unsupported
from plait.api.scoring import Scoring, echo_of
from plait.api.structured import grammar_of
from plait.core.client import ModelInfo
from plait.core.errors import RequestError
from plait.core.sampling import SamplingParams, check_token_ids

DEFAULT_MAX_TOKENS = 16
"""As in the OpenAI API, which is why so many first completions look cut off."""


class CompletionFields(BaseModel):
    model_config = LENIENT_ABOUT_NAMES_STRICT_ABOUT_TYPES

    max_tokens: Integer | None = None
    echo: bool | None = None
    logprobs: Integer | None = None
    add_special_tokens: bool | None = None


@dataclass(frozen=True, slots=True)
class CompletionBody:
    """`prompts` are (path in the body, text or token ids)."""

    prompts: tuple[tuple[str, Prompt], ...]
    generation: Generation
    add_special_tokens: bool


def parse_completion(body: JsonObject, defaults: SamplingParams | None = None) -> CompletionBody:
    """Check a body; `RequestError` for the first fault. `defaults` hold for sampling fields that it leaves out."""
    shared = checked(SharedFields, body)
    fields = checked(CompletionFields, body)
    refuse_unsupported(body)
    logprobs = None if fields.logprobs is None else num_alternatives(fields.logprobs, "logprobs")
    scoring, limit = _scoring(fields, shared)
    return CompletionBody(
        prompts=read_prompts(body.get("prompt"), "prompt"),
        generation=replace(
            generation(shared, limit, logprobs, defaults or SamplingParams(), scoring), grammar=grammar_of(body)
        ),
        add_special_tokens=fields.add_special_tokens is not False,
    )


def completion_call(body: CompletionBody, call_id: str, text: ModelText, model: ModelInfo) -> Call:
    """Encode the prompts; `RequestError` if one of them is empty or does not fit the model."""
    encoded, echoes = [], []
    asked = body.generation
    for path, prompt in body.prompts:
        tokens = encoded_prompt(path, prompt, text, body.add_special_tokens)
        kept = truncated(tokens, asked, model)
        encoded.append((path, kept))
        if asked.scoring.echo:
            check_token_ids(path, kept, model.vocab_size)  # they are spelled before the engine sees them
            whole = prompt if len(kept) == len(tokens) else kept
            echoes.append(echo_of(whole, kept, text.tokenizer, asked.sampling.skip_special_tokens))
    constraint = text.constraint(asked.grammar)
    call = make_call(Endpoint.COMPLETIONS, call_id, asked, encoded, model, constraint)
    return replace(call, echoes=tuple(echoes))


def _scoring(fields: CompletionFields, shared: SharedFields) -> tuple[Scoring, OutputLimit]:
    if fields.max_tokens != 0:
        limit = output_limit(fields.max_tokens, "max_tokens") or OutputLimit(DEFAULT_MAX_TOKENS, None)
        return Scoring(echo=bool(fields.echo)), limit
    if not fields.echo and shared.prompt_logprobs is None:
        raise RequestError(
            "max_tokens is 0, so the answer would be empty; ask for at least 1, or for the prompt itself with echo or "
            "prompt_logprobs",
            param="max_tokens",
        )
    return Scoring(echo=bool(fields.echo), prompt_only=True), OutputLimit(1, "max_tokens")
