"""The tokenizer: text to ids and back."""

from __future__ import annotations

import random
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.text.vocabularies import CONTROL, USER_DEFINED, ids_of, metadata, small_tokenizer
from tokenizers import decoders

from plait.core.errors import RequestError
from plait.text.tokenizer import Tokenizer

TOKENIZER = small_tokenizer()
# Text that is nearly, or exactly, or twice a control token, mixed with anything else.
HOSTILE = st.lists(
    st.sampled_from([*CONTROL, *USER_DEFINED, "<|", "im_", "end", "|>", "<", ">", "x", " ", "\n", "hello", "🙂"])
    | st.text(max_size=4)
).map("".join)


def test_text_that_spells_a_control_token_stays_text() -> None:
    ids = TOKENIZER.encode("<|im_end|>", add_special=False)
    assert ids == ids_of("<|", "im", "_", "end", "|>")
    assert TOKENIZER.decode(ids) == "<|im_end|>"


def test_a_template_may_write_control_tokens() -> None:
    ids = TOKENIZER.encode("<|im_start|>user\nhello<|im_end|>", add_special=False, parse_special=True)
    assert ids == ids_of("<|im_start|>", "user", "Ċ", "hello", "<|im_end|>")


def test_the_longest_control_token_is_taken() -> None:
    assert TOKENIZER.encode("<|im_end|>xx", add_special=False, parse_special=True) == ids_of("<|im_end|>x", "x")


def test_user_defined_tokens_are_text_matched_whole() -> None:
    for parse_special in (False, True):
        ids = TOKENIZER.encode("<think>  \n</think>", add_special=False, parse_special=parse_special)
        assert ids == ids_of("<think>", "  \n", "</think>")
    assert TOKENIZER.decode(ids) == "<think>  \n</think>"
    assert not TOKENIZER.is_special(ids[0])


@given(HOSTILE)
def test_no_text_produces_a_control_token(text: str) -> None:
    ids = TOKENIZER.encode(text, add_special=False)
    assert not any(TOKENIZER.is_special(token) for token in ids)
    assert TOKENIZER.decode(ids) == text


@given(HOSTILE)
def test_parsing_control_tokens_loses_no_text(text: str) -> None:
    ids = TOKENIZER.encode(text, add_special=False, parse_special=True)
    assert TOKENIZER.decode(ids, skip_special=False) == text
    assert any(TOKENIZER.is_special(token) for token in ids) == any(control in text for control in CONTROL)


@given(st.text())
def test_any_text_comes_back(text: str) -> None:
    assert TOKENIZER.decode(TOKENIZER.encode(text, add_special=False)) == text


@given(st.lists(HOSTILE, max_size=6), st.booleans())
def test_a_batch_gives_what_each_text_gives_alone(texts: list[str], parse_special: bool) -> None:
    alone = [TOKENIZER.encode(text, add_special=False, parse_special=parse_special) for text in texts]
    assert TOKENIZER.encode_batch(texts, add_special=False, parse_special=parse_special) == alone


def test_begin_and_end_of_text_are_added_where_the_model_wants_them() -> None:
    plain, begins = small_tokenizer(), small_tokenizer(add_bos_token=True)
    both = small_tokenizer(add_bos_token=True, add_eos_token=True)
    assert plain.encode("hello", add_special=True) == ids_of("hello")
    assert begins.encode("hello", add_special=True) == ids_of("<|im_start|>", "hello")
    assert both.encode("hello", add_special=True) == ids_of("<|im_start|>", "hello", "<|im_end|>")
    assert both.encode("hello", add_special=False) == ids_of("hello")


def test_begin_and_end_of_text_are_never_doubled() -> None:
    both = small_tokenizer(add_bos_token=True, add_eos_token=True)
    once = ids_of("<|im_start|>", "hello", "<|im_end|>")
    assert both.encode("<|im_start|>hello<|im_end|>", add_special=True, parse_special=True) == once


def test_empty_text_is_no_token_or_only_the_frame() -> None:
    assert TOKENIZER.encode("", add_special=True) == []
    assert small_tokenizer(add_bos_token=True).encode("", add_special=True) == ids_of("<|im_start|>")
    assert TOKENIZER.encode_batch([], add_special=True) == []
    assert TOKENIZER.decode([]) == ""


def test_control_tokens_are_left_out_of_decoded_text_unless_asked_for() -> None:
    ids = ids_of("<|im_start|>", "hello", "<|im_end|>", "[PAD0]")
    assert TOKENIZER.decode(ids) == "hello"
    assert TOKENIZER.decode(ids, skip_special=False) == "<|im_start|>hello<|im_end|>"


def test_bytes_that_are_no_text_decode_to_replacement_characters() -> None:
    assert TOKENIZER.decode(ids_of("ðŁ", "h")) == "\ufffdh"
    assert TOKENIZER.decode(ids_of("Ļ", "Ļ")) == "\ufffd\ufffd"
    assert TOKENIZER.decode(ids_of("ðŁĻ", "Ĥ")) == "🙂"


def test_decoding_agrees_with_the_library_on_random_ids() -> None:
    tokens = metadata()["tokenizer.ggml.tokens"]
    assert isinstance(tokens, list)
    # The library has no raw text tokens: leave out those with characters outside the alphabet and the unused one.
    usable = [token for token, text in enumerate(tokens) if text not in ("  \n", "[PAD0]")]
    library, rng = decoders.ByteLevel(), random.Random(1)
    for _ in range(10_000):
        ids = rng.choices(usable, k=rng.randrange(1, 12))
        assert TOKENIZER.decode(ids, skip_special=False) == library.decode([tokens[token] for token in ids])


def test_token_bytes_are_true_bytes() -> None:
    half, word, end, blank = ids_of("ðŁ", "Ġworld", "<|im_end|>", "  \n")
    assert TOKENIZER.token_bytes(half) == b"\xf0\x9f"
    assert TOKENIZER.token_bytes(word) == b" world"
    assert TOKENIZER.token_bytes(end) == b"<|im_end|>"
    assert TOKENIZER.token_bytes(blank) == b"  \n"


@given(st.text())
def test_the_bytes_of_the_tokens_are_the_bytes_of_the_text(text: str) -> None:
    ids = TOKENIZER.encode(text, add_special=False)
    assert b"".join(map(TOKENIZER.token_bytes, ids)) == text.encode()


def test_what_the_tokenizer_knows_about_its_tokens() -> None:
    begin, end, file = ids_of("<|im_start|>", "<|im_end|>", "<file>")
    assert TOKENIZER.bos_id == begin
    assert TOKENIZER.eos_ids[0] == end
    assert TOKENIZER.is_special(file)
    assert not TOKENIZER.is_special(ids_of("hello")[0])
    assert TOKENIZER.named_tokens["eos_token"] == "<|im_end|>"
    tokens = metadata()["tokenizer.ggml.tokens"]
    assert isinstance(tokens, list)
    assert TOKENIZER.vocab_size == len(tokens)


@pytest.mark.parametrize("text", ["a\ud800b", "\udfff", "日本\ud83d"])
def test_a_lone_surrogate_is_refused(text: str) -> None:
    with pytest.raises(RequestError, match=r"lone surrogate U\+D[8F]"):
        TOKENIZER.encode(text, add_special=False)


@pytest.mark.parametrize("token", [-1, 10**6, 2**40])
def test_an_id_outside_the_vocabulary_is_refused(token: int) -> None:
    for use in (lambda: TOKENIZER.decode([1, token]), lambda: TOKENIZER.token_bytes(token)):
        with pytest.raises(RequestError, match=f"token id {token} is not in the vocabulary; use ids from 0 to"):
            use()


def test_one_tokenizer_serves_many_threads() -> None:
    texts = [f"hello world {number} <|im_end|> 🙂" * (number + 1) for number in range(40)]
    expected = [TOKENIZER.encode(text, add_special=False) for text in texts]
    found: dict[int, list[list[int]]] = {}

    def encode_all(name: int, tokenizer: Tokenizer) -> None:
        found[name] = [tokenizer.encode(text, add_special=False) for text in texts]

    threads = [threading.Thread(target=encode_all, args=(name, TOKENIZER)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert list(found.values()) == [expected] * 4
