"""Tokenizers that merge by score: the ids and texts of sentencepiece, from GGUF metadata and from tokenizer.model."""

from __future__ import annotations

import io
import json
import random
from collections.abc import Iterable
from pathlib import Path

import pytest
import sentencepiece
from tests.unit.text.directories import corpus
from tests.unit.text.random_texts import awkward_texts, random_text, random_texts

from plait.core.errors import ModelError
from plait.text.gguf import tokenizer_from_gguf
from plait.text.hf import tokenizer_from_hf
from plait.text.tokenizer import Tokenizer

CONTROL = ("<s>", "</s>", "<unk>", "<|im_start|>")
OPTIONS: dict[str, object] = {
    "model_type": "bpe",
    "vocab_size": 900,
    "normalization_rule_name": "identity",
    "remove_extra_whitespaces": False,
    "byte_fallback": True,
    "control_symbols": ["<|im_start|>"],
    "hard_vocab_limit": False,
    "minloglevel": 2,
}


def train(texts: Iterable[str], **changes: object) -> bytes:
    written = io.BytesIO()
    options = OPTIONS | changes
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(texts), model_writer=written, **options)
    return written.getvalue()


def documents() -> list[str]:
    return [line for text in corpus() for line in text.splitlines() if line.strip() and "\0" not in line]


def original(model: bytes) -> sentencepiece.SentencePieceProcessor:
    return sentencepiece.SentencePieceProcessor(model_proto=model)


def kind_of(model: sentencepiece.SentencePieceProcessor, token: int) -> int:
    if model.is_unknown(token):
        return 2
    if model.is_control(token):
        return 3
    return 6 if model.is_byte(token) else 1


def as_gguf(model: sentencepiece.SentencePieceProcessor, **changes: object) -> dict[str, object]:
    tokens = range(model.get_piece_size())
    described: dict[str, object] = {
        "model": "llama",
        "tokens": [model.id_to_piece(token) for token in tokens],
        "scores": [model.get_score(token) for token in tokens],
        "token_type": [kind_of(model, token) for token in tokens],
        "add_space_prefix": True,
    }
    described |= changes
    return {f"tokenizer.ggml.{name}": value for name, value in described.items() if value is not None}


def from_model(directory: Path, model: bytes, **config: object) -> Tokenizer:
    (directory / "tokenizer.model").write_bytes(model)
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    return tokenizer_from_hf(directory)


def check(tokenizer: Tokenizer, model: sentencepiece.SentencePieceProcessor, texts: Iterable[str]) -> None:
    for text in texts:
        if not any(control in text for control in CONTROL):
            ids = tokenizer.encode(text, add_special=False)
            assert ids == model.encode(text), text
            # A `▁` in the text is a space to both, which sentencepiece may then take for one at the start.
            if model.unk_id() not in ids and "▁" not in text:
                assert tokenizer.decode(ids) == model.decode(ids)


@pytest.fixture(scope="module")
def model() -> bytes:
    return train(documents())


def test_metadata_gives_the_ids_of_sentencepiece(model: bytes) -> None:
    check(
        tokenizer_from_gguf(as_gguf(original(model))), original(model), [*awkward_texts(), *random_texts(500, seed=8)]
    )


@pytest.mark.slow
def test_ten_thousand_random_texts_give_the_ids_of_sentencepiece(model: bytes) -> None:
    check(tokenizer_from_gguf(as_gguf(original(model))), original(model), random_texts(10_000, seed=9))


def test_merges_that_compete_are_taken_in_the_same_order() -> None:
    rng = random.Random(10)
    texts = ["".join(rng.choices("aab  ", k=rng.randrange(5, 80))) for _ in range(1_500)]
    whole = train(texts[:500], vocab_size=400, split_by_whitespace=False, allow_whitespace_only_pieces=True)
    check(tokenizer_from_gguf(as_gguf(original(whole))), original(whole), texts)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"remove_extra_whitespaces": True},
        {"add_dummy_prefix": False},
        {"add_dummy_prefix": False, "remove_extra_whitespaces": True},
        {"byte_fallback": False, "user_defined_symbols": ["▁▁", "▁▁▁", "<think>", "he"]},
    ],
)
def test_a_model_file_gives_the_ids_of_sentencepiece(tmp_path: Path, changes: dict[str, object]) -> None:
    raw = train(documents(), **changes)
    check(from_model(tmp_path, raw), original(raw), [*awkward_texts(), *random_texts(300, seed=11)])


def test_both_formats_begin_a_text_alike(tmp_path: Path, model: bytes) -> None:
    gguf, own = tokenizer_from_gguf(as_gguf(original(model))), from_model(tmp_path, model)
    assert gguf.bos_id == own.bos_id == 1
    assert gguf.eos_ids == own.eos_ids == (2,)
    wanted = [1, *original(model).encode("the cache")]
    assert gguf.encode("the cache", add_special=True) == own.encode("the cache", add_special=True) == wanted
    assert own.named_tokens == {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}


def test_flags_beside_a_model_file_say_what_stands_around_a_text(tmp_path: Path, model: bytes) -> None:
    tokenizer = from_model(tmp_path, model, add_bos_token=False, add_eos_token=True)
    assert tokenizer.encode("the", add_special=True) == [*original(model).encode("the"), 2]


def test_no_text_reaches_a_control_token(tmp_path: Path, model: bytes) -> None:
    plain = train(documents(), byte_fallback=False)
    rng = random.Random(12)
    tokenizers = [from_model(tmp_path, model), tokenizer_from_gguf(as_gguf(original(model)))]
    for tokenizer in tokenizers:
        for _ in range(300):
            text = "".join([part for _ in range(4) for part in (random_text(rng)[:6], rng.choice(CONTROL))])
            assert not set(tokenizer.control.ids.values()) & set(tokenizer.encode(text, add_special=False)), text
    # Without tokens for bytes some characters are not known, NUL among them.
    unknowing = tokenizer_from_gguf(as_gguf(original(plain)))
    assert 0 in unknowing.encode("a\0b", add_special=False)
    assert not {1, 2, 3} & set(unknowing.encode("<s></s><|im_start|>\0", add_special=False))


def test_control_tokens_are_parsed_where_they_may_be(tmp_path: Path, model: bytes) -> None:
    start = original(model).piece_to_id("<|im_start|>")
    user = original(model).encode("user")
    for tokenizer in (from_model(tmp_path, model), tokenizer_from_gguf(as_gguf(original(model)))):
        text = "<|im_start|>user</s>"
        wanted = [start, *user, 2]
        assert tokenizer.encode(text, add_special=False, parse_special=True) == wanted
        assert tokenizer.encode_cut(tokenizer.control.split(text)) == wanted


def test_without_legacy_only_the_first_text_gets_a_space(tmp_path: Path, model: bytes) -> None:
    following = from_model(tmp_path, model, legacy=False).encode_cut(["", "<s>", "user"])
    assert original(model).id_to_piece(following)[1] == "us"
    assert from_model(tmp_path, model).encode_cut(["", "<s>", "user"])[1:] == original(model).encode("user")


def test_tokens_added_beside_a_model_file_are_found(tmp_path: Path, model: bytes) -> None:
    added = {"900": {"content": "<tool>", "special": True}, "901": {"content": "<think>", "special": False}}
    size = original(model).get_piece_size()
    tokenizer = from_model(
        tmp_path, model, added_tokens_decoder={str(size + place): token for place, token in enumerate(added.values())}
    )
    assert tokenizer.encode("<think>", add_special=False) == [size + 1]
    assert tokenizer.encode("<tool>", add_special=False, parse_special=True) == [size]
    assert size not in tokenizer.encode("<tool>", add_special=False)


def test_byte_tokens_decode_to_their_bytes(model: bytes) -> None:
    tokenizer = tokenizer_from_gguf(as_gguf(original(model)))
    ids = tokenizer.encode("🜁", add_special=False)
    assert [tokenizer.token_bytes(token) for token in ids] == [b" ", b"\xf0", b"\x9f", b"\x9c", b"\x81"]
    assert tokenizer.decode(ids) == "🜁"
    # Text that only looks like one is text.
    assert tokenizer.decode(tokenizer.encode("<0x41>", add_special=False)) == "<0x41>"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"scores": None}, "tokenizer.ggml.scores is missing"),
        ({"scores": [1.0]}, "tokenizer.ggml.scores has 1 entries for"),
        ({"scores": "x"}, "tokenizer.ggml.scores is a str"),
        ({"scores": [float("nan")]}, "tokenizer.ggml.scores holds something other than numbers"),
        ({"tokens": ["a", "a"]}, "spells tokens 0 and 1 both as 'a'"),
        ({"add_space_prefix": 3}, "tokenizer.ggml.add_space_prefix is 3 but must be true or false"),
    ],
)
def test_bad_metadata_is_refused_in_one_line(model: bytes, changes: dict[str, object], words: str) -> None:
    with pytest.raises(ModelError) as refusal:
        tokenizer_from_gguf(as_gguf(original(model), **changes))
    assert words in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model_type": "unigram", "vocab_size": 700}, "is a model of the kind 'unigram'; supported: 'bpe'"),
        ({"normalization_rule_name": "nmt_nfkc"}, "rewrites characters by a table of its own"),
        ({"treat_whitespace_as_suffix": True}, "spells spaces in a way that is not supported"),
    ],
)
def test_other_models_of_sentencepiece_are_refused_by_name(
    tmp_path: Path, changes: dict[str, object], words: str
) -> None:
    with pytest.raises(ModelError) as refusal:
        from_model(tmp_path, train(documents(), **changes))
    assert words in str(refusal.value)
    assert "save_pretrained" in str(refusal.value)


def test_a_damaged_model_file_is_refused_in_one_line(tmp_path: Path, model: bytes) -> None:
    rng = random.Random(13)
    damaged = [model[: rng.randrange(1, len(model))] for _ in range(100)]
    for _ in range(200):
        changed = bytearray(model)
        changed[rng.randrange(len(model))] = rng.randrange(256)
        damaged.append(bytes(changed))
    refusals = []
    for raw in (b"", b"\x0a", b"\xff" * 30, b"{}", *damaged):
        try:
            from_model(tmp_path, raw).encode("the cache", add_special=True)
        except ModelError as refusal:
            refusals.append(str(refusal))
    assert len(refusals) > 100
    assert not any("\n" in refusal for refusal in refusals)
