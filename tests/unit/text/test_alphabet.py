"""The byte alphabet."""

from __future__ import annotations

from tests.unit.text.vocabularies import spell

from plait.text.alphabet import ALPHABET, lone_surrogate, unspell, unspell_all


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


def test_a_whole_vocabulary_is_unspelled_token_by_token() -> None:
    ordinary = ["Ġa", "", "Ċ", "ðŁĻĤ", "é"]
    assert unspell_all(ordinary) == [unspell(text) for text in ordinary]
    assert unspell_all([*ordinary, "two words", "日本"]) == [*map(unspell, ordinary), b"two words", "日本".encode()]
    assert unspell_all([]) == []


def test_a_lone_surrogate_is_named() -> None:
    assert lone_surrogate("a\udc80\ud800") == "U+DC80"
    assert lone_surrogate("plain") is None
    assert lone_surrogate("日本🙂\ue000\uffff") is None
