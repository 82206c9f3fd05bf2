"""Tokenizer: text to ids and back.

Owns the encoding of one model, control tokens included. Knows nothing about chats, requests or where the vocabulary
came from. Invariant: with `parse_special=False` no control token is ever produced, whatever the text says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tokenizers import Encoding
from tokenizers import Tokenizer as Backend

from plait.core.errors import RequestError
from plait.text.alphabet import lone_surrogate
from plait.text.literals import Literals
from plait.text.vocabulary import Vocabulary


class Tokenizer:
    """Encodes and decodes for one model. Immutable, so it may be shared between threads.

    `backend` merges plain text and has no added tokens of its own: control and user-defined tokens are cut out here,
    before it sees the text, so that which of them count is decided per call.
    """

    __slots__ = (
        "_backend",
        "_every_literal",
        "_pieces",
        "_special",
        "_user_defined",
        "_visible",
        "_vocabulary",
        "control",
        "warnings",
    )

    def __init__(self, vocabulary: Vocabulary, backend: Backend, warnings: tuple[str, ...] = ()) -> None:
        self._vocabulary = vocabulary
        self._backend = backend
        self.warnings = warnings
        """What was missing in the model file, and what was guessed; for whoever reports to the user."""
        self.control = Literals(vocabulary.control)
        """The control tokens by their spelling."""
        self._user_defined = Literals(vocabulary.user_defined)
        self._every_literal = Literals({**vocabulary.user_defined, **vocabulary.control})
        self._special = frozenset(vocabulary.control.values())
        self._pieces = vocabulary.pieces
        self._visible = tuple(
            [b"" if token in self._special else piece for token, piece in enumerate(vocabulary.pieces)]
        )

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
        literals = self._every_literal if parse_special else self._user_defined
        cuts = [literals.split(text) for text in texts]
        merged = iter(self._merge([piece for cut in cuts for piece in cut[::2] if piece]))
        batch: list[list[int]] = []
        for cut in cuts:
            ids: list[int] = []
            for place, piece in enumerate(cut):
                if place % 2:
                    ids.append(literals.ids[piece])
                elif piece:
                    ids += next(merged).ids
            batch.append(self._framed(ids) if add_special else ids)
        return batch

    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str:
        """The text of `ids`; bytes that are not UTF-8 become U+FFFD."""
        self._check(ids)
        pieces = self.pieces(skip_special)
        return b"".join([pieces[token] for token in ids]).decode("utf-8", "replace")

    def pieces(self, skip_special: bool) -> Sequence[bytes]:
        """The bytes of every token by id, control tokens empty if `skip_special`."""
        return self._visible if skip_special else self._pieces

    def is_special(self, token: int) -> bool:
        return token in self._special

    def token_bytes(self, token: int) -> bytes:
        """The bytes that the token stands for; often not a whole character. A control token gives its own spelling."""
        self._check((token,))
        return self._pieces[token]

    def _merge(self, plain: list[str]) -> list[Encoding]:
        for text in plain:
            if lone := lone_surrogate(text):
                raise RequestError(f"the text contains the lone surrogate {lone}, which is no character; remove it")
        # The batch call releases the interpreter lock, the call for a single text does not; "fast" leaves out offsets.
        return self._backend.encode_batch_fast(plain, add_special_tokens=False) if plain else []

    def _framed(self, ids: list[int]) -> list[int]:
        vocabulary = self._vocabulary
        if vocabulary.add_bos and vocabulary.bos_id is not None and ids[:1] != [vocabulary.bos_id]:
            ids.insert(0, vocabulary.bos_id)
        if vocabulary.add_eos and ids[-1:] != [vocabulary.eos_ids[0]]:
            ids.append(vocabulary.eos_ids[0])
        return ids

    def _check(self, ids: Sequence[int]) -> None:
        if ids and not (min(ids) >= 0 and max(ids) < len(self._pieces)):
            wrong = next(token for token in ids if not 0 <= token < len(self._pieces))
            last = len(self._pieces) - 1
            raise RequestError(
                f"token id {wrong} is not in the vocabulary; use ids from 0 to {last}", code="bad_token_id"
            )
