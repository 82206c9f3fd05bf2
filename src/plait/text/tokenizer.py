"""Tokenizer: text to ids and back.

Owns the encoding of one model, control tokens included. Knows nothing about chats, requests or where the vocabulary
came from. Invariant: with `parse_special=False` no control token is ever produced, whatever the text says (save the
one for unknown characters, in vocabularies that do not fall back to bytes).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from plait.core.errors import RequestError
from plait.text.encoders import Encoder
from plait.text.literals import Literals
from plait.text.vocabulary import Vocabulary


class Tokenizer:
    """Encodes and decodes for one model. Immutable, so it may be shared between threads."""

    __slots__ = ("_encoder", "_first", "_pieces", "_special", "_visible", "_vocabulary", "control", "warnings")

    def __init__(self, vocabulary: Vocabulary, encoder: Encoder, warnings: tuple[str, ...] = ()) -> None:
        self._vocabulary = vocabulary
        self._encoder = encoder
        self.warnings = warnings
        """What was missing in the model file, and what was guessed; for whoever reports to the user."""
        self.control = Literals(vocabulary.control)
        """The control tokens by their spelling."""
        self._special = frozenset(vocabulary.control.values())
        self._pieces = vocabulary.pieces
        self._visible = self._without_special(vocabulary.pieces)
        self._first = vocabulary.first_pieces or vocabulary.pieces

    @property
    def vocab_size(self) -> int:
        return len(self._pieces)

    @property
    def bos_id(self) -> int | None:
        return self._vocabulary.bos_id

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """Every token that ends a generation; the model file's own end of sequence comes first."""
        return self._vocabulary.eos_ids

    @property
    def named_tokens(self) -> Mapping[str, str]:
        """What a chat template may name.

        `bos_token`, `eos_token`, `unk_token`, `pad_token`, as far as the model has them.
        """
        return self._vocabulary.named

    def encode(self, text: str, add_special: bool, parse_special: bool = False) -> list[int]:
        """The ids of `text`.

        `add_special` puts begin and end of text around it if the model wants them and they are not there already.
        `parse_special` lets spellings like `<|im_end|>` become control tokens: only for text that may command the
        model.
        """
        return self.encode_batch([text], add_special, parse_special)[0]

    def encode_batch(self, texts: Sequence[str], add_special: bool, parse_special: bool = False) -> list[list[int]]:
        """`encode` for many texts in one call; the merging runs without the interpreter lock."""
        batch = self._encoder.encode(texts, parse_special)
        return [self._framed(ids) for ids in batch] if add_special else batch

    def encode_cut(self, cut: Sequence[str]) -> list[int]:
        """The ids of one text that was cut with `control.split`: plain text at even places, control tokens at odd.

        The plain text is never searched for control tokens again.
        """
        return self._encoder.encode_cut(cut)

    def decode(self, ids: Sequence[int], skip_special: bool = True, *, continues: bool = False) -> str:
        """The text of `ids`; bytes that are not UTF-8 become U+FFFD.

        `continues` says that they follow other tokens: where a vocabulary spells a word with the space before it, the
        first one keeps that space.
        """
        self._check(ids)
        head, rest, _ = (b"", ids, True) if continues else self.begin(ids, skip_special)
        pieces = self.pieces(skip_special)
        return (head + b"".join([pieces[token] for token in rest])).decode("utf-8", "replace")

    def pieces(self, skip_special: bool) -> Sequence[bytes]:
        """The bytes of every token by id, control tokens empty if `skip_special`; not at the start of a text."""
        return self._visible if skip_special else self._pieces

    def begin(self, ids: Sequence[int], skip_special: bool) -> tuple[bytes, Sequence[int], bool]:
        """The start of a text: the bytes of its first token that shows, the ids after it, and whether one did."""
        if self._first is self._pieces:
            return b"", ids, True
        for place, token in enumerate(ids):
            if not (skip_special and token in self._special):
                return self._first[token], ids[place + 1 :], True
        return b"", (), False

    def is_special(self, token: int) -> bool:
        return token in self._special

    def token_bytes(self, token: int) -> bytes:
        """The bytes that the token stands for; often not a whole character. A control token gives its own spelling."""
        if not 0 <= token < len(self._pieces):
            self._check((token,))
        return self._pieces[token]

    def _framed(self, ids: list[int]) -> list[int]:
        before, after = list(self._vocabulary.before), list(self._vocabulary.after)
        if before and ids[: len(before)] != before:
            ids = before + ids
        if after and ids[-len(after) :] != after:
            ids = ids + after
        return ids

    def _without_special(self, pieces: Sequence[bytes]) -> tuple[bytes, ...]:
        return tuple([b"" if token in self._special else piece for token, piece in enumerate(pieces)])

    def _check(self, ids: Sequence[int]) -> None:
        if ids and not (min(ids) >= 0 and max(ids) < len(self._pieces)):
            wrong = next(token for token in ids if not 0 <= token < len(self._pieces))
            last = len(self._pieces) - 1
            raise RequestError(
                f"token id {wrong} is not in the vocabulary; use ids from 0 to {last}", code="bad_token_id"
            )
