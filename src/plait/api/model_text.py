"""Model text: what this room needs of a model's tokenizer and chat template.

Owns the protocol, so that bodies can be parsed and answers shaped without knowing how a model spells.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from plait.api.bodies import JsonValue
from plait.api.messages import Message


class ModelText(Protocol):
    def encode_text(self, text: str, add_special: bool) -> list[int]:
        """Tokens of a raw prompt, in which spellings of control tokens count; `add_special` as the model's tokenizer
        does.
        """

    def encode_chat(
        self, messages: Sequence[Message], *, add_generation_prompt: bool, variables: Mapping[str, JsonValue]
    ) -> list[int]:
        """Tokens of a rendered conversation; `RequestError` if the model has no chat template or the template refuses."""

    def token_bytes(self, token: int) -> bytes:
        """The bytes that a token stands for; often not a whole character."""

    def is_special(self, token: int) -> bool:
        """Whether the token is a control token, left out of the text unless the request wants it."""
