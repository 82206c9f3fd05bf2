"""Printable: text of a model or a server, made safe for a terminal.

Owns which characters could steer a terminal: control characters, and marks that turn the direction of writing over.
Invariant: what comes back moves no cursor, changes no colour or title, and hides nothing; line ends and tabs stay.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

_TURNS: Final = (*range(0x202A, 0x202F), *range(0x2066, 0x206A))
_SHOWN: Final = MappingProxyType(
    {code: chr(0x2400 + code) for code in range(0x20)}  # the pictures of control characters: ESC is \u241b
    | {0x7F: "\u2421"}
    | {code: f"\\x{code:02x}" for code in range(0x80, 0xA0)}
    | {code: f"\\u{code:04x}" for code in _TURNS}
    # Without its line feed a carriage return would let a line be written over.
    | {ord("\n"): "\n", ord("\t"): "\t", ord("\r"): ""}
)


def printable(text: str) -> str:
    return text.translate(_SHOWN)
