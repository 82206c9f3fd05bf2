"""Charsmaps: those of sentencepiece pass, and no other reaches the library, which would panic on the terminal."""

from __future__ import annotations

import base64
import struct

import pytest
from tokenizers import normalizers

from plait.text.hf_charsmap import charsmap_fault

LEAF, HAS_LEAF = 1 << 31, 1 << 8


def charsmap(changes: dict[int, int] | None = None, strings: bytes = b"a\0", num_units: int = 512) -> bytes:
    """One that makes an A an a, with some units changed."""
    units = [0] * num_units
    units[0] = 256 << 10
    if num_units > 256:
        units[256 ^ ord("A")] = ord("A") | HAS_LEAF | ord("A") << 10
        units[256] = LEAF
    for place, unit in (changes or {}).items():
        units[place] = unit
    return struct.pack(f"<I{num_units}I", 4 * num_units, *units) + strings


def fault(raw: bytes) -> str | None:
    return charsmap_fault(base64.b64encode(raw).decode())


def test_a_sound_one_passes_and_does_what_it_should() -> None:
    assert fault(charsmap()) is None
    assert normalizers.Precompiled(charsmap()).normalize_str("xAx") == "xax"


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b"", "it is empty"),
        (b"\0\0\0\0", "its trie has 0 of 0 bytes"),
        (charsmap()[:1000], "its trie has 2,048 of 996 bytes"),
        (b"\6\0\0\0" + bytes(8), "its trie has 6 of 8 bytes"),
        (charsmap(strings=b"\xff\0"), "its strings are not UTF-8"),
        (charsmap(strings=b""), "its trie names the string at byte 0 of 0"),
        (charsmap({256: LEAF | 7}), "its trie names the string at byte 7 of 2"),
        (charsmap({256: LEAF | 1}, "é\0".encode()), "its trie names the string at byte 1 of 3"),
        (charsmap({0: 512 << 10}), "its trie leads to unit 767 of 512"),
        (charsmap({0: LEAF | 512 << 10}), "its trie leads to unit"),
        (charsmap({300: ord("b") | 1 << 9 | 3 << 10}), "its trie leads to unit"),
        (charsmap(num_units=3), "its trie leads to unit 511 of 3"),
    ],
)
def test_one_that_leads_outside_is_named(raw: bytes, expected: str) -> None:
    said = fault(raw)
    assert said is not None
    assert said.startswith(expected)


def test_what_is_no_base64_is_named() -> None:
    assert charsmap_fault("ä") == charsmap_fault("AAA") == charsmap_fault('"\n') == "it is not base64"
