"""The model's tokenizer as programs know it from `transformers`: the few methods that they call.

Owns the names. Encoding, decoding and templates are the text room's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from plait.api.model_text import ModelText
from plait.llm.conversations import Conversation, Rendering, read_conversations


class LLMTokenizer:
    """Text to ids and back for one model."""

    def __init__(self, text: ModelText) -> None:
        self._text = text

    @property
    def vocab_size(self) -> int:
        return self._text.tokenizer.vocab_size

    def __len__(self) -> int:
        return self.vocab_size

    @property
    def bos_token_id(self) -> int | None:
        return self._text.tokenizer.bos_id

    @property
    def eos_token_id(self) -> int | None:
        """The model file's own; others may end an answer too."""
        return next(iter(self._text.tokenizer.eos_ids), None)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Spellings of control tokens become control tokens, as in a prompt of `generate`."""
        return self._text.encode_text(text, add_special_tokens)

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        return self._text.tokenizer.decode(token_ids, skip_special_tokens)

    def apply_chat_template(
        self,
        conversation: Conversation,
        *,
        tokenize: bool = True,
        add_generation_prompt: bool = False,
        chat_template: str | None = None,
        tools: Sequence[Mapping[str, object]] | None = None,
        **variables: object,
    ) -> str | list[int]:
        """The ids of a conversation; its text with `tokenize=False`."""
        how = Rendering(add_generation_prompt, False, chat_template, tools, variables)
        prompt = read_conversations(conversation, self._text, how)[0]
        return list(prompt.tokens) if tokenize else prompt.text or ""
