"""Sentencepiece model: the file tokenizer.model, read without the library that wrote it.

Owns the few fields of that protocol buffer which decide how text becomes ids. Knows nothing about encoding. A reader
of its own, because the file is a stranger's and the library parses it in C++, and because what merges is there already.
Invariant: every count and length is checked against the bytes that are there.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from plait.core.errors import ModelError
from plait.text.hf_files import MIB, read_bytes
from plait.text.hf_tokens import MAX_TOKENS
from plait.text.vocabulary import TokenKind

MAX_MODEL_BYTES = 64 * MIB
"""The largest in use has 5 MB."""
BPE = 2
_MODEL_KINDS = {1: "unigram", BPE: "bpe", 3: "word", 4: "char"}
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5

_Value = int | float | bytes


@dataclass(slots=True)
class SentencePieceModel:
    """What a tokenizer.model says."""

    texts: list[str] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    kinds: list[int] = field(default_factory=list)
    model_kind: int = 1
    bos_id: int = 1
    eos_id: int = 2
    rewrites: bool = False
    """A compiled table says which characters are written otherwise."""
    prefixed: bool = True
    """A space goes in front of a text."""
    squeezes: bool = True
    """Spaces at the ends are dropped, others are never two in a row."""
    escapes: bool = True
    """Spaces are spelled `▁`."""
    suffixes: bool = False
    """The space goes behind a word and not in front of it."""


def read_sentencepiece(path: Path) -> SentencePieceModel | None:
    """The model in a file, None where there is no such file."""
    raw = read_bytes(path, MAX_MODEL_BYTES)
    if raw is None:
        return None
    model = SentencePieceModel()
    try:
        for number, value in _fields(raw):
            if number == 1:
                _read_piece(_raw(value), model)
            elif number == 2:
                _read_trainer(_raw(value), model)
            elif number == 3:
                _read_normalizer(_raw(value), model)
    except (ValueError, IndexError, struct.error) as error:
        raise ModelError(f"{path} is no sentencepiece model: {error}; get the file again") from error
    _check(model, path)
    return model


def _check(model: SentencePieceModel, path: Path) -> None:
    if not model.texts:
        raise ModelError(f"{path} is no sentencepiece model: it has no tokens; get the file again")
    if len(set(model.texts)) != len(model.texts):
        raise ModelError(f"{path} spells two tokens alike; get the file again")
    trouble = None
    if model.model_kind != BPE:
        kind = _MODEL_KINDS.get(model.model_kind, str(model.model_kind))
        trouble = f"is a model of the kind {kind!r}; supported: 'bpe'"
    elif model.rewrites:
        trouble = "rewrites characters by a table of its own (like nmt_nfkc), which is not supported"
    elif model.suffixes or not model.escapes:
        trouble = "spells spaces in a way that is not supported"
    if trouble:
        raise ModelError(
            f"{path} {trouble}; have transformers write a tokenizer.json there with "
            "AutoTokenizer.from_pretrained(DIRECTORY).save_pretrained(DIRECTORY)"
        )


def _read_piece(raw: bytes, model: SentencePieceModel) -> None:
    text, score, kind = "", 0.0, int(TokenKind.NORMAL)
    for number, value in _fields(raw):
        if number == 1:
            text = _raw(value).decode("utf-8")
        elif number == 2 and isinstance(value, float):
            score = value
        elif number == 3 and isinstance(value, int):
            kind = value
    if kind not in TokenKind.__members__.values() or score != score:
        raise ValueError(f"token {len(model.texts)} is of the kind {kind} with the score {score}")
    if len(model.texts) >= MAX_TOKENS:
        raise ValueError(f"it has more than {MAX_TOKENS:,} tokens")
    model.texts.append(text)
    model.scores.append(score)
    model.kinds.append(kind)


def _read_trainer(raw: bytes, model: SentencePieceModel) -> None:
    for number, value in _fields(raw):
        if not isinstance(value, int):
            continue
        if number == 3:
            model.model_kind = value
        elif number == 24:
            model.suffixes = bool(value)
        elif number == 41:
            model.bos_id = _signed(value)
        elif number == 42:
            model.eos_id = _signed(value)


def _read_normalizer(raw: bytes, model: SentencePieceModel) -> None:
    for number, value in _fields(raw):
        if number == 2:
            model.rewrites = value != b""
        elif number == 3:
            model.prefixed = bool(value)
        elif number == 4:
            model.squeezes = bool(value)
        elif number == 5:
            model.escapes = bool(value)


def _fields(raw: bytes) -> Iterator[tuple[int, _Value]]:
    """The fields of a message in their order, as numbers and bytes."""
    place = 0
    while place < len(raw):
        key, place = _varint(raw, place)
        wire = key & 7
        if wire == _VARINT:
            value, place = _varint(raw, place)
            yield key >> 3, value
        elif wire == _BYTES:
            size, place = _varint(raw, place)
            if size > len(raw) - place:
                raise ValueError("it ends inside a field")
            yield key >> 3, raw[place : place + size]
            place += size
        elif wire == _FIXED32:
            yield key >> 3, struct.unpack_from("<f", raw, place)[0]
            place += 4
        elif wire == _FIXED64:
            yield key >> 3, struct.unpack_from("<d", raw, place)[0]
            place += 8
        else:
            raise ValueError(f"it has a field of the unknown kind {wire}")


def _varint(raw: bytes, place: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        byte = raw[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place
    raise ValueError("it has a number of more than ten bytes")


def _signed(value: int) -> int:
    """Negative numbers are stored as 64-bit complements."""
    return value - (1 << 64) if value >> 63 else value


def _raw(value: _Value) -> bytes:
    if not isinstance(value, bytes):
        raise ValueError("it has a number where a message belongs")
    return value
