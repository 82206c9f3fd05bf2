"""RWKV world: the tokenizer of RWKV's models, which takes the longest token that fits, byte after byte.

Owns its vocabulary files (a number, a Python literal and a length on each line), the same in GGUF, and the search.
Knows nothing about merges: there are none. Token 0 ends a text and stands in no vocabulary file.
Invariant: every byte is a token, so any text has ids, and they decode to its bytes.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from plait.core.errors import ModelError
from plait.text.alphabet import ALPHABET
from plait.text.encoders import encode_cuts, interleaved
from plait.text.hf_files import MIB, read_text
from plait.text.hf_tokens import MAX_TOKENS, HfFiles, collect_tokens
from plait.text.hf_vocabulary import hf_vocabulary
from plait.text.literals import Literals
from plait.text.tokenizer import Tokenizer
from plait.text.vocabulary import read_vocabulary

VOCABULARY_FILE: Final = "rwkv_vocab_v20230424.txt"
"""The only one in use; 1 MB."""
MAX_FILE_BYTES: Final = 64 * MIB
MAX_TOKEN_BYTES: Final = 4096
MAX_LINE_CHARACTERS: Final = 4 * MAX_TOKEN_BYTES + 64
END_TOKEN: Final = 0
END_TEXT: Final = "<|rwkv_tokenizer_end_of_text|>"
"""What token 0 is called where no file names it."""
_HEX: Final = "[0-9a-fA-F]"
_ESCAPED: Final = rf"""\\[\\'"ntr]|\\x{_HEX}{{2}}"""
_IN_TEXT: Final = rf"{_ESCAPED}|\\u{_HEX}{{4}}|\\U{_HEX}{{8}}"
_LITERAL: Final = "|".join(
    f"{kind}{quote}(?:[^{quote}\\\\]|{escapes})*{quote}"
    for kind, escapes in (("", _IN_TEXT), ("b", _ESCAPED))
    for quote in "'\""
)
_LINE: Final = re.compile(rf"([0-9]{{1,8}}) ({_LITERAL}) ([0-9]{{1,8}})")
_ESCAPE: Final = re.compile(rb"\\(x[0-9a-fA-F]{2}|.)", re.DOTALL)
_LETTERS: Final = {b"t": b"\t", b"n": b"\n", b"r": b"\r"}
_END_KEYS: Final = tuple(f"tokenizer.ggml.{name}_token_id" for name in ("bos", "eos", "eot", "eom"))
_DECODER: Final = {"type": "ByteLevel"}


def tokenizer_from_world(directory: Path, files: HfFiles) -> Tokenizer | None:
    """The tokenizer of a directory that has such a vocabulary file, None for others."""
    path = directory / VOCABULARY_FILE
    text = read_text(path, MAX_FILE_BYTES)
    if text is None:
        return None
    ids = dict(_tokens(text, path))
    _check_bytes(ids, path)
    spelled = {"".join(ALPHABET[byte] for byte in token): number for token, number in ids.items()}
    end = _end_text(files)
    listed: list[object] = [{"id": END_TOKEN, "content": end, "special": True}]
    files = replace(files, tokenizer_config={"eos_token": end, **files.tokenizer_config})
    tokens = collect_tokens(spelled, listed, files)
    vocabulary = hf_vocabulary(_DECODER, tokens, (), (), str(path))
    # The token that ends a text ends an answer, whatever else the files name.
    ends = tuple(dict.fromkeys([*vocabulary.eos_ids, END_TOKEN]))
    encoder = WorldEncoder(ids, vocabulary.control, vocabulary.user_defined)
    return Tokenizer(replace(vocabulary, eos_ids=ends), encoder, tokens.warnings)


def world_from_gguf(metadata: Mapping[str, object]) -> Tokenizer:
    """The tokenizer of a GGUF file of the kind `rwkv`, whose tokens are spelled as Python writes bytes."""
    # A token of text that ends a turn ("\\n\\n") stays one: it would be no text if it were read as a name.
    textual = {key: value for key in _END_KEYS if (value := metadata.get(key)) not in (None, END_TOKEN)}
    others = {key: value for key, value in metadata.items() if key not in textual}
    vocabulary = read_vocabulary(others, add_bos=False, spell=_spell)
    control = dict(vocabulary.control)
    if not control:
        # Files of old converters type no token: token 0 is not one of text all the same.
        control = {vocabulary.texts[END_TOKEN]: END_TOKEN}
    elsewhere = {*control.values(), *vocabulary.user_defined.values(), *vocabulary.unused.values()}
    ids = {piece: token for token, piece in enumerate(vocabulary.pieces) if piece and token not in elsewhere}
    missing = next((byte for byte in range(256) if bytes([byte]) not in ids), None)
    if missing is not None:
        raise ModelError(f"tokenizer.ggml.tokens: no token stands for byte {missing}; convert the model again")
    last = len(vocabulary.texts) - 1
    for key, token in textual.items():
        if not isinstance(token, int) or isinstance(token, bool) or not 0 <= token <= last:
            raise ModelError(
                f"{key} is {token!r:.40} but the vocabulary has tokens 0 to {last}; convert the model again"
            )
    ends = tuple(dict.fromkeys([*vocabulary.eos_ids, *_numbers(textual), END_TOKEN]))
    made = replace(vocabulary, control=control, eos_ids=ends)
    return Tokenizer(made, WorldEncoder(ids, control, vocabulary.user_defined), vocabulary.warnings)


def _numbers(named: Mapping[str, object]) -> Iterator[int]:
    for key, token in named.items():
        if isinstance(token, int) and not key.endswith("bos_token_id"):
            yield token


def _spell(texts: Sequence[str]) -> list[bytes]:
    return [_ESCAPE.sub(_unescaped, text.encode()) if "\\" in text else text.encode() for text in texts]


def _unescaped(match: re.Match[bytes]) -> bytes:
    code = match[1]
    return bytes([int(code[1:], 16)]) if len(code) == 3 else _LETTERS.get(code, code)


def _end_text(files: HfFiles) -> str:
    """What the files call token 0."""
    decoder = files.tokenizer_config.get("added_tokens_decoder")
    entry = decoder.get(str(END_TOKEN)) if isinstance(decoder, dict) else None
    named = entry.get("content") if isinstance(entry, dict) else None
    added = next((text for text, number in files.added_tokens.items() if number == END_TOKEN), None)
    return next((text for text in (named, added) if isinstance(text, str) and text), END_TEXT)


class WorldEncoder:
    """Implements `plait.text.encoders.Encoder`: control and user-defined tokens are cut out, the rest is searched."""

    __slots__ = ("_control", "_every", "_ids", "_lengths", "_user_defined")

    def __init__(self, ids: Mapping[bytes, int], control: Mapping[str, int], user_defined: Mapping[str, int]) -> None:
        """`ids`: tokens by their bytes, every single byte among them."""
        self._ids = ids
        self._lengths = _lengths_by_head(ids)
        self._control = control
        self._user_defined = Literals(user_defined)
        self._every = Literals({**user_defined, **control})

    def encode(self, texts: Sequence[str], parse_special: bool) -> list[list[int]]:
        literals = self._every if parse_special else self._user_defined
        return encode_cuts(literals.ids, [literals.split(text) for text in texts], self._searched)

    def encode_cut(self, cut: Sequence[str]) -> list[int]:
        return interleaved(self.encode(cut[::2], parse_special=False), cut, self._control)

    def _searched(self, texts: Sequence[str]) -> list[list[int]]:
        return [list(self._longest(text.encode())) for text in texts]

    def _longest(self, text: bytes) -> Iterator[int]:
        ids, lengths = self._ids, self._lengths
        at, end = 0, len(text)
        while at < end:
            for length in lengths.get(text[at : at + 2], ()):
                token = ids.get(text[at : at + length])
                if token is not None and at + length <= end:
                    break
            else:
                token, length = ids[text[at : at + 1]], 1
            yield token
            at += length


def _lengths_by_head(ids: Mapping[bytes, int]) -> dict[bytes, tuple[int, ...]]:
    """Of the tokens that begin with two given bytes, longest first."""
    found: dict[bytes, set[int]] = {}
    for token in ids:
        if len(token) > 1:
            found.setdefault(token[:2], set()).add(len(token))
    return {head: tuple(sorted(lengths, reverse=True)) for head, lengths in found.items()}


def _tokens(text: str, path: Path) -> Iterator[tuple[bytes, int]]:
    seen: set[bytes] = set()
    for place, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        match = _LINE.fullmatch(line.rstrip("\r")) if len(line) <= MAX_LINE_CHARACTERS else None
        token = None if match is None else _bytes_of(match[2])
        if match is None or token is None or len(token) != int(match[3]):
            raise _refusal(path, f"line {place} is {line[:40]!r}, not a number, a token and its length")
        number = int(match[1])
        if not 0 < number < MAX_TOKENS:
            raise _refusal(path, f"line {place} has the id {number}; ids are from 1 to {MAX_TOKENS - 1:,}")
        if token in seen or not 0 < len(token) <= MAX_TOKEN_BYTES:
            raise _refusal(path, f"line {place} has a token that is there already, empty or too long")
        seen.add(token)
        yield token, number


def _bytes_of(literal: str) -> bytes | None:
    """A string literal of Python and nothing else: the pattern admits no expression."""
    try:
        value = ast.literal_eval(literal)
        return value if isinstance(value, bytes) else str(value).encode()
    except (ValueError, SyntaxError):
        return None


def _check_bytes(ids: Mapping[bytes, int], path: Path) -> None:
    missing = next((byte for byte in range(256) if bytes([byte]) not in ids), None)
    if missing is not None:
        raise _refusal(path, f"no token stands for byte {missing}")


def _refusal(path: Path, what: str) -> ModelError:
    return ModelError(f"{path}: {what}; get the file again")
