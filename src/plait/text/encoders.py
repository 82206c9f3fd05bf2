"""Encoders: text to ids for the two ways in which files describe tokens that are recognised whole.

Owns which spellings count as tokens in which text. Knows nothing about what a model wants around a text. Invariant:
with `parse_special=False` no control token is ever produced, except the one for characters that no token stands for.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from tokenizers import Tokenizer as Backend

from plait.text.literals import Literals
from plait.text.merging import merge

# What the `tokenizers` library takes for white space; Python's own `strip` takes a few control characters more.
_SPACES = "\t\n\v\f\r \u0085\u00a0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(map(chr, range(0x2000, 0x200B)))


class Encoder(Protocol):
    """Text to ids for one model."""

    def encode(self, texts: Sequence[str], parse_special: bool) -> list[list[int]]:
        """The ids of every text; `parse_special` lets spellings of control tokens become control tokens."""
        ...

    def encode_cut(self, cut: Sequence[str]) -> list[int]:
        """The ids of one text that was cut: plain text at even places, spellings of control tokens at odd ones."""
        ...


class LiteralEncoder:
    """Control and user-defined tokens are cut out here; `backend` merges what is between and has no added tokens."""

    __slots__ = ("_backend", "_control", "_eats_after", "_every", "_user_defined")

    def __init__(
        self,
        backend: Backend,
        control: Mapping[str, int],
        user_defined: Mapping[str, int],
        eats_after: Collection[str] = (),
    ) -> None:
        """`eats_after`: the tokens that swallow the white space behind them."""
        self._backend = backend
        self._control = control
        self._eats_after = eats_after
        self._user_defined = Literals(user_defined)
        self._every = Literals({**user_defined, **control})

    def encode(self, texts: Sequence[str], parse_special: bool) -> list[list[int]]:
        literals = self._every if parse_special else self._user_defined
        cuts = [swallowed(literals.split(text), (), self._eats_after) for text in texts]
        return encode_cuts(literals.ids, cuts, partial(merge, self._backend))

    def encode_cut(self, cut: Sequence[str]) -> list[int]:
        texts = swallowed(cut, (), self._eats_after)
        return interleaved(self.encode(texts[::2], parse_special=False), texts, self._control)


def swallowed(cut: Sequence[str], before: Collection[str], after: Collection[str]) -> Sequence[str]:
    """The cut text without the white space that the tokens in `before` and `after` swallow on that side."""
    if not before and not after:
        return cut
    texts = list(cut)
    for place in range(1, len(texts), 2):
        if texts[place] in before:
            texts[place - 1] = texts[place - 1].rstrip(_SPACES)
        if texts[place] in after:
            texts[place + 1] = texts[place + 1].lstrip(_SPACES)
    return texts


def encode_between(
    literals: Literals, texts: Sequence[str], encode: Callable[[list[str]], list[list[int]]]
) -> list[list[int]]:
    """The ids of texts in which `literals` are tokens; `encode` is called once, for all that is between them."""
    return encode_cuts(literals.ids, [literals.split(text) for text in texts], encode)


def encode_cuts(
    ids: Mapping[str, int], cuts: Sequence[Sequence[str]], encode: Callable[[list[str]], list[list[int]]]
) -> list[list[int]]:
    """The same for texts that are cut already: plain text at even places, spellings of tokens at odd ones."""
    encoded = iter(encode([piece for cut in cuts for piece in cut[::2] if piece]))
    batch: list[list[int]] = []
    for cut in cuts:
        found: list[int] = []
        for place, piece in enumerate(cut):
            if place % 2:
                found.append(ids[piece])
            elif piece:
                found += next(encoded)
        batch.append(found)
    return batch


@dataclass(frozen=True, slots=True)
class AddedBackend:
    """A backend with added tokens of its own, whose ids are the library's choice."""

    backend: Backend
    ids: Mapping[int, int]
    """From the library's id of an added token to the model's."""
    found_as: Mapping[int, str]
    """How added tokens are spelled in text when it is searched for them, by the model's id: some after normalizing."""

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        ids = self.ids
        batch = merge(self.backend, texts)
        return [[ids.get(token, token) for token in found] for found in batch] if ids else batch


@dataclass(frozen=True, slots=True)
class AddedTokenEncoder:
    """The library recognises added tokens itself, because its rules for them go beyond the spelling."""

    plain: AddedBackend
    """Knows the user-defined tokens only."""
    commanding: AddedBackend
    """Knows the control tokens too."""
    following: AddedBackend
    """Like `plain`, for text that does not begin the text: some vocabularies put a space before the first word."""
    control: Mapping[str, int]
    eats_before: frozenset[str] = field(default=frozenset())
    """The control tokens that swallow the white space in front of them."""
    eats_after: frozenset[str] = field(default=frozenset())

    def encode(self, texts: Sequence[str], parse_special: bool) -> list[list[int]]:
        return (self.commanding if parse_special else self.plain).encode(texts)

    def encode_cut(self, cut: Sequence[str]) -> list[int]:
        texts = swallowed(cut, self.eats_before, self.eats_after)
        plain = [*self.plain.encode(texts[:1]), *self.following.encode(texts[2::2])]
        return interleaved(plain, texts, self.control)


def interleaved(plain: Sequence[list[int]], cut: Sequence[str], control: Mapping[str, int]) -> list[int]:
    """The ids of the plain pieces of a cut text with the control tokens between them."""
    ids = list(plain[0])
    for spelling, following in zip(cut[1::2], plain[1:], strict=True):
        ids += [control[spelling], *following]
    return ids
