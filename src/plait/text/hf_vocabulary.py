"""HF vocabulary: what a model directory says about its tokens, as the vocabulary that everything else works with.

Owns which tokens keep their own spelling whatever the decoder does. Invariant: every id that a model can produce has
bytes, none for an id without a token.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import orjson

from plait.core.errors import ModelError
from plait.text.hf_spelling import Spelling, spell_tokens
from plait.text.hf_tokens import HfTokens
from plait.text.vocabulary import Vocabulary, end_ids


def hf_vocabulary(
    decoder: object, tokens: HfTokens, before: tuple[int, ...], after: tuple[int, ...], source: str
) -> Vocabulary:
    """The vocabulary of `tokens`, spelled by a tokenizer.json's `decoder`; `source` is for errors."""
    user_defined = {text: token.id for text, token in tokens.added.items() if text not in tokens.control}
    spelling = spell_tokens(decoder, tokens.texts, source)
    # The byte alphabet is no use for a token that is text: one with a letter like `é` would decode to a lone byte.
    whole = {**tokens.control, **(user_defined if _is_byte_level(decoder) else {})}
    _spell_whole(spelling, whole, [token for token, text in enumerate(tokens.texts) if not text])
    for token in (*before, *after):
        if not 0 <= token < len(tokens.texts):
            raise ModelError(f"{source}: post_processor adds the token {token}, which does not exist; get it again")
    return Vocabulary(
        texts=tuple(tokens.texts),
        pieces=tuple(spelling.pieces),
        control=tokens.control,
        user_defined=user_defined,
        unused={},
        named=tokens.named,
        bos_id=tokens.named_ids.get("bos_token"),
        eos_ids=end_ids(tokens.end_ids, tokens.control),
        before=before,
        after=after,
        warnings=tokens.warnings,
        first_pieces=None if spelling.first is None else tuple(spelling.first),
    )


def _is_byte_level(decoder: object) -> bool:
    return b'"ByteLevel"' in orjson.dumps(decoder)


def _spell_whole(spelling: Spelling, whole: Mapping[str, int], nothing: Iterable[int]) -> None:
    """Tokens that are recognised whole stand for their own text, ids without a token for nothing."""
    for pieces in (spelling.pieces, spelling.first):
        if pieces is None:
            continue
        for text, token in whole.items():
            pieces[token] = text.encode()
        for token in nothing:
            pieces[token] = b""
