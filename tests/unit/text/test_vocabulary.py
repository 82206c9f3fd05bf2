"""The vocabulary from GGUF metadata."""

from __future__ import annotations

import pytest
from tests.unit.text.vocabularies import CONTROL, USER_DEFINED, ids_of, metadata

from plait.core.errors import ModelError
from plait.text.vocabulary import TokenKind, Vocabulary, read_vocabulary

ALL_TOKENS = metadata()["tokenizer.ggml.tokens"]
assert isinstance(ALL_TOKENS, list)
NUM_TOKENS = len(ALL_TOKENS)
LAST = NUM_TOKENS - 1


def vocabulary(**changes: object) -> Vocabulary:
    return read_vocabulary(metadata(**changes), add_bos=False)


def test_tokens_are_sorted_by_what_may_reach_them() -> None:
    found = vocabulary()
    assert list(found.control) == list(CONTROL)
    assert list(found.user_defined) == list(USER_DEFINED)
    assert list(found.unused) == ["[PAD0]"]


def test_pieces_are_the_bytes_that_tokens_stand_for() -> None:
    found = vocabulary()
    end, world, think, pad, blank = ids_of("<|im_end|>", "Ġworld", "<think>", "[PAD0]", "  \n")
    assert found.pieces[end] == b"<|im_end|>"
    assert found.pieces[world] == b" world"
    assert found.pieces[think] == b"<think>"
    assert found.pieces[pad] == b""
    assert found.pieces[blank] == b"  \n"


def test_a_user_defined_token_is_raw_text_even_in_letters_of_the_alphabet() -> None:
    tokens = ["a", "b", "é!"]
    kinds = [TokenKind.NORMAL, TokenKind.NORMAL, TokenKind.USER_DEFINED]
    found = vocabulary(tokens=tokens, token_type=kinds, bos_token_id=None, eos_token_id=None, unknown_token_id=None)
    assert found.pieces == (b"a", b"b", "é!".encode())


def test_every_end_of_turn_token_ends_a_generation_and_the_declared_one_comes_first() -> None:
    assert vocabulary().eos_ids == (2, 0)
    assert vocabulary(eot_token_id=4, eom_token_id=4).eos_ids == (2, 4, 0)
    assert vocabulary(eos_token_id=0).eos_ids == (0, 2)


def test_an_end_of_turn_text_that_is_no_control_token_does_not_end_a_generation() -> None:
    kinds = [3, 3, 3, 3, 3, *[1] * (NUM_TOKENS - 5)]
    kinds[0] = TokenKind.USER_DEFINED
    assert vocabulary(token_type=kinds).eos_ids == (2,)


def test_a_template_may_name_the_tokens_that_the_file_names() -> None:
    assert vocabulary().named == {
        "bos_token": "<|im_start|>",
        "eos_token": "<|im_end|>",
        "unk_token": "<|endoftext|>",
    }


def test_the_family_decides_on_begin_of_text_only_where_the_file_does_not() -> None:
    assert read_vocabulary(metadata(add_bos_token=None), add_bos=True).before
    assert not read_vocabulary(metadata(add_bos_token=False), add_bos=True).before
    assert vocabulary(add_bos_token=True).before
    assert vocabulary(add_eos_token=True).after


def test_missing_token_kinds_are_reported_and_named_tokens_still_control() -> None:
    found = vocabulary(token_type=None)
    assert list(found.control) == ["<|im_start|>", "<|im_end|>"]
    assert len(found.warnings) == 1
    assert "tokenizer.ggml.token_type is missing" in found.warnings[0]


def test_end_of_text_is_control_whatever_the_converter_typed_unless_it_is_one_byte() -> None:
    normal = [1] * NUM_TOKENS
    assert "<|im_end|>" in vocabulary(token_type=normal).control
    (newline,) = ids_of("Ċ")
    found = vocabulary(token_type=normal, eos_token_id=newline)
    assert "Ċ" not in found.control
    assert found.eos_ids == (newline,)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"tokens": None}, "tokens is missing"),
        ({"tokens": []}, "tokens is empty"),
        ({"tokens": "abc"}, "tokens is a str but must be a list"),
        ({"tokens": ["a", 7]}, "tokens holds a int among its strings"),
        ({"tokens": ["a", "b\ud800"]}, "tokens holds a string that is not valid Unicode"),
        ({"tokens": ["a", "b", "a"], "token_type": None}, "spells tokens 0 and 2 both as 'a'"),
        ({"token_type": [1, 1]}, f"has 2 entries for {NUM_TOKENS} tokens"),
        ({"token_type": {"a": 1}}, "token_type is a dict"),
        ({"token_type": [1] * LAST + [9]}, f"token_type of token {LAST} is 9"),
        ({"token_type": [1] * LAST + ["x"]}, f"token_type of token {LAST} is 'x'"),
        ({"token_type": [1.0] + [1] * LAST}, "token_type of token 0 is 1.0"),
        ({"eos_token_id": NUM_TOKENS}, f"eos_token_id is {NUM_TOKENS} but the vocabulary has tokens 0 to {LAST}"),
        ({"eos_token_id": -1}, "eos_token_id is -1"),
        ({"bos_token_id": True}, "bos_token_id is True"),
        ({"padding_token_id": "2"}, "padding_token_id is '2'"),
        ({"eot_token_id": 4_294_967_295}, "eot_token_id is 4294967295"),
        ({"add_bos_token": 1}, "add_bos_token is 1 but must be true or false"),
        ({"add_bos_token": True, "bos_token_id": None}, "no tokenizer.ggml.bos_token_id"),
        ({"add_eos_token": True, "eos_token_id": None}, "no tokenizer.ggml.eos_token_id"),
    ],
)
def test_a_corrupt_vocabulary_is_refused_in_one_line(changes: dict[str, object], words: str) -> None:
    with pytest.raises(ModelError) as refusal:
        vocabulary(**changes)
    assert words in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_a_hostile_token_text_does_not_flood_the_message() -> None:
    long = "x" * 10_000
    with pytest.raises(ModelError) as refusal:
        vocabulary(tokens=[long, long], token_type=None)
    assert len(str(refusal.value)) < 300
