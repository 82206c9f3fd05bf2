"""The tokenizer of RWKV's models: the longest token that fits, from files that hold Python literals."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from plait.core.errors import ModelError
from plait.text.gguf import tokenizer_from_gguf
from plait.text.hf import tokenizer_from_hf
from plait.text.rwkv_world import END_TEXT, VOCABULARY_FILE
from plait.text.tokenizer import Tokenizer

TOKENS = [bytes([byte]) for byte in range(256)] + [
    *(b"\n\n", b"  ", b"ab", b"abcd", b"bc", b"bcde", b"'\"", b"\\n", "é".encode(), "日本".encode(), "日".encode()[:2])
]


def written(tokens: list[bytes]) -> str:
    """As the published file is written: text where the bytes are text, else bytes."""
    lines = []
    for number, token in enumerate(tokens, start=1):
        try:
            literal = repr(token.decode())
        except UnicodeDecodeError:
            literal = repr(token)
        lines.append(f"{number} {literal} {len(token)}")
    return "\n".join(lines) + "\n"


def tokenizer(folder: Path, vocabulary: str | None = None, **files: object) -> Tokenizer:
    (folder / VOCABULARY_FILE).write_text(written(TOKENS) if vocabulary is None else vocabulary, encoding="utf-8")
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
    return tokenizer_from_hf(folder)


def pieces_of(made: Tokenizer, text: str) -> list[bytes]:
    ids = made.encode(text, add_special=True, parse_special=False)
    return [made.token_bytes(token) for token in ids]


def test_the_longest_token_that_fits_is_taken(tmp_path: Path) -> None:
    made = tokenizer(tmp_path)
    assert pieces_of(made, "abcde") == [b"abcd", b"e"]
    assert pieces_of(made, "abcx") == [b"ab", b"c", b"x"]
    assert pieces_of(made, "xbcdex") == [b"x", b"bcde", b"x"]
    assert pieces_of(made, "abc") == [b"ab", b"c"]
    assert pieces_of(made, "\n\n\n   '\"\\n") == [b"\n\n", b"\n", b"  ", b" ", b"'\"", b"\\n"]


def test_any_text_has_ids_that_decode_to_it(tmp_path: Path) -> None:
    made = tokenizer(tmp_path)
    draw = random.Random(3)
    for _ in range(200):
        text = "".join(draw.choice("abcde \n'\"\\é日本語😀\0") for _ in range(draw.randrange(40)))
        ids = made.encode(text, add_special=True, parse_special=False)
        assert made.decode(ids) == text
        assert 0 not in ids


def test_token_0_ends_a_text_and_is_not_reached_by_writing_its_name(tmp_path: Path) -> None:
    made = tokenizer(tmp_path)
    assert made.eos_ids == (0,)
    plain = made.encode(END_TEXT, add_special=True, parse_special=False)
    assert 0 not in plain
    assert made.encode(END_TEXT, add_special=True, parse_special=True) == [0]
    assert made.decode([0, 98], skip_special=True) == "a"


def test_what_the_files_call_token_0_is_its_name(tmp_path: Path) -> None:
    decoder = {"0": {"content": "<s>", "special": True}}
    made = tokenizer(tmp_path, tokenizer_config={"added_tokens_decoder": decoder, "eos_token": "\n\n"})
    assert made.encode("<s>", add_special=True, parse_special=True) == [0]
    assert set(made.eos_ids) >= {0}


def test_rows_behind_the_vocabulary_are_no_tokens(tmp_path: Path) -> None:
    made = tokenizer(tmp_path, config={"vocab_size": 300})
    assert made.vocab_size == 300
    assert made.token_bytes(299) == b""


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("1 __import__('os') 4", "not a number, a token and its length"),
        ("1 'a' + 'b' 2", "not a number, a token and its length"),
        ("1 'a' 2", "not a number, a token and its length"),
        ("1 '\\x' 1", "not a number, a token and its length"),
        ("1 '\\d' 2", "not a number, a token and its length"),
        ("1 b'\\u0041' 6", "not a number, a token and its length"),
        ("1 '\\ud800' 3", "not a number, a token and its length"),
        (f"1 '{'z' * 20_000}' 20000", "not a number, a token and its length"),
        ("0 'zz' 2", "has the id 0"),
        ("99999999 'zz' 2", "has the id 99999999"),
        ("300 'ab' 2", "there already"),
        ("300 '' 0", "empty"),
    ],
)
def test_a_line_that_is_no_token_is_refused_with_its_number(tmp_path: Path, line: str, fault: str) -> None:
    with pytest.raises(ModelError, match=fault) as caught:
        tokenizer(tmp_path, f"{written(TOKENS)}{line}\n")
    assert "line 268" in str(caught.value)
    assert VOCABULARY_FILE in str(caught.value)


def test_a_vocabulary_without_a_byte_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no token stands for byte 65"):
        tokenizer(tmp_path, written([token for token in TOKENS if token != b"A"]))


def gguf(tokens: list[bytes], **more: object) -> dict[str, object]:
    """As llama.cpp's converter writes it: bytes as Python writes them, without the quotes."""
    texts = ["<s>", *(repr(token)[2:-1] for token in tokens), "[PAD0]"]
    kinds = [3, *[1] * len(tokens), 5]
    names = {f"tokenizer.ggml.{name}": value for name, value in more.items()}
    return {
        "tokenizer.ggml.model": "rwkv",
        "tokenizer.ggml.tokens": texts,
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 0,
        **names,
    }


def test_a_gguf_file_gives_the_same_ids(tmp_path: Path) -> None:
    of_file, of_directory = tokenizer_from_gguf(gguf(TOKENS)), tokenizer(tmp_path)
    for text in ("abcde xbcdex\n\n\n", "'\"\\n\\ é日本\0 \x7f"):
        ids = of_file.encode(text, add_special=True)
        assert ids == of_directory.encode(text, add_special=True)
        assert of_file.decode(ids) == text
    assert of_file.eos_ids == (0,)
    assert of_file.token_bytes(len(TOKENS) + 1) == b""


def test_a_token_of_text_that_ends_a_turn_is_still_read_from_text() -> None:
    made = tokenizer_from_gguf(gguf(TOKENS, eot_token_id=257))
    assert made.encode("a\n\nb", add_special=True) == [98, 257, 99]
    assert made.decode([98, 257, 99]) == "a\n\nb"
    assert made.eos_ids == (0, 257)


def test_a_gguf_file_that_names_a_token_it_does_not_have_is_refused() -> None:
    with pytest.raises(ModelError, match="eot_token_id is 9999"):
        tokenizer_from_gguf(gguf(TOKENS, eot_token_id=9999))
    with pytest.raises(ModelError, match="no token stands for byte 65"):
        tokenizer_from_gguf(gguf([token for token in TOKENS if token != b"A"]))
