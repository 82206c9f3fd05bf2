"""Charsmaps: the table by which sentencepiece brings text to a normal form, as tokenizer.json carries it.

Owns the check that the library cannot run off its ends: it panics where a place lies outside, first with words of its
own on the terminal. Normalises nothing. Invariant: a table that passed has every place that a text can lead to.
"""

from __future__ import annotations

import struct
from base64 import b64decode
from binascii import Error as NotBase64

_LEAF = 1 << 31
_HAS_LEAF = 1 << 8
_WIDE = 1 << 9


def charsmap_fault(text: str) -> str | None:
    """What is wrong with the table, or None.

    It is the size of a trie in bytes, the trie, a double array of 32-bit units, and strings that end with a NUL, which
    the trie's leaves point to.
    """
    try:
        raw = b64decode(text, validate=True)
    except (NotBase64, ValueError):
        return "it is not base64"
    if len(raw) < 4:
        return "it is empty"
    (size,) = struct.unpack_from("<I", raw)
    if size % 4 or size == 0 or 4 + size > len(raw):
        return f"its trie has {size:,} of {len(raw) - 4:,} bytes"
    units = struct.unpack_from(f"<{size // 4}I", raw, 4)
    try:
        strings = raw[4 + size :].decode()
    except UnicodeDecodeError:
        return "its strings are not UTF-8"
    return _trie_fault(units, strings.encode())


def _trie_fault(units: tuple[int, ...], strings: bytes) -> str | None:
    # Whatever byte comes next, it leads to a place in the aligned 256 units around the base.
    for place, unit in enumerate(units):
        # Nothing leads to a leaf but its parent, and the first unit is nobody's leaf.
        if unit & _LEAF and place > 0:
            continue
        base = place ^ (unit >> 10 << (8 if unit & _WIDE else 0))
        if base | 0xFF >= len(units):
            return f"its trie leads to unit {base | 0xFF:,} of {len(units):,}"
        if unit & _HAS_LEAF:
            first = units[base] & ~_LEAF
            if first >= len(strings) or strings[first] & 0xC0 == 0x80:
                return f"its trie names the string at byte {first:,} of {len(strings):,}"
    return None
