"""The byte alphabet."""

from __future__ import annotations

from plait.text.alphabet import ALPHABET, spell, unspell


def test_every_byte_has_a_visible_character_of_its_own() -> None:
    assert len(set(ALPHABET)) == 256
    assert all(letter.isprintable() and not letter.isspace() for letter in ALPHABET)


def test_spelling_is_that_of_gpt2() -> None:
    assert spell(b"A b\n\t\x00\x7f\xad\xff") == "AĠbĊĉĀġŃÿ"


def test_unspelling_gives_the_bytes_back() -> None:
    every = bytes(range(256))
    assert unspell(spell(every)) == every


def test_text_outside_the_alphabet_stands_for_itself() -> None:
    assert unspell("two words") == b"two words"
    assert unspell("日本") == "日本".encode()
    assert unspell("") == b""
