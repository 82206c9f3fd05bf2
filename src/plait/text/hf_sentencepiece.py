"""HF sentencepiece: the tokenizer of a model directory that has a tokenizer.model and no tokenizer.json.

Owns how such text is written before merging and which tokens are recognised whole, and where. Invariant: plain text
gets the ids that sentencepiece itself gives it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from tokenizers import Tokenizer as Backend

from plait.text.encoders import encode_between, encode_cuts, interleaved
from plait.text.hf_frame import frame_by_flags
from plait.text.hf_tokens import HfFiles, collect_tokens
from plait.text.hf_vocabulary import hf_vocabulary
from plait.text.literals import Literals
from plait.text.merging import merge
from plait.text.sentencepiece_model import SentencePieceModel
from plait.text.spm import SPACE, spm_backend
from plait.text.tokenizer import Tokenizer
from plait.text.vocabulary import TokenKind

_ORDINARY = (TokenKind.NORMAL, TokenKind.BYTE)
_UNKNOWN = TokenKind.UNKNOWN
_SPECIAL = (TokenKind.CONTROL, _UNKNOWN)
_RUN = re.compile(" {2,}")


def tokenizer_from_sentencepiece(model: SentencePieceModel, files: HfFiles, path: Path) -> Tokenizer:
    """Build the tokenizer of `model`, with what the other files of the directory say about its tokens."""
    files = replace(files, tokenizer_config={**_named(model), **files.tokenizer_config})
    listed: list[object] = [
        {"id": token, "content": text, "special": kind in _SPECIAL}
        for token, (text, kind) in enumerate(zip(model.texts, model.kinds, strict=True))
        if text and kind in (*_SPECIAL, TokenKind.USER_DEFINED)
    ]
    tokens = collect_tokens({text: token for token, text in enumerate(model.texts) if text}, listed, files)
    # What `transformers` does with such files unless they say otherwise: begin of text in front.
    begin = (tokens.named_ids["bos_token"],) if "bos_token" in tokens.named_ids else ()
    before, after = frame_by_flags((begin, ()), files.tokenizer_config, tokens.named_ids)
    vocabulary = hf_vocabulary(_decoder(model), tokens, before, after, str(path))
    own = {token for token, kind in enumerate(model.kinds) if kind == TokenKind.USER_DEFINED}
    ids = {
        text: token
        for token, (text, kind) in enumerate(zip(model.texts, model.kinds, strict=True))
        if text and kind in _ORDINARY and text not in tokens.added
    }
    found_late = {text: token for text, token in vocabulary.user_defined.items() if token in own}
    found_early = {text: token for text, token in vocabulary.user_defined.items() if token not in own}
    unknown = model.kinds.index(_UNKNOWN) if _UNKNOWN in model.kinds else None
    encoder = SentencePieceEncoder(
        spm_backend(ids, model.scores, unknown),
        _Writing(model, prefixes_all=files.tokenizer_config.get("legacy") is not False),
        tokens.control,
        added=Literals(found_early),
        user_defined=Literals(found_late),
        every=Literals({**found_early, **tokens.control}),
    )
    return Tokenizer(vocabulary, encoder, tokens.warnings)


class _Writing:
    """Text as sentencepiece writes it before merging."""

    __slots__ = ("_prefix", "_prefixes_all", "_squeezes")

    def __init__(self, model: SentencePieceModel, *, prefixes_all: bool) -> None:
        """`prefixes_all`: after a control token too, as the first programs that used such files did."""
        self._prefix = SPACE if model.prefixed else ""
        self._prefixes_all = prefixes_all
        self._squeezes = model.squeezes

    def write(self, text: str, is_first: bool) -> str:
        if self._squeezes:
            text = _RUN.sub(" ", text.strip(" "))
        if not text:
            return ""
        prefix = self._prefix if is_first or self._prefixes_all else ""
        written = prefix + text.replace(" ", SPACE)
        return written.rstrip(SPACE) if self._squeezes else written


@dataclass(frozen=True, slots=True)
class SentencePieceEncoder:
    """Tokens of the model's own vocabulary are looked for in the text as it is written before merging, added ones in
    the text as it comes.
    """

    backend: Backend
    writing: _Writing
    control: Mapping[str, int]
    added: Literals
    user_defined: Literals
    every: Literals
    """`added` and the control tokens."""

    def encode(self, texts: Sequence[str], parse_special: bool) -> list[list[int]]:
        return self._encode([(text, True) for text in texts], self.every if parse_special else self.added)

    def encode_cut(self, cut: Sequence[str]) -> list[int]:
        plain = self._encode([(text, place == 0) for place, text in enumerate(cut[::2])], self.added)
        return interleaved(plain, cut, self.control)

    def _encode(self, texts: Sequence[tuple[str, bool]], literals: Literals) -> list[list[int]]:
        cuts: list[list[str]] = []
        for text, is_first in texts:
            cut = literals.split(text)
            cut[::2] = [self.writing.write(piece, is_first and place == 0) for place, piece in enumerate(cut[::2])]
            cuts.append(cut)
        return encode_cuts(literals.ids, cuts, self._encode_written)

    def _encode_written(self, texts: list[str]) -> list[list[int]]:
        return encode_between(self.user_defined, texts, partial(merge, self.backend))


def _named(model: SentencePieceModel) -> Mapping[str, object]:
    """The names that the model gives itself, for files that give none."""
    ids = {"bos_token": model.bos_id, "eos_token": model.eos_id}
    if _UNKNOWN in model.kinds:
        ids["unk_token"] = model.kinds.index(_UNKNOWN)
    return {name: model.texts[token] for name, token in ids.items() if 0 <= token < len(model.texts)}


def _decoder(model: SentencePieceModel) -> object:
    steps: list[object] = [{"type": "Replace", "pattern": {"String": SPACE}, "content": " "}, {"type": "ByteFallback"}]
    if model.prefixed or model.squeezes:
        steps.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    return {"type": "Sequence", "decoders": steps}
