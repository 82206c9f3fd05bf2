"""Prompts: texts and token ids, one or many, as bodies hold them.

Owns the four forms of such a field. Invariant: prompts are in the order of the body, none of them is an empty list of
tokens.
"""

from __future__ import annotations

from plait.api.bodies import JsonValue, shown
from plait.api.checking import whole
from plait.api.model_text import ModelText
from plait.core.errors import RequestError

MAX_PROMPTS = 2048
"""Prompts in one body, as in the OpenAI API."""

Prompt = str | tuple[int, ...]


def read_prompts(prompt: JsonValue, field: str) -> tuple[tuple[str, Prompt], ...]:
    """(path in the body, text or token ids) of each; `RequestError` for the first fault."""
    if isinstance(prompt, str):
        return ((field, prompt),)
    if not isinstance(prompt, list):
        raise RequestError(
            f"{field} is {shown(prompt)}; it must be text, token ids, or a list of either",
            param=field,
        )
    if not prompt:
        raise RequestError(f"{field} is empty; send at least one prompt", param=field)
    if _is_int(whole(prompt[0])):
        return ((field, _token_ids(prompt, field)),)
    if len(prompt) > MAX_PROMPTS:
        raise RequestError(f"{field} holds {len(prompt)} prompts; at most {MAX_PROMPTS} fit one body", param=field)
    return tuple((f"{field}.{place}", _prompt(one, f"{field}.{place}")) for place, one in enumerate(prompt))


def _prompt(prompt: JsonValue, path: str) -> Prompt:
    if isinstance(prompt, str):
        return prompt
    if isinstance(prompt, list):
        return _token_ids(prompt, path)
    raise RequestError(f"{path} is {shown(prompt)}; it must be a string or a list of token ids", param=path)


def _token_ids(given: list[JsonValue], path: str) -> tuple[int, ...]:
    values = [whole(value) for value in given]
    if not values:
        raise RequestError(f"{path} is an empty list; send at least one token", param=path)
    for place, value in enumerate(values):
        if not _is_int(value):
            raise RequestError(f"{path}.{place} is {shown(value)}; it must be a token id", param=f"{path}.{place}")
    return tuple(value for value in values if isinstance(value, int))


def _is_int(value: object) -> bool:
    # JSON's true is no token, though Python's is an int.
    return isinstance(value, int) and not isinstance(value, bool)


def encoded_prompt(path: str, prompt: Prompt, text: ModelText, add_special: bool) -> list[int]:
    tokens = text.encode_text(prompt, add_special) if isinstance(prompt, str) else list(prompt)
    if not tokens:
        raise RequestError(
            f"{path} is empty and this model adds no begin-of-text token; send at least one token", param=path
        )
    return tokens
