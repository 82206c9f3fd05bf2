"""Prompts: the forms in which callers write them, as token ids.

Owns the recognition of forms and the sentences about faulty ones. Encoding is the text room's.
Invariant: a `Prompt` has at least one token; which one of many is faulty is always named.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NotRequired, TypeAlias, TypedDict

from plait.api.model_text import ModelText
from plait.config.option import nearest
from plait.core.errors import RequestError
from plait.llm.errors import InputError, input_error


class TextPrompt(TypedDict):
    prompt: str
    cache_salt: NotRequired[str]


class TokensPrompt(TypedDict):
    prompt_token_ids: list[int]
    prompt: NotRequired[str]
    cache_salt: NotRequired[str]


PromptType: TypeAlias = str | list[int] | TextPrompt | TokensPrompt

_KEYS = ("prompt", "prompt_token_ids", "cache_salt")


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt as the engine takes it. `text`: as it was written, None for token ids. Only prompts of equal `salt`
    share a cache.
    """

    text: str | None
    tokens: tuple[int, ...]
    salt: str = ""


def read_prompts(prompts: PromptType | Sequence[PromptType], text: ModelText) -> list[Prompt]:
    """One prompt, or many: a string, a dict and a list of token ids are one."""
    if isinstance(prompts, str | Mapping) or _is_tokens(prompts):
        return [read_prompt(prompts, text, "the prompt")]
    if not isinstance(prompts, Sequence):
        raise InputError(
            f"prompts is of type {type(prompts).__name__}; give a string, a dict, a list of token ids, or a list of "
            "these"
        )
    return [read_prompt(prompt, text, f"prompt {place}") for place, prompt in enumerate(prompts)]


def read_prompt(prompt: object, text: ModelText, where: str) -> Prompt:
    """`where` names it in errors."""
    if isinstance(prompt, str):
        return Prompt(prompt, _encoded(prompt, text, where))
    if isinstance(prompt, Mapping):
        return _from_dict(prompt, text, where)
    if isinstance(prompt, Sequence):
        return Prompt(None, _tokens(prompt, where))
    raise InputError(f"{where} is of type {type(prompt).__name__}; it must be a string, a dict or a list of token ids")


def _from_dict(prompt: Mapping[str, object], text: ModelText, where: str) -> Prompt:
    for key in prompt:
        if key not in _KEYS:
            close = nearest(str(key), _KEYS)
            raise InputError(f"{where} has the key {key!r}{close or '; this model reads text only: leave it out'}")
    written, salt = prompt.get("prompt"), prompt.get("cache_salt", "")
    if not isinstance(salt, str):
        raise InputError(f"{where} has the cache_salt {salt!r}; it must be a string")
    if written is not None and not isinstance(written, str):
        raise InputError(f"{where} has under 'prompt' a value of type {type(written).__name__}; it must be a string")
    if "prompt_token_ids" in prompt:
        return Prompt(written, _tokens(prompt["prompt_token_ids"], where), salt)
    if written is None:
        raise InputError(f'{where} has neither text nor tokens; write {{"prompt": ...}} or {{"prompt_token_ids": ...}}')
    return Prompt(written, _encoded(written, text, where), salt)


def _encoded(prompt: str, text: ModelText, where: str) -> tuple[int, ...]:
    try:
        tokens = text.encode_text(prompt, add_special=True)
    except RequestError as error:
        raise input_error(error, where) from None
    if not tokens:
        raise InputError(f"{where} is empty and this model adds no begin-of-text token; give at least one token")
    return tuple(tokens)


def _tokens(values: object, where: str) -> tuple[int, ...]:
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise InputError(f"{where} has token ids of type {type(values).__name__}; they must be a list")
    for value in values:
        if isinstance(value, bool) or not isinstance(value, int):
            raise InputError(f"{where} holds {value!r} among its token ids; they are integers")
    if not values:
        raise InputError(f"{where} is an empty list of token ids; give at least one token")
    return tuple(values)


def _is_tokens(prompts: object) -> bool:
    return isinstance(prompts, Sequence) and bool(prompts) and isinstance(prompts[0], int)
