"""A model text of bytes: token i below 256 is byte i, so that every expected token can be read in the test.

The real tokenizer and template of the text room over a vocabulary of 256 bytes and a few control tokens. A chat is
rendered as `<|role|>content<|end|>`.
"""

from __future__ import annotations

from datetime import UTC, datetime

from plait.api.model_text import ModelText
from plait.core.client import ModelInfo
from plait.text.alphabet import ALPHABET
from plait.text.chat import ChatTemplate
from plait.text.gguf import tokenizer_from_gguf

CONTROL = ("<|begin|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>")
BEGIN, END, SYSTEM, USER, ASSISTANT = range(256, 261)
VOCAB_SIZE = 256 + len(CONTROL)
TEMPLATE = """\
{%- for message in messages %}<|{{ message.role }}|>{{ message.content }}<|end|>{% endfor %}
{%- if thinking is defined %}{{ thinking }}{% endif %}
{%- if reasoning_effort is defined %}{{ reasoning_effort }}{% endif %}
{%- if add_generation_prompt %}<|assistant|>{% endif %}"""

MODEL = ModelInfo(name="byte-model", vocab_size=VOCAB_SIZE, max_model_tokens=64, fingerprint="fp-1", bit_exact=True)


def byte_text(*, adds_begin: bool = False, has_template: bool = True) -> ModelText:
    """`adds_begin`: raw prompts start with a begin-of-text token. Without a template it is a base model."""
    tokenizer = tokenizer_from_gguf(
        {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": "gpt-2",
            "tokenizer.ggml.tokens": [*ALPHABET, *CONTROL],
            "tokenizer.ggml.token_type": [1] * 256 + [3] * len(CONTROL),
            "tokenizer.ggml.merges": [],
            "tokenizer.ggml.bos_token_id": BEGIN,
            "tokenizer.ggml.eos_token_id": END,
            "tokenizer.ggml.add_bos_token": adds_begin,
        }
    )
    template = ChatTemplate(TEMPLATE, tokenizer.named_tokens, lambda: datetime(2025, 1, 1, tzinfo=UTC))
    return ModelText(tokenizer, template if has_template else None)
