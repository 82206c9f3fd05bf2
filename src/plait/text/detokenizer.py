"""Detokenizer: ids to text while they arrive, for one sequence.

Owns the bytes of a character that is not complete yet. Knows nothing about stop strings or requests. Invariant: what
was returned so far plus `finish()` equals `Tokenizer.decode` of all ids with the same settings, and no part of a
character is ever returned.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from plait.text.tokenizer import Tokenizer


class Detokenizer:
    """Constant work per token.

    The bytes of tokens go through an incremental UTF-8 decoder and are never decoded twice.
    """

    __slots__ = ("_begun", "_decoder", "_num_chars", "_pieces", "_skip_special", "_tokenizer")

    def __init__(self, tokenizer: Tokenizer, skip_special: bool = True, *, continues: bool = False) -> None:
        """`continues`: the tokens follow others, as an answer follows its prompt."""
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._begun = continues
        self._pieces = tokenizer.pieces(skip_special)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._num_chars = 0

    @property
    def num_chars(self) -> int:
        """Complete characters so far.

        Read before a token is pushed, it is the place in the text where that token begins.
        """
        return self._num_chars

    def push(self, ids: Sequence[int]) -> str:
        """The characters that `ids` complete, often none.

        U+FFFD appears only once its bytes can no longer become valid.
        """
        if self._begun and len(ids) == 1:  # as nearly always
            text = self._decoder.decode(self._pieces[ids[0]])
        else:
            text = self._decoder.decode(self._bytes(ids))
        self._num_chars += len(text)
        return text

    def _bytes(self, ids: Sequence[int]) -> bytes:
        head = b""
        if not self._begun:
            head, ids, self._begun = self._tokenizer.begin(ids, self._skip_special)
        return head + b"".join([self._pieces[token] for token in ids])

    def finish(self) -> str:
        """The sequence has ended: the bytes of an unfinished character become U+FFFD."""
        text = self._decoder.decode(b"", final=True)
        self._num_chars += len(text)
        return text
