"""The byte alphabet: how byte-level vocabularies spell arbitrary bytes with printable characters.

Owns the mapping between the 256 byte values and the 256 characters that GPT-2 chose for them. Knows nothing about
tokens. Invariant: `ALPHABET[byte]` is one character, all 256 differ, and none of them is a space or a control
character.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import accumulate, pairwise


def _spell_bytes() -> str:
    """A printable Latin-1 byte is its own character; the others take the characters from U+0100 on, in order."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    letters = {byte: chr(byte) for byte in printable}
    unprintable = [byte for byte in range(256) if byte not in letters]
    letters |= {byte: chr(0x100 + rank) for rank, byte in enumerate(unprintable)}
    return "".join(letters[byte] for byte in range(256))


ALPHABET = _spell_bytes()
_SURROGATE = re.compile("[\ud800-\udfff]")
_TO_LATIN_1 = {ord(letter): byte for byte, letter in enumerate(ALPHABET)}
_LETTERS = frozenset(ALPHABET)


def unspell_all(texts: Sequence[str]) -> list[bytes]:
    """`unspell` for a whole vocabulary: translated in one piece and cut again, which is several times faster."""
    joined = "".join(texts)
    if not _LETTERS.issuperset(joined):
        return [unspell(text) for text in texts]
    raw = joined.translate(_TO_LATIN_1).encode("latin-1")
    return [raw[start:end] for start, end in pairwise(accumulate(map(len, texts), initial=0))]


def unspell(text: str) -> bytes:
    """The bytes that a token stands for. A token with a character outside the alphabet is raw text: its UTF-8 bytes."""
    if not _LETTERS.issuperset(text):
        return text.encode()
    return text.translate(_TO_LATIN_1).encode("latin-1")


def lone_surrogate(text: str) -> str | None:
    """Half of a character's UTF-16 form, which JSON can spell but no bytes can carry; None in sound text."""
    found = None if text.isascii() else _SURROGATE.search(text)
    return f"U+{ord(found[0]):04X}" if found else None
