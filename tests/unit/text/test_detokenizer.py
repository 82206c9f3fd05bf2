"""Detokenizing while tokens arrive."""

from __future__ import annotations

import random
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st
from tests.unit.text.vocabularies import ids_of, small_tokenizer

from plait.text.detokenizer import Detokenizer

TOKENIZER = small_tokenizer()
IDS = st.integers(0, TOKENIZER.vocab_size - 1)
# Characters that tokenizers and terminals get wrong: joined emoji, flags, marks, blanks, controls, several scripts.
AWKWARD = (
    "🙂👨\u200d👩\u200d👧🏳\ufe0f\u200d🌈🇩🇪1\ufe0f\u20e3e\u0301\u0302日本語안녕\u05e9\u05dc\u202e"
    "\u00a0\u3000\u2028\t\r\n \x00\x1b\ufeff\ufffd"
)


def in_chunks(ids: Sequence[int], cuts: Sequence[int]) -> list[Sequence[int]]:
    ends = sorted({cut % (len(ids) + 1) for cut in cuts} | {len(ids)})
    return [ids[start:end] for start, end in zip([0, *ends], ends, strict=False)]


def streamed(chunks: Sequence[Sequence[int]], skip_special: bool = True) -> list[str]:
    detokenizer = Detokenizer(TOKENIZER, skip_special)
    return [*[detokenizer.push(chunk) for chunk in chunks], detokenizer.finish()]


def test_a_character_comes_when_its_last_token_does() -> None:
    assert streamed([[token] for token in ids_of("h", "ðŁĻ", "Ĥ", "h")]) == ["h", "", "🙂", "h", ""]


def test_three_tokens_to_a_character_stay_silent_until_the_third() -> None:
    assert streamed([[token] for token in ids_of("ðŁ", "Ļ", "Ĥ")]) == ["", "", "🙂", ""]


def test_an_invalid_byte_shows_once_it_is_certain() -> None:
    assert streamed([[token] for token in ids_of("ðŁ", "h", "e")]) == ["", "\ufffdh", "e", ""]
    assert streamed([[token] for token in ids_of("Ļ", "h")]) == ["\ufffd", "h", ""]


def test_a_generation_cut_inside_a_character_ends_in_one_replacement() -> None:
    assert streamed([ids_of("h", "ðŁĻ")]) == ["h", "\ufffd"]


def test_control_tokens_are_silent_and_do_not_split_a_character() -> None:
    ids = ids_of("ðŁĻ", "<|im_end|>", "Ĥ")
    assert "".join(streamed([[token] for token in ids])) == "🙂" == TOKENIZER.decode(ids)
    assert "".join(streamed([ids], skip_special=False)) == TOKENIZER.decode(ids, skip_special=False)


def test_a_real_replacement_character_in_the_text_is_kept() -> None:
    ids = TOKENIZER.encode("a\ufffdb", add_special=False)
    assert "".join(streamed([[token] for token in ids])) == "a\ufffdb"


def test_finishing_twice_adds_nothing() -> None:
    detokenizer = Detokenizer(TOKENIZER)
    detokenizer.push(ids_of("ðŁ"))
    assert [detokenizer.finish(), detokenizer.finish()] == ["\ufffd", ""]


def test_ten_thousand_random_generations_join_to_what_decode_gives() -> None:
    rng = random.Random(2)
    for _ in range(10_000):
        ids = rng.choices(range(TOKENIZER.vocab_size), k=rng.randrange(10))
        assert "".join(streamed([[token] for token in ids])) == TOKENIZER.decode(ids)


@given(st.lists(IDS, max_size=40), st.lists(st.integers(0, 40), max_size=6), st.booleans())
def test_chunks_do_not_matter(ids: list[int], cuts: list[int], skip_special: bool) -> None:
    assert "".join(streamed(in_chunks(ids, cuts), skip_special)) == TOKENIZER.decode(ids, skip_special)


@given(st.text(st.sampled_from(AWKWARD)) | st.text(), st.lists(st.integers(0, 200), max_size=6))
def test_whole_text_never_shows_a_broken_character(text: str, cuts: list[int]) -> None:
    pieces = streamed(in_chunks(TOKENIZER.encode(text, add_special=False), cuts))
    assert "".join(pieces) == text
    assert "".join(pieces).count("\ufffd") == text.count("\ufffd")
    assert pieces[-1] == ""


@given(st.lists(IDS, max_size=30))
def test_text_comes_as_early_as_it_can(ids: list[int]) -> None:
    """After each token: everything that further tokens cannot change."""
    detokenizer = Detokenizer(TOKENIZER)
    pieces = TOKENIZER.pieces(skip_special=True)
    shown, raw = "", b""
    for token in ids:
        shown += detokenizer.push([token])
        raw += pieces[token]
        futures = [(raw + more).decode("utf-8", "replace") for more in (b"h", b"\x80h", b"\x80\x80h", b"\x80\x80\x80h")]
        common = next(n for n in range(len(futures[0]), -1, -1) if all(f[:n] == futures[0][:n] for f in futures))
        assert futures[0].startswith(shown)
        assert len(shown) >= common - 1


def test_tokens_know_where_they_begin() -> None:
    detokenizer = Detokenizer(TOKENIZER)
    begins = []
    for token in ids_of("hello", "ðŁĻ", "Ĥ", "<|im_end|>", "Ġworld"):
        begins.append(detokenizer.num_chars)
        detokenizer.push([token])
    assert begins == [0, 5, 5, 6, 6]
    assert detokenizer.num_chars == 12
