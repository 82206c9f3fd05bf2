"""HF spelling: the bytes that each token of a tokenizer.json stands for.

Owns the decoders of the `tokenizers` library, applied token by token and once for the whole vocabulary. Knows nothing
about ids. Invariant: tokens joined are what the library decodes, except that runs of bytes which are no character are
left to whoever joins them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from plait.core.errors import ModelError
from plait.text.alphabet import unspell_all

SUPPORTED = ("ByteFallback", "ByteLevel", "Fuse", "Metaspace", "Replace", "Sequence", "Strip", "WordPiece")
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_WORDPIECE_CLEANUP = (
    *((" .", "."), (" ?", "?"), (" !", "!"), (" ,", ","), (" ' ", "'"), (" n't", "n't"), (" 'm", "'m")),
    *((" do not", " don't"), (" 's", "'s"), (" 've", "'ve"), (" 're", "'re")),
)
_METASPACE_MARK = "\u2581"

Json = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Spelling:
    """What tokens stand for."""

    pieces: list[bytes]
    first: list[bytes] | None
    """The same at the start of a text, where some differ."""


@dataclass(slots=True)
class _State:
    """A vocabulary on its way through the steps of a decoder."""

    texts: list[str]
    first: list[str] | None = None
    are_bytes: bool = False
    falls_back: bool = False


def spell_tokens(decoder: object, texts: Sequence[str], source: str) -> Spelling:
    """The bytes of every token of `texts` by a tokenizer.json's `decoder`."""
    state = _State(list(texts))
    if decoder is None:
        # The library then joins tokens with spaces.
        state.texts, state.first = [f" {text}" for text in texts], state.texts
    for step in _steps(decoder, source):
        _STEPS[str(step["type"])](state, step, source)
    return Spelling(_encoded(state, state.texts), None if state.first is None else _encoded(state, state.first))


def _steps(decoder: object, source: str) -> list[Json]:
    if decoder is None:
        return []
    kind = decoder.get("type") if isinstance(decoder, dict) else None
    if not isinstance(decoder, dict) or kind not in SUPPORTED:
        shown = repr(kind)[:40]
        raise ModelError(
            f"{source}: decoder is of type {shown}; supported: {', '.join(SUPPORTED)}; use a model with one of these"
        )
    if kind != "Sequence":
        return [decoder]
    inner = decoder.get("decoders")
    if not isinstance(inner, list) or any(isinstance(step, dict) and step.get("type") == "Sequence" for step in inner):
        raise ModelError(f"{source}: decoder is a sequence without a flat list of decoders; get the file again")
    return [step for part in inner for step in _steps(part, source)]


def _byte_level(state: _State, step: Json, source: str) -> None:
    state.are_bytes = True


def _byte_fallback(state: _State, step: Json, source: str) -> None:
    state.falls_back = True


def _fuse(state: _State, step: Json, source: str) -> None:
    """Joins tokens; the steps behind it see one text."""


def _replace(state: _State, step: Json, source: str) -> None:
    pattern = step.get("pattern")
    old = pattern.get("String") if isinstance(pattern, dict) else None
    new = step.get("content")
    if not isinstance(old, str) or not old or not isinstance(new, str) or len(new) > len(old):
        raise ModelError(
            f"{source}: decoder replaces {repr(pattern)[:40]} by {repr(new)[:40]}; supported is one string by "
            "another that is not longer; use a model with such a decoder"
        )
    state.texts = [text.replace(old, new) for text in state.texts]
    if state.first is not None:
        state.first = [text.replace(old, new) for text in state.first]


def _strip(state: _State, step: Json, source: str) -> None:
    content, start, stop = step.get("content"), step.get("start"), step.get("stop")
    if not isinstance(content, str) or len(content) != 1 or start not in (0, 1) or stop != 0:
        raise ModelError(
            f"{source}: decoder strips {repr(start)[:40]} and {repr(stop)[:40]} of {repr(content)[:40]}; supported is "
            "one character at the start; use a model with such a decoder"
        )
    if start:
        state.first = [text.removeprefix(content) for text in state.first or state.texts]


def _metaspace(state: _State, step: Json, source: str) -> None:
    mark = step.get("replacement", _METASPACE_MARK)
    if not isinstance(mark, str) or len(mark) != 1:
        raise ModelError(f"{source}: decoder has the replacement {repr(mark)[:40]}, not one character; get it again")
    prepends = step.get("prepend_scheme", "always") != "never" and step.get("add_prefix_space", True) is True
    plain = state.texts
    state.texts = [text.replace(mark, " ") for text in plain]
    if prepends:
        state.first = [text.replace(mark, "") for text in plain]


def _wordpiece(state: _State, step: Json, source: str) -> None:
    prefix = step.get("prefix", "##")
    if not isinstance(prefix, str) or not prefix:
        raise ModelError(f"{source}: decoder has the prefix {repr(prefix)[:40]}, not a string; get the file again")
    first = state.texts
    state.texts = [text[len(prefix) :] if text.startswith(prefix) else f" {text}" for text in first]
    state.first = first
    if step.get("cleanup", True) is True:
        state.texts = [_clean(text) for text in state.texts]
        state.first = [_clean(text) for text in state.first]


def _clean(text: str) -> str:
    for old, new in _WORDPIECE_CLEANUP:
        text = text.replace(old, new)
    return text


_STEPS: Mapping[str, Callable[[_State, Json, str], None]] = {
    "ByteFallback": _byte_fallback,
    "ByteLevel": _byte_level,
    "Fuse": _fuse,
    "Metaspace": _metaspace,
    "Replace": _replace,
    "Strip": _strip,
    "WordPiece": _wordpiece,
}


def _encoded(state: _State, texts: list[str]) -> list[bytes]:
    pieces = unspell_all(texts) if state.are_bytes else [text.encode() for text in texts]
    if state.falls_back:
        for token, text in enumerate(texts):
            if text.startswith("<0x") and (found := _BYTE.fullmatch(text)):
                pieces[token] = bytes([int(found[1], 16)])
    return pieces
