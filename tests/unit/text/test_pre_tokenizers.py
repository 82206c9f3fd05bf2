"""Pre-tokenizers by name: a vocabulary in a GGUF file gives the ids that it gives as a tokenizer.json."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.unit.text.directories import corpus, train_bpe
from tests.unit.text.random_texts import awkward_texts, random_texts
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Library

from plait.text.alphabet import unspell
from plait.text.gguf import tokenizer_from_gguf
from plait.text.pre_tokenizers import NEEDS_MORE, PRE_TOKENIZERS

# As published in the tokenizer.json of models of each kind.
PUBLISHED: dict[str, list[str]] = {
    "llama-bpe": [
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
        r"|\s+(?!\S)|\s+"
    ],
    "qwen2": [
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
        r"|\s+(?!\S)|\s+"
    ],
    "qwen35": [
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+"
        r"|\s+(?!\S)|\s+"
    ],
    "deepseek-v3": [
        r"\p{N}{1,3}",
        r"[\x{4E00}-\x{9FA5}\x{3040}-\x{309F}\x{30A0}-\x{30FF}]+",
        r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+",
    ],
    "deepseek-coder": ["[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+", r"\p{N}"],
    "gpt-4o": [
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
        r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
        r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ],
    "tekken": [
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
        r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
        r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ],
    "bailingmoe": [
        r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
    ],
    "seed-coder": [
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+"
        r"|\s+(?!\S)|\s+"
    ],
    "exaone-moe": [
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"
    ],
    "superbpe": [r"\p{N}+", r"(?=(\d{3})+(?!\d))"],
    "poro-chat": [" ?[^(\\s|.,!?…。，、।۔،)]+"],  # noqa: RUF001 - these marks are meant
}
NFC = ("qwen2", "qwen35")
WHOLE_WORDS = ("llama-bpe", "tekken")


def published(pre: str) -> Library:
    library = Library(models.BPE(ignore_merges=pre in WHOLE_WORDS))
    splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in PUBLISHED[pre]]
    whole = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    library.pre_tokenizer = pre_tokenizers.Sequence([*splits, whole])
    library.decoder = decoders.ByteLevel()
    if pre in NFC:
        library.normalizer = normalizers.NFC()
    train_bpe(library, 1000, pre_tokenizers.ByteLevel.alphabet())
    return library


def as_gguf(library: Library, pre: str) -> dict[str, object]:
    document = json.loads(library.to_str())
    control = {token["id"] for token in document["added_tokens"]}
    texts = sorted(document["model"]["vocab"], key=document["model"]["vocab"].__getitem__)
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": texts,
        "tokenizer.ggml.token_type": [3 if token in control else 1 for token in range(len(texts))],
        "tokenizer.ggml.merges": [" ".join(merge) for merge in document["model"]["merges"]],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    }


@pytest.mark.parametrize("pre", PUBLISHED)
def test_a_vocabulary_gives_the_same_ids_in_both_formats(pre: str) -> None:
    library = published(pre)
    tokenizer = tokenizer_from_gguf(as_gguf(library, pre))
    texts = [text for text in (*awkward_texts(), *random_texts(300, seed=6), *corpus()[:1]) if "<" not in text]
    wanted = [found.ids for found in library.encode_batch(texts, add_special_tokens=False)]
    assert tokenizer.encode_batch(texts, add_special=False) == wanted


@pytest.mark.parametrize("pre", PRE_TOKENIZERS)
def test_cutting_loses_nothing(pre: str) -> None:
    cuts = PRE_TOKENIZERS[pre].cuts()
    for text in random_texts(100, seed=7):
        assert b"".join([unspell(piece) for piece, _ in cuts.pre_tokenize_str(text)]) == text.encode()


@pytest.mark.parametrize(
    ("pre", "pieces"),
    [
        ("viking", ["In", " ", "2", "0", ",", " don't"]),
        ("jais-2", ["In", " ", "20", ",", " don", "'t"]),
        ("chameleon", ["In", " ", "2", "0", ",", " don", "'", "t"]),
        ("falcon", ["In", " 20", ",", " don", "'", "t"]),
        ("command-r", ["In", " ", "2", "0", ",", " don", "'t"]),
        ("ufakzeka", ["In", " ", "2", "0", ",", " don", "'t"]),
        ("minicpm5", ["In", " ", "20", ",", " don", "'t"]),
        ("spark2_5", ["In", " ", "2", "0", ",", " don", "'t"]),
        ("tiny_aya", ["In", " ", "20", ",", " don't"]),
        ("youtu", ["In", " ", "2", "0", ",", " don't"]),
    ],
)
def test_less_common_ones_cut_as_llama_cpp_says(pre: str, pieces: list[str]) -> None:
    cut = PRE_TOKENIZERS[pre].cuts().pre_tokenize_str("In 20, don't")
    assert [unspell(piece).decode() for piece, _ in cut] == pieces


def test_digits_are_grouped_as_their_models_do() -> None:
    def cut(pre: str) -> list[str]:
        return [piece for piece, _ in PRE_TOKENIZERS[pre].cuts().pre_tokenize_str("1234567")]

    assert cut("llama-bpe") == cut("gpt-4o") == cut("deepseek-v3") == ["123", "456", "7"]
    assert cut("superbpe") == cut("tiny_aya") == ["1", "234", "567"]
    assert cut("qwen2") == cut("smollm") == list("1234567")
    assert cut("gpt-2") == ["1234567"]


def test_the_reference_lists_every_name() -> None:
    page = (Path(__file__).parents[3] / "docs" / "reference" / "tokenizers.md").read_text()
    listed = page.partition("## Pre-tokenizers")[2].partition("## Chat templates")[0]
    supported, _, refused = listed.partition("refused")
    assert {name for name in PRE_TOKENIZERS if f"`{name}`" not in supported} == set()
    assert {name for name in NEEDS_MORE if f"`{name}`" not in refused} == set()


def test_no_name_is_both_supported_and_refused() -> None:
    assert not PRE_TOKENIZERS.keys() & NEEDS_MORE.keys()
