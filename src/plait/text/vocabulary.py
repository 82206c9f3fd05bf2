"""Vocabulary: every token's text, bytes and kind, read from GGUF metadata and checked once.

Owns which tokens are control tokens and which end a generation. Knows nothing about merging or splitting text.
Invariant: all token texts differ, and every id that the metadata names is a token.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

from plait.core.errors import ModelError
from plait.text.alphabet import ALPHABET, lone_surrogate, unspell_all


class TokenKind(IntEnum):
    """The values of `tokenizer.ggml.token_type`."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


_KINDS = frozenset(int(kind) for kind in TokenKind)
_ORDINARY = (int(TokenKind.NORMAL), int(TokenKind.BYTE))

# Control tokens by which chat models end a turn or a document. A GGUF names one of them as end of sequence, but
# models also stop by the others (a chat model that falls back to plain text ends with <|endoftext|>).
END_TEXTS = (
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end|>",
    "<|end_of_text|>",
    "<|endoftext|>",
    "<|end_of_turn|>",
    "<end_of_turn>",
    "<EOT>",
)
_END_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")
_NAMED = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
}


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """What one model's tokens are. Everything here is data; nothing encodes."""

    texts: tuple[str, ...]
    """As the file spells them: byte alphabet for ordinary tokens, raw text for control and user-defined ones."""
    pieces: tuple[bytes, ...]
    """The bytes that each token stands for; a control token's are its own spelling, an unused token has none."""
    control: Mapping[str, int]
    """Tokens that only a template or the engine may write: never reached from ordinary text."""
    user_defined: Mapping[str, int]
    """Tokens that are part of ordinary text but matched whole, like `<think>`."""
    unused: Mapping[str, int]
    """Padding of the table: neither read nor written."""
    named: Mapping[str, str]
    """Texts of the tokens that a chat template may name: `bos_token`, `eos_token`, `unk_token`, `pad_token`."""
    bos_id: int | None
    eos_ids: tuple[int, ...]
    """Every token that ends a generation; the one that the file calls end of sequence comes first."""
    before: tuple[int, ...]
    """What the model wants in front of every text, usually begin of text."""
    after: tuple[int, ...]
    warnings: tuple[str, ...]
    """What had to be guessed, one sentence each, for whoever reports to the user."""
    first_pieces: tuple[bytes, ...] | None = None
    """The bytes of tokens at the start of a text, where they differ: some vocabularies spell a word with the space
    before it, and a text does not begin with that space."""


def read_vocabulary(
    metadata: Mapping[str, object], *, add_bos: bool, spell: Callable[[Sequence[str]], list[bytes]] = unspell_all
) -> Vocabulary:
    """Check and arrange the vocabulary.

    `add_bos` is what the model family does where the file does not say; `spell` gives the bytes of ordinary tokens.
    """
    texts = string_list(metadata, "tokenizer.ggml.tokens")
    if not texts:
        raise ModelError("tokenizer.ggml.tokens is empty: the file has no vocabulary; get a complete GGUF file")
    _check_unique(texts)
    warnings: list[str] = []
    kinds = _kinds(metadata, len(texts), warnings)
    named_ids = {key: _token_id(metadata, key, len(texts)) for key in (*_NAMED.values(), *_END_KEYS)}
    bos_id = named_ids["bos_token_id"]
    _force_control(kinds, texts, [bos_id, *(named_ids[key] for key in _END_KEYS)])
    special = {token: kind for token, kind in enumerate(kinds) if kind not in _ORDINARY}
    control = {texts[token]: token for token, kind in special.items() if kind in (TokenKind.CONTROL, TokenKind.UNKNOWN)}
    declared = [token for key in _END_KEYS if (token := named_ids[key]) is not None]
    return Vocabulary(
        texts=texts,
        pieces=_pieces(texts, special, spell),
        control=control,
        user_defined={texts[token]: token for token, kind in special.items() if kind == TokenKind.USER_DEFINED},
        unused={texts[token]: token for token, kind in special.items() if kind == TokenKind.UNUSED},
        named={name: texts[token] for name, key in _NAMED.items() if (token := named_ids[key]) is not None},
        bos_id=bos_id,
        eos_ids=end_ids(declared, control),
        before=_frame(metadata, "bos", add_bos, bos_id),
        after=_frame(metadata, "eos", False, named_ids["eos_token_id"]),
        warnings=tuple(warnings),
    )


def end_ids(declared: Sequence[int], control: Mapping[str, int]) -> tuple[int, ...]:
    """Every token that ends a generation: what the files name, in their order, then what is spelled like one."""
    return tuple(dict.fromkeys([*declared, *sorted(control[text] for text in END_TEXTS if text in control)]))


def string_list(metadata: Mapping[str, object], key: str) -> tuple[str, ...]:
    values = _list(metadata, key)
    if values is None:
        raise ModelError(f"{key} is missing: the file does not describe its tokenizer; get a complete GGUF file")
    strings = [value for value in values if isinstance(value, str)]
    if len(strings) != len(values):
        wrong = next(value for value in values if not isinstance(value, str))
        raise ModelError(f"{key} holds a {type(wrong).__name__} among its strings; the file is corrupt, get it again")
    if lone_surrogate("".join(strings)):
        raise ModelError(f"{key} holds a string that is not valid Unicode; the file is corrupt, get it again")
    return tuple(strings)


def number_list(metadata: Mapping[str, object], key: str) -> tuple[float, ...]:
    values = _list(metadata, key)
    if values is None:
        raise ModelError(f"{key} is missing: the file does not describe its tokenizer; get a complete GGUF file")
    numbers = [value for value in values if isinstance(value, int | float) and math.isfinite(value)]
    if len(numbers) != len(values):
        raise ModelError(f"{key} holds something other than numbers; the file is corrupt, get it again")
    return tuple(numbers)


def flag(metadata: Mapping[str, object], key: str, default: bool) -> bool:
    value = metadata.get(key, default)
    if not isinstance(value, bool):
        raise ModelError(f"{key} is {value!r:.40} but must be true or false; the file is corrupt, get it again")
    return value


def _frame(metadata: Mapping[str, object], name: str, default: bool, token: int | None) -> tuple[int, ...]:
    if not flag(metadata, f"tokenizer.ggml.add_{name}_token", default):
        return ()
    if token is None:
        raise ModelError(
            f"tokenizer.ggml.add_{name}_token is set but there is no tokenizer.ggml.{name}_token_id; "
            "convert the model again"
        )
    return (token,)


def _list(metadata: Mapping[str, object], key: str) -> Sequence[object] | None:
    value = metadata.get(key)
    if value is not None and not isinstance(value, list | tuple):
        raise ModelError(f"{key} is a {type(value).__name__} but must be a list; the file is corrupt, get it again")
    return value


def _check_unique(texts: Sequence[str]) -> None:
    if len(set(texts)) == len(texts):
        return
    last = {text: token for token, text in enumerate(texts)}
    first = next(token for token, text in enumerate(texts) if last[text] != token)
    raise ModelError(
        f"tokenizer.ggml.tokens spells tokens {first} and {last[texts[first]]} both as {texts[first]!r:.60}; "
        "convert the model again"
    )


def _kinds(metadata: Mapping[str, object], num_tokens: int, warnings: list[str]) -> list[int]:
    key = "tokenizer.ggml.token_type"
    values = _list(metadata, key)
    if values is None:
        warnings.append(
            f"{key} is missing: only the tokens named as begin or end of text are treated as control tokens"
        )
        return [int(TokenKind.NORMAL)] * num_tokens
    if len(values) != num_tokens:
        raise ModelError(f"{key} has {len(values)} entries for {num_tokens} tokens; the file is corrupt, get it again")
    kinds = [value for value in values if isinstance(value, int)]
    if len(kinds) != num_tokens or not _KINDS.issuperset(kinds):
        wrong = next(token for token, value in enumerate(values) if not isinstance(value, int) or value not in _KINDS)
        raise ModelError(
            f"{key} of token {wrong} is {values[wrong]!r:.40} but must be 1 to 6; the file is corrupt, get it again"
        )
    return kinds


def _token_id(metadata: Mapping[str, object], name: str, num_tokens: int) -> int | None:
    value = metadata.get(f"tokenizer.ggml.{name}")
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < num_tokens:
        raise ModelError(
            f"tokenizer.ggml.{name} is {value!r:.40} but the vocabulary has tokens 0 to {num_tokens - 1}; "
            "convert the model again"
        )
    return value


def _force_control(kinds: list[int], texts: Sequence[str], tokens: Sequence[int | None]) -> None:
    """Begin and end of text are control tokens even where a converter typed them as text.

    Except one that is a single byte (a base model may end at a newline): text needs that byte.
    """
    for token in tokens:
        if token is not None and texts[token] not in ALPHABET:
            kinds[token] = TokenKind.CONTROL


def _pieces(
    texts: Sequence[str], special: Mapping[int, int], spell: Callable[[Sequence[str]], list[bytes]]
) -> tuple[bytes, ...]:
    spelled = list(texts)
    for token in special:
        spelled[token] = ""
    pieces = spell(spelled)
    for token, kind in special.items():
        pieces[token] = b"" if kind == TokenKind.UNUSED else texts[token].encode()
    return tuple(pieces)
