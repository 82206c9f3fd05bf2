"""Byte-level BPE from GGUF metadata."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

import pytest
from tests.unit.text.goldens import lines
from tests.unit.text.vocabularies import ids_of, metadata, small_tokenizer, spell

from plait.core.errors import ModelError
from plait.text.alphabet import ALPHABET
from plait.text.gguf import tokenizer_from_gguf
from plait.text.pre_tokenizers import FALLBACK, PRE_TOKENIZERS
from plait.text.tokenizer import Tokenizer

BYTES_ONLY = {
    "tokens": list(ALPHABET),
    "token_type": None,
    "merges": [],
    "bos_token_id": None,
    "eos_token_id": None,
    "unknown_token_id": None,
}


def test_words_are_merged_in_the_order_of_the_merges() -> None:
    assert small_tokenizer().encode("hello world", add_special=False) == ids_of("hello", "Ġworld")
    assert small_tokenizer().encode("hellos", add_special=False) == ids_of("hello", "s")
    assert small_tokenizer().encode("hell", add_special=False) == ids_of("hell")


def test_merges_never_cross_the_cuts_of_the_pre_tokenizer() -> None:
    assert small_tokenizer(pre="gpt-2").encode("1234", add_special=False) == ids_of("123", "4")
    assert small_tokenizer(pre="smollm").encode("1234", add_special=False) == ids_of("1", "2", "3", "4")
    assert small_tokenizer(pre="llama-bpe", add_bos_token=None).encode("1234", add_special=False) == ids_of("123", "4")
    assert small_tokenizer(pre="qwen2").encode("1234", add_special=False) == ids_of("1", "2", "3", "4")
    assert small_tokenizer(pre="default").encode("1234", add_special=False) == ids_of("123", "4")


@pytest.mark.parametrize("pre", ["default", "gpt-2", "llama-bpe", "qwen2", "smollm"])
def test_text_is_cut_as_the_goldens_say(pre: str) -> None:
    family = PRE_TOKENIZERS[pre]
    for line in lines("cuts.jsonl"):
        text = unicodedata.normalize("NFC", line["text"]) if family.nfc else line["text"]
        pieces = [piece for piece, _ in family.cuts().pre_tokenize_str(text)]
        assert pieces == [spell(piece.encode()) for piece in line[pre]], line["text"]


def test_text_is_brought_to_normal_form_where_the_models_tokenizer_does() -> None:
    composed, decomposed = "é", "e\u0301"
    for pre, family in PRE_TOKENIZERS.items():
        tokenizer = small_tokenizer(pre=pre)
        same = tokenizer.encode(decomposed, add_special=False) == tokenizer.encode(composed, add_special=False)
        assert same == family.nfc
    assert PRE_TOKENIZERS["qwen2"].nfc
    assert not PRE_TOKENIZERS["llama-bpe"].nfc


def test_llama_takes_a_word_whole_that_no_merges_reach() -> None:
    tokens = [*ALPHABET, "bye"]
    changes: dict[str, object] = {**BYTES_ONLY, "tokens": tokens, "bos_token_id": 0}
    assert small_tokenizer(**changes, pre="llama-bpe").encode("bye", add_special=False) == [256]
    assert small_tokenizer(**changes, pre="gpt-2").encode("bye", add_special=False) == list(b"bye")


def test_llama_begins_text_where_the_file_does_not_say() -> None:
    for pre in ("llama-bpe", "llama3", "llama-v3"):
        assert small_tokenizer(pre=pre, add_bos_token=None).encode("1", add_special=True) == ids_of("<|im_start|>", "1")
    assert small_tokenizer(pre="gpt-2", add_bos_token=None).encode("1", add_special=True) == ids_of("1")


def test_a_missing_pre_tokenizer_is_reported_and_replaced() -> None:
    tokenizer = small_tokenizer(pre=None)
    assert len(tokenizer.warnings) == 1
    assert "tokenizer.ggml.pre is missing" in tokenizer.warnings[0]
    assert repr(FALLBACK) in tokenizer.warnings[0]
    texts = ["a1b22c333", "x==y!", "12345 1234"]
    assert encodings(tokenizer, texts) == encodings(small_tokenizer(pre=FALLBACK), texts)


def test_a_complete_file_gives_no_warnings() -> None:
    assert small_tokenizer().warnings == ()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model": None}, "tokenizer.ggml.model is missing; supported: 'gpt2' (byte-level BPE), 'llama'"),
        ({"model": "bert"}, "tokenizer.ggml.model is 'bert'; supported: 'gpt2' (byte-level BPE), 'llama'"),
        ({"model": 7}, "tokenizer.ggml.model is 7"),
        ({"pre": "kimi-k2"}, "is 'kimi-k2' (its files have no merges), none of the "),
        ({"pre": "qwen3"}, "is 'qwen3', none of the "),
        ({"pre": 7}, "tokenizer.ggml.pre is 7"),
        ({"merges": None}, "tokenizer.ggml.merges is missing"),
        ({"merges": "h e"}, "tokenizer.ggml.merges is a str"),
        ({"merges": ["h e", "hello"]}, "merges entry 1 is 'hello', not two parts"),
        ({"merges": ["h e", "l l x"]}, "merges entry 1 is 'l l x', not two parts"),
        ({"merges": [" he"]}, "merges entry 0 is ' he', not two parts"),
        ({"merges": ["h "]}, "merges entry 0 is 'h ', not two parts"),
        ({"merges": [""]}, "merges entry 0 is '', not two parts"),
        ({"merges": ["h e", "q zz"]}, "merges entry 1 needs 'zz', which is not a token"),
        ({"merges": ["q z"]}, "merges entry 0 needs 'qz', which is not a token"),
        ({"merges": [["h", "e"]]}, "merges holds a list"),
    ],
)
def test_metadata_that_describes_no_tokenizer_is_refused_in_one_line(changes: dict[str, object], words: str) -> None:
    with pytest.raises(ModelError) as refusal:
        small_tokenizer(**changes)
    assert words in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_merges_that_lead_to_a_control_token_are_not_followed() -> None:
    described = metadata()
    tokens, kinds, merges = (described[f"tokenizer.ggml.{name}"] for name in ("tokens", "token_type", "merges"))
    assert isinstance(tokens, list)
    assert isinstance(kinds, list)
    assert isinstance(merges, list)
    described["tokenizer.ggml.tokens"] = [*tokens, "STOP", "ST", "OP", "STOPS"]
    described["tokenizer.ggml.token_type"] = [*kinds, 3, 1, 1, 1]
    described["tokenizer.ggml.merges"] = ["S T", "O P", "ST OP", "STOP S", *merges]
    tokenizer = tokenizer_from_gguf(described)
    assert tokenizer.encode("STOPS", add_special=False) == ids_of("ST", "OP", "S", described=described)
    assert tokenizer.encode("STOPS", add_special=False, parse_special=True) == ids_of("STOP", "S", described=described)


def test_a_control_token_is_not_a_whole_word_either() -> None:
    tokens = [*ALPHABET, "halt"]
    changes: dict[str, object] = {**BYTES_ONLY, "tokens": tokens, "token_type": [1] * 256 + [3], "bos_token_id": 256}
    tokenizer = small_tokenizer(**changes, pre="llama-bpe")
    assert tokenizer.encode("halt", add_special=False) == list(b"halt")
    assert tokenizer.encode("halt", add_special=False, parse_special=True) == [256]


def of_letters(letters: Sequence[str], *kinds: int) -> Tokenizer:
    """Tokens of one letter each, ordinary ones behind the given kinds."""
    types = [*kinds, *[1] * (len(letters) - len(kinds))]
    return small_tokenizer(**(BYTES_ONLY | {"tokens": list(letters), "token_type": types}))


def test_bytes_without_a_token_are_lost_and_warned_about() -> None:
    tokenizer = of_letters([letter for letter in ALPHABET if letter not in (spell(b"\t"), spell(b"z"))])
    (warning,) = tokenizer.warnings
    assert "the byte values 09 7A: text loses them" in warning
    assert tokenizer.decode(tokenizer.encode("a\tbz", add_special=False)) == "ab"
    assert small_tokenizer().warnings == ()


def test_only_bytes_that_text_may_hold_are_warned_about() -> None:
    assert of_letters(ALPHABET[:0xC0] + ALPHABET[0xC2:0xF5]).warnings == ()
    assert of_letters([letter for letter in ALPHABET if letter not in (spell(b"\x04"), spell(b"\xf1"))]).warnings == ()
    assert "F4" in of_letters(ALPHABET[:0xF4]).warnings[0]


def test_a_byte_that_only_a_control_or_unused_token_spells_is_lost() -> None:
    tokenizer = of_letters(ALPHABET, *[1] * 9, 3, 5)
    assert "the byte values 09 0A: text loses them" in tokenizer.warnings[0]
    assert tokenizer.encode("a\t\nb", add_special=False) == list(b"ab")


def test_many_lost_bytes_do_not_flood_the_warning() -> None:
    (warning,) = of_letters(ALPHABET[:0x61]).warnings
    assert "61 62 63 64 65 66 67 68 69 6A and 133 more: text" in warning


def encodings(tokenizer: Tokenizer, texts: list[str]) -> list[list[int]]:
    return [tokenizer.encode(text, add_special=False) for text in texts]
